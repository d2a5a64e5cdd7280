"""Copies between host slots and pool blocks, off the engine's thread: a worker on CPU, own streams on CUDA.

Device order: a block that is copied in is shared only after its ticket is done; a block that is copied out is neither
reused nor committed before its ticket is done. The callers keep that order; `delayed.py` is the double that tests it.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Protocol

import torch

from hifc_ray.device.pool import BlockPool
from hifc_ray.errors import ConfigError


class Ticket(Protocol):
    """A copy under way."""

    @property
    def elapsed_s(self) -> float:
        """How long the copy itself took, once it is done."""

    def done(self) -> bool:
        """Has it returned? Raises what the copy raised."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for it; False if it has not returned by then. The copy goes on either way."""


class Copies(Protocol):
    """Moves whole blocks; slot and block have the same bytes."""

    def copy_in(self, slot: memoryview, block: int) -> Ticket:
        """Start slot -> block. The slot must stay leased, and the block unshared, until the ticket is done."""

    def copy_out(self, block: int, slot: memoryview) -> Ticket:
        """Start block -> slot, after the work on the block that was issued before this call."""

    def close(self) -> None:
        """Wait for what is under way and let go of the slots."""


def copies_for(pool: BlockPool) -> Copies:
    """The copies of a pool's device."""
    return CudaCopies(pool) if pool.device.type == "cuda" else ThreadCopies(pool)


class _FutureTicket:
    def __init__(self, future: Future[float]) -> None:
        self._future = future

    @property
    def elapsed_s(self) -> float:
        return self._future.result() if self._future.done() else 0.0

    def done(self) -> bool:
        if not self._future.done():
            return False
        self._future.result()
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        try:
            self._future.result(timeout_s)
        except FutureTimeout:
            return False
        return True


class ThreadCopies:
    """Copies in ordinary memory: one thread for each direction, so that stores do not delay loads."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._in = ThreadPoolExecutor(1, "hifc-copy-in")
        self._out = ThreadPoolExecutor(1, "hifc-copy-out")

    def copy_in(self, slot: memoryview, block: int) -> Ticket:
        return _FutureTicket(self._in.submit(_copy, self._pool.bytes[block], slot, True))

    def copy_out(self, block: int, slot: memoryview) -> Ticket:
        return _FutureTicket(self._out.submit(_copy, self._pool.bytes[block], slot, False))

    def close(self) -> None:
        self._in.shutdown()
        self._out.shutdown()


def _copy(block: torch.Tensor, slot: memoryview, inwards: bool) -> float:
    begun = time.perf_counter()
    host = _host_tensor(slot, block.numel())
    if inwards:
        block.copy_(host)
    else:
        host.copy_(block)
    return time.perf_counter() - begun


def _host_tensor(slot: memoryview, size: int) -> torch.Tensor:
    """The first `size` bytes of a slot as a tensor on the same memory."""
    if slot.nbytes < size:
        raise ConfigError(f"a slot has {slot.nbytes} bytes; a block needs {size}")
    return torch.frombuffer(slot, dtype=torch.uint8, count=size)


class _EventTicket:
    def __init__(self, begun: Any, event: Any, keep: torch.Tensor) -> None:
        self._begun = begun
        self._event = event
        self._keep = keep  # the slot's memory stays mapped while the copy engine uses it

    @property
    def elapsed_s(self) -> float:
        return float(self._begun.elapsed_time(self._event)) / 1e3 if self._event.query() else 0.0

    def done(self) -> bool:
        return bool(self._event.query())

    def wait(self, timeout_s: float | None = None) -> bool:
        if timeout_s is None:
            self._event.synchronize()
            return True
        give_up = time.monotonic() + timeout_s
        while not self._event.query():
            if time.monotonic() >= give_up:
                return False
            time.sleep(0.0001)
        return True


class CudaCopies:
    """DMA on a stream for each direction; slots are registered with CUDA once, on first use."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._in = torch.cuda.Stream(pool.device)
        self._out = torch.cuda.Stream(pool.device)
        self._registered: dict[int, int] = {}  # address -> bytes

    def copy_in(self, slot: memoryview, block: int) -> Ticket:
        host = self._register(slot)
        # The block may have had readers in the compute stream until just now.
        self._in.wait_stream(torch.cuda.current_stream(self._pool.device))
        return self._issue(self._in, self._pool.bytes[block], host, host)

    def copy_out(self, block: int, slot: memoryview) -> Ticket:
        host = self._register(slot)
        self._out.wait_stream(torch.cuda.current_stream(self._pool.device))
        return self._issue(self._out, host, self._pool.bytes[block], host)

    def _issue(self, stream: Any, target: torch.Tensor, source: torch.Tensor, host: torch.Tensor) -> Ticket:
        with torch.cuda.stream(stream):
            begun, event = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begun.record(stream)
            target.copy_(source, non_blocking=True)
            event.record(stream)
        return _EventTicket(begun, event, host)

    def _register(self, slot: memoryview) -> torch.Tensor:
        host = _host_tensor(slot, self._pool.layout.block_bytes)
        address = host.data_ptr()
        if address not in self._registered:
            result = torch.cuda.cudart().cudaHostRegister(address, host.numel(), 0)
            if int(result) != 0:
                raise ConfigError(f"CUDA cannot register host memory for DMA (error {int(result)})")
            self._registered[address] = host.numel()
        return host

    def close(self) -> None:
        self._in.synchronize()
        self._out.synchronize()
        for address in self._registered:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._registered.clear()

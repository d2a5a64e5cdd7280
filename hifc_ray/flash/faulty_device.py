"""A device whose faults are written down beforehand: errors, short I/O, slowness, stalls, a full disk, flipped bytes.

device = FaultyDevice(MemoryDevice())
device.fail("write", after=3)              # the fourth write is an EIO
with device.hang("read") as hang:          # the next read stalls
    ...                                    # hang.entered says when
                                           # leaving the block lets it go: late, it does what it was asked to
"""

from __future__ import annotations

import errno as errors
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from hifc_ray.flash.device import Device, Extent, pages
from hifc_ray.layout import PAGE_BYTES

Op = Literal["read", "write", "sync", "create", "open", "delete", "put", "get", "truncate"]

_TAKING_ROOM: tuple[Op, ...] = ("write", "create", "put")


class Hang:
    """Calls that stall. Each sets `entered` as it arrives, and goes on when `let_go` has been called."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._gate = threading.Event()

    def let_go(self) -> None:
        self._gate.set()

    def wait(self) -> None:
        self.entered.set()
        self._gate.wait()


@dataclass
class _Fault:
    after: int  # calls that still pass
    count: int | None  # calls that it strikes, None: all
    act: Callable[[], None] | None = None  # before the I/O
    limit_bytes: int | None = None  # short I/O
    flip_at: int | None = None  # offset in the extent or small file; strikes only calls that cover it


@dataclass
class _Strike:
    """What befalls one call."""

    limit_bytes: int | None = None
    flips: list[int] = field(default_factory=list)  # offsets in the bytes of this call


class FaultyDevice:
    """Another device, and what goes wrong with it. Extents that are open are struck too. Safe from any thread.

    `count` is how many calls are struck, None for all until `heal`; `after` is how many pass before the first.
    """

    def __init__(self, inner: Device, sleep: Callable[[float], None] = time.sleep) -> None:
        self.inner = inner
        self.calls: Counter[Op] = Counter()
        self._sleep = sleep
        self._lock = threading.Lock()
        self._faults: list[tuple[Op, _Fault]] = []
        self._hangs: list[Hang] = []

    def fail(self, op: Op, error: int = errors.EIO, count: int | None = 1, after: int = 0) -> None:
        """Raise OSError with this number, and do nothing."""

        def refuse() -> None:
            raise OSError(error, os.strerror(error), self.path)

        self._plan(op, _Fault(after, count, refuse))

    def no_space(self) -> None:
        """ENOSPC for whatever takes room, until `heal`."""
        for op in _TAKING_ROOM:
            self.fail(op, errors.ENOSPC, count=None)

    def short(self, op: Literal["read", "write"], num_bytes: int, count: int | None = 1, after: int = 0) -> None:
        """Move only the first `num_bytes`, whole pages; the rest of the buffers or of the extent stays as it was."""
        if num_bytes % PAGE_BYTES:
            raise ValueError(f"a short {op} of {num_bytes} bytes; allowed: whole pages")
        self._plan(op, _Fault(after, count, limit_bytes=num_bytes))

    def slow(self, op: Op, seconds: float, count: int | None = None, after: int = 0) -> None:
        """Sleep first."""
        self._plan(op, _Fault(after, count, lambda: self._sleep(seconds)))

    @contextmanager
    def hang(self, op: Op, count: int | None = 1, after: int = 0) -> Iterator[Hang]:
        """Within the block, stall until `let_go`; calls under way then do what they were asked to."""
        hang = Hang()
        fault = _Fault(after, count, hang.wait)
        self._plan(op, fault)
        with self._lock:
            self._hangs.append(hang)
        try:
            yield hang
        finally:
            with self._lock:
                self._faults = [planned for planned in self._faults if planned[1] is not fault]
            hang.let_go()

    def corrupt(
        self, op: Literal["read", "write", "put", "get"], offset: int = 0, count: int | None = 1, after: int = 0
    ) -> None:
        """Flip the byte at `offset` of the extent or small file, in calls that cover it, and say nothing."""
        self._plan(op, _Fault(after, count, flip_at=offset))

    def heal(self) -> None:
        """Forget all that was planned, and let go of what hangs."""
        with self._lock:
            self._faults.clear()
            hangs, self._hangs = self._hangs, []
        for hang in hangs:
            hang.let_go()

    def strike(self, op: Op, offset: int = 0, num_bytes: int = 0) -> _Strike:
        """Count a call, run what is planned before it, and answer what is to happen to its bytes."""
        acts, strike = [], _Strike()
        with self._lock:
            self.calls[op] += 1
            for planned, fault in self._faults:
                if planned != op or fault.count == 0:
                    continue
                if fault.flip_at is not None and not offset <= fault.flip_at < offset + num_bytes:
                    continue
                if fault.after:
                    fault.after -= 1
                    continue
                if fault.count is not None:
                    fault.count -= 1
                if fault.act is not None:
                    acts.append(fault.act)
                if fault.limit_bytes is not None:
                    strike.limit_bytes = min(fault.limit_bytes, num_bytes)
                if fault.flip_at is not None:
                    strike.flips.append(fault.flip_at - offset)
        for act in acts:
            act()
        return strike

    @property
    def path(self) -> str:
        return self.inner.path

    @property
    def direct(self) -> bool:
        return self.inner.direct

    def lock(self) -> None:
        self.inner.lock()

    def unlock(self) -> None:
        self.inner.unlock()

    def sizes(self) -> dict[str, int]:
        return self.inner.sizes()

    def free_bytes(self) -> int:
        return self.inner.free_bytes()

    def capacity_bytes(self) -> int:
        return self.inner.capacity_bytes()

    def create(self, name: str, size_bytes: int) -> Extent:
        self.strike("create")
        return FaultyExtent(self, self.inner.create(name, size_bytes))

    def reuse(self, old: str, new: str, size_bytes: int) -> Extent:
        self.strike("create")
        return FaultyExtent(self, self.inner.reuse(old, new, size_bytes))

    def open(self, name: str) -> Extent:
        self.strike("open")
        return FaultyExtent(self, self.inner.open(name))

    def delete(self, name: str) -> None:
        self.strike("delete")
        self.inner.delete(name)

    def put(self, name: str, data: bytes) -> None:
        self.inner.put(name, _flipped(data, self.strike("put", 0, len(data)).flips))

    def get(self, name: str) -> bytes:
        flips = self.strike("get", 0, self.inner.sizes().get(name, 0)).flips
        return _flipped(self.inner.get(name), flips)

    def _plan(self, op: Op, fault: _Fault) -> None:
        with self._lock:
            self._faults.append((op, fault))


class FaultyExtent:
    """An extent of a `FaultyDevice`."""

    def __init__(self, device: FaultyDevice, inner: Extent) -> None:
        self._device = device
        self._inner = inner

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def preadv(self, buffers: Sequence[memoryview], offset: int) -> int:
        num_bytes = sum(map(len, buffers))
        strike = self._device.strike("read", offset, num_bytes)
        done = self._inner.preadv(_head(buffers, strike.limit_bytes), offset)
        for at in strike.flips:
            if at < done:
                _flip(buffers, at)
        return done

    def pwritev(self, buffers: Sequence[memoryview], offset: int) -> int:
        num_bytes = sum(map(len, buffers))
        strike = self._device.strike("write", offset, num_bytes)
        if strike.flips:
            copy = pages(num_bytes)
            copy[:] = b"".join(buffers)
            buffers = [copy]
            for at in strike.flips:
                _flip(buffers, at)
        return self._inner.pwritev(_head(buffers, strike.limit_bytes), offset)

    def truncate(self, size_bytes: int) -> None:
        self._device.strike("truncate")
        self._inner.truncate(size_bytes)

    def sync(self) -> None:
        self._device.strike("sync")
        self._inner.sync()

    def close(self) -> None:
        self._inner.close()


def _head(buffers: Sequence[memoryview], limit_bytes: int | None) -> Sequence[memoryview]:
    if limit_bytes is None:
        return buffers
    head = []
    for buffer in buffers:
        if limit_bytes > 0:
            head.append(buffer[:limit_bytes])
        limit_bytes -= len(buffer)
    return head


def _flip(buffers: Sequence[memoryview], at: int) -> None:
    for buffer in buffers:
        if at < len(buffer):
            buffer[at] ^= 0xFF
            return
        at -= len(buffer)


def _flipped(data: bytes, offsets: list[int]) -> bytes:
    copy = bytearray(data)
    for at in offsets:
        if at < len(copy):
            copy[at] ^= 0xFF
    return bytes(copy)

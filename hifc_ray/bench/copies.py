"""Host arena → block pool: the shipped copies of scattered blocks against one torch copy of as many bytes."""

from __future__ import annotations

import mmap
import secrets
import time

import numpy as np
import torch

from hifc_ray import env
from hifc_ray.bench.report import Figure
from hifc_ray.bench.rounds import Progress, interleaved, medians, ratios
from hifc_ray.device.copies import Copies, copies_for
from hifc_ray.device.pool import BlockPool
from hifc_ray.host import arena
from hifc_ray.layout import BlockLayout

_NUM_SLOTS = 48  # of the arena, and blocks of the pool
_NUM_COPIED = 24  # of them, at random places on both sides
_COPY_S = 60.0


def measure(layout: BlockLayout, device: torch.device, progress: Progress, num_rounds: int) -> list[Figure]:
    """`host_copy_ratio`."""
    progress(f"host: {_NUM_COPIED} scattered blocks from the arena into the pool")
    path = env.shm_dir() / f"hifc-bench-{secrets.token_hex(6)}"
    mapped = arena.create(path, _NUM_SLOTS * layout.block_bytes, layout.block_bytes)
    try:
        pool = BlockPool(layout, _NUM_SLOTS * layout.block_bytes, device)
        copies = copies_for(pool)
        try:
            return [_figure(mapped, pool, copies, num_rounds)]
        finally:
            copies.close()
    finally:
        mapped.close(unlink=True)


def _figure(mapped: arena.Arena, pool: BlockPool, copies: Copies, num_rounds: int) -> Figure:
    for index in range(_NUM_SLOTS):
        np.frombuffer(mapped.slot(index), np.uint8)[:] = index + 1
    source = _side_by_side(mapped)
    rng = np.random.default_rng(0)
    total_bytes = _NUM_COPIED * pool.layout.block_bytes

    def shipped() -> float:
        slots = rng.permutation(_NUM_SLOTS)[:_NUM_COPIED].tolist()
        places = rng.permutation(pool.num_blocks)[:_NUM_COPIED].tolist()
        begun = time.perf_counter()
        tickets = [copies.copy_in(mapped.slot(slot), place) for slot, place in zip(slots, places, strict=True)]
        for ticket in tickets:
            ticket.wait(_COPY_S)
        took_s = time.perf_counter() - begun
        _check(pool, slots, places)
        return total_bytes / took_s

    def plain() -> float:
        begun = time.perf_counter()
        pool.bytes[:_NUM_COPIED].copy_(source)
        if pool.device.type == "cuda":
            torch.cuda.synchronize(pool.device)
        return total_bytes / (time.perf_counter() - begun)

    for warm in (shipped, plain, shipped, plain):
        warm()
    samples = interleaved({"shipped": shipped, "plain": plain}, num_rounds)
    what = f"{_NUM_COPIED} scattered blocks, all stripes, by the engine's copies ÷ one torch copy of as many bytes"
    parts = medians(samples, "bytes_per_s")
    return Figure("host_copy_ratio", ratios(samples["shipped"], samples["plain"]), what, parts)


def _side_by_side(mapped: arena.Arena) -> torch.Tensor:
    """The first `_NUM_COPIED` slots, which follow each other in the arena, as one tensor [slots, bytes]."""
    with mapped.path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    start, size = arena.data_offset(mapped.num_slots), _NUM_COPIED * mapped.slot_bytes
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start).view(_NUM_COPIED, -1)


def _check(pool: BlockPool, slots: list[int], places: list[int]) -> None:
    """Every stripe of every block has arrived."""
    for slot, place in zip(slots, places, strict=True):
        stripes = pool.bytes[place].view(pool.layout.layers, -1)
        if not bool(((stripes[:, 0] == slot + 1) & (stripes[:, -1] == slot + 1)).all()):
            raise AssertionError(f"slot {slot} did not arrive whole in block {place}")

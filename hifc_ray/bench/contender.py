"""What stores blocks one way or another, so that the ways can be compared: each fills as much and is asked the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hifc_ray.bench.crew import Op
from hifc_ray.flash.device import pages

_LEAST_BYTES = 128 << 20  # more than the caches of a processor hold


class Contender(Protocol):
    """A way to store blocks. What is not the timed operation itself is done by `puts` and `gets`, before."""

    def puts(self, count: int) -> Sequence[Op]:
        """Operations that store a new block each."""

    def gets(self, count: int) -> Sequence[Op]:
        """Operations that read a block each, of the newest third of what is stored, in random order."""

    def close(self) -> None: ...


class Buffers:
    """Page-aligned memory, touched: sources filled with random bytes, and targets, shared out among the lanes."""

    def __init__(self, block_bytes: int, most_lanes: int) -> None:
        self.block_bytes = block_bytes
        self._num_blocks = max(most_lanes, _LEAST_BYTES // block_bytes)
        self._sources = pages(self._num_blocks * block_bytes)
        self._targets = pages(self._num_blocks * block_bytes)
        content = np.random.default_rng(0).integers(0, 2**64, len(self._sources) // 8, dtype=np.uint64)
        np.frombuffer(self._sources, np.uint64)[:] = content
        np.frombuffer(self._targets, np.uint64)[:] = 0
        self.share_out(most_lanes)

    def share_out(self, num_lanes: int) -> None:
        """From now on so many lanes read at once, each into targets of its own."""
        self._per_lane = self._num_blocks // num_lanes
        self._turns = [0] * num_lanes

    def source(self, number: int) -> memoryview:
        """What block `number` is filled with."""
        at = number % self._num_blocks * self.block_bytes
        return self._sources[at : at + self.block_bytes]

    def target(self, lane: int) -> memoryview:
        """Where the next block goes that this lane reads."""
        self._turns[lane] += 1
        at = (lane * self._per_lane + self._turns[lane] % self._per_lane) * self.block_bytes
        return self._targets[at : at + self.block_bytes]

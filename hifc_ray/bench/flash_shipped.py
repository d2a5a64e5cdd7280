"""Our own store as a contender: blocks appended, found again and verified."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path

import numpy as np

from hifc_ray.bench.contender import Buffers
from hifc_ray.bench.crew import Op
from hifc_ray.bench.flash_plan import Plan
from hifc_ray.errors import StaleAddress, TierUnavailable
from hifc_ray.flash import FlashBlock, FlashStore
from hifc_ray.stats import Stats
from hifc_ray.types import KEY_BYTES, Key, Namespace

_NAMESPACE = Namespace(blake2b(b"hifc bench flash", digest_size=KEY_BYTES).digest())


class Shipped:
    """A `FlashStore` with its defaults, filled to its limit."""

    def __init__(self, directory: Path, plan: Plan, buffers: Buffers) -> None:
        self._buffers = buffers
        self._stripe_bytes = plan.stripe_bytes(buffers.block_bytes)
        config = plan.config(buffers.block_bytes, directory)
        self._store = FlashStore(config, buffers.block_bytes, Stats())
        self._num_made = 0
        num_blocks = config.limit_bytes // buffers.block_bytes
        self._newer: deque[FlashBlock] = deque(maxlen=num_blocks // 3)
        self._random = np.random.default_rng(1)
        for op in self.puts(num_blocks + 1):
            op(0)

    def puts(self, count: int) -> Sequence[Op]:
        blocks = [self._block(self._num_made + number) for number in range(count)]
        self._num_made += count
        return [partial(self._put, block) for block in blocks]

    def gets(self, count: int) -> Sequence[Op]:
        rows = self._random.integers(0, len(self._newer), count).tolist()
        return [partial(self._get, row) for row in rows]

    def check(self) -> None:
        """Read one block back and compare it with what was stored. Raises `TierUnavailable`."""
        self._get(len(self._newer) - 1, 0, compare=True)

    def close(self) -> None:
        self._store.close()

    def _block(self, number: int) -> FlashBlock:
        key = Key(blake2b(number.to_bytes(8, "little"), digest_size=KEY_BYTES).digest())
        size = self._stripe_bytes
        num_stripes = self._buffers.block_bytes // size
        return FlashBlock(key, _NAMESPACE, "bench", size, num_stripes, 0, self._buffers.source(number))

    def _put(self, block: FlashBlock, lane: int) -> None:
        self._store.append([block])
        self._newer.append(block)

    def _get(self, row: int, lane: int, *, compare: bool = False) -> None:
        block = self._newer[row]  # only now: what was among the newest may be gone after many writes
        target = self._buffers.target(lane)
        while True:
            (address,) = self._store.locate([block.key])
            if address is None:
                raise TierUnavailable(f"flash lost one of the newest {len(self._newer)} blocks")
            try:
                self._store.read(block.key, _NAMESPACE, address, target)
                break
            except StaleAddress:  # it has just been carried over
                continue
        if compare and target != block.buffer:
            raise TierUnavailable("flash returned other bytes than were stored")

"""Blocks without a model: chains of keys, slots filled with something, tiers of a given size."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from hifc_ray import keys
from hifc_ray.client import ChainQuery, StoreRequest, TierClient
from hifc_ray.config import FlashConfig, HostConfig, TierConfig
from hifc_ray.errors import TierUnavailable
from hifc_ray.layout import PAGE_BYTES, BlockLayout
from hifc_ray.policies.always import Always
from hifc_ray.policies.lru import Lru
from hifc_ray.tiering import TieredCache
from hifc_ray.types import ByteArray, Key, Namespace

NAMESPACE = keys.namespace({"of": "hifc bench"})
CALL_S = 10.0  # for a call that has to be answered; a bench on a busy machine is slow, not wrong
STORE_S = 60.0  # for all blocks of one `store`
_REFUSED_PAUSE_S = 0.002


def chain(layout: BlockLayout, *parts: tuple[int, int]) -> tuple[Key, ...]:
    """Keys of a made-up sequence; each part is (which text, how many blocks)."""
    tokens = [np.random.default_rng(text).integers(0, 2**31, count * layout.block_tokens) for text, count in parts]
    return tuple(keys.chain(NAMESPACE, np.concatenate(tokens).tolist(), layout.block_tokens))


def query(layout: BlockLayout, chained: tuple[Key, ...], namespace: Namespace = NAMESPACE) -> ChainQuery:
    """Ask for a whole chain of which the asker has nothing."""
    return ChainQuery(namespace, chained, np.zeros(len(chained), np.bool_), layout)


def random_bytes(size: int) -> ByteArray:
    """Bytes that no drive can compress."""
    return np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)


def store(client: TierClient, layout: BlockLayout, chained: tuple[Key, ...], content: ByteArray | None = None) -> None:
    """Store blocks, waiting for room; with `content` (of one block) they are filled with it. `TierUnavailable`."""
    todo, end = chained, time.monotonic() + STORE_S
    while todo:
        request = StoreRequest(NAMESPACE, todo, np.arange(len(todo), dtype=np.int64), layout)
        grant = client.reserve(request, CALL_S)
        if content is not None:
            for row in grant.granted:
                np.frombuffer(client.slot(int(grant.slots[row])), np.uint8)[: len(content)] = content
        client.commit(grant, None, CALL_S)
        todo = tuple(todo[row] for row in grant.refused)
        if todo:
            if time.monotonic() > end:
                raise TierUnavailable(f"the tier refused {len(todo)} of {len(chained)} blocks for {STORE_S:.0f} s")
            time.sleep(_REFUSED_PAUSE_S)


def tier_config(layout: BlockLayout, num_slots: int, window_share: float, directory: Path | None) -> TierConfig:
    """A tier with this many slots, and flash for many times as much."""
    host = HostConfig(arena_bytes=num_slots * layout.block_bytes, window_share=window_share)
    return TierConfig(host, FlashConfig((directory,) if directory else (), flash_bytes(layout), drive_writes_per_day=0))


def flash_bytes(layout: BlockLayout) -> int:
    """Byte limit of a bench's flash: at least what a store insists on, 5 segments of 16 blocks."""
    return 512 * (layout.block_bytes + 4 * PAGE_BYTES)


def open_tier(config: TierConfig, layout: BlockLayout) -> TieredCache:
    """The tier, in this process, with the shipped defaults for its policies."""
    return TieredCache(config, layout.block_bytes, Lru(), Always())

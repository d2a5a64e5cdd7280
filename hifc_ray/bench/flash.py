"""Flash → arena: promotion, verified, against a bare O_DIRECT loop over the same bytes of the same files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from hifc_ray.bench import blocks
from hifc_ray.bench.report import Figure
from hifc_ray.bench.rounds import Progress, interleaved, medians, ratios
from hifc_ray.client import ChainQuery, StoreRequest
from hifc_ray.config import TierConfig
from hifc_ray.errors import TierUnavailable
from hifc_ray.flash import FlashStore
from hifc_ray.flash.address import Place, unpack
from hifc_ray.flash.format import segment_name
from hifc_ray.layout import BlockLayout
from hifc_ray.stats import Stats
from hifc_ray.tiering import TieredCache
from hifc_ray.types import Key, Lookup

_NUM_BLOCKS = 32
_NUM_SLOTS = 64
_WINDOW_SHARE = _NUM_BLOCKS / _NUM_SLOTS  # one lookup promotes them all
_READ_S = 60.0


def measure(layout: BlockLayout, directory: Path, progress: Progress, num_rounds: int) -> list[Figure]:
    """`flash_read_ratio`."""
    config = blocks.tier_config(layout, _NUM_SLOTS, _WINDOW_SHARE, directory)
    progress(f"flash: {_NUM_BLOCKS} blocks from {directory.parent} into the arena")
    chained = blocks.chain(layout, (0, _NUM_BLOCKS))
    tier = blocks.open_tier(config, layout)
    blocks.store(tier, layout, chained, blocks.random_bytes(layout.block_bytes))
    tier.close(flush=True)
    places = _places(config, layout, chained)
    tier = blocks.open_tier(config, layout)
    query = blocks.query(layout, chained)
    try:
        with _bare_loop(tier, layout, directory, places) as bare:
            samples = interleaved({"shipped": lambda: _promote(tier, query), "bare": bare}, num_rounds)
    finally:
        tier.close(flush=False)
    total_bytes = _NUM_BLOCKS * layout.block_bytes
    what = (
        f"{_NUM_BLOCKS} blocks from flash into the arena, lookup and checksums included ÷ bare O_DIRECT preadv of the "
        f"same bytes; {config.flash.read_threads} in flight"
    )
    parts = {name: total_bytes / took_s for name, took_s in medians(samples, "bytes_per_s").items()}
    return [Figure("flash_read_ratio", ratios(samples["bare"], samples["shipped"]), what, parts)]


def _places(config: TierConfig, layout: BlockLayout, chained: tuple[Key, ...]) -> list[Place]:
    """Where the blocks lie; the store is open only meanwhile. Raises `TierUnavailable` without O_DIRECT."""
    with FlashStore(config.flash, layout.block_bytes, Stats()) as store:
        addresses = [address for address in store.locate(chained) if address is not None]
        if not store.direct or len(addresses) < len(chained):
            raise TierUnavailable(
                f"flash has {len(addresses)} of {len(chained)} blocks, {'with' if store.direct else 'without'} O_DIRECT"
            )
        return [unpack(address) for address in addresses]


def _promote(tier: TieredCache, query: ChainQuery) -> float:
    """Seconds from asking for blocks that are on flash only until the last of them may be used."""
    _empty(tier)
    begun = time.perf_counter()
    reply = tier.lookup(query, blocks.CALL_S)
    answers = tier.wait(reply, _READ_S)
    took_s = time.perf_counter() - begun
    tier.release(reply.lease)
    pending, hits = int((reply.answers == Lookup.PENDING).sum()), int((answers == Lookup.HIT).sum())
    if (pending, hits) != (_NUM_BLOCKS, _NUM_BLOCKS):
        raise TierUnavailable(f"{pending} of {_NUM_BLOCKS} blocks were on flash, {hits} came from there")
    return took_s


def _empty(tier: TieredCache) -> None:
    if not tier.demote_all(_READ_S):
        raise TierUnavailable(f"host memory could not be emptied within {_READ_S:.0f} s")


@contextmanager
def _bare_loop(
    tier: TieredCache, layout: BlockLayout, directory: Path, places: list[Place]
) -> Iterator[Callable[[], float]]:
    """A function that reads all places as they are; the seconds that it took.

    It reads into slots of the same arena, reserved for it: how fast direct reads are depends on the memory they go to.
    """
    paths = {place.segment: directory / segment_name(place.segment) for place in places}
    files = {number: os.open(path, os.O_RDONLY | os.O_DIRECT) for number, path in paths.items()}
    request = StoreRequest(
        blocks.NAMESPACE, blocks.chain(layout, (1, len(places))), np.arange(len(places), dtype=np.int64), layout
    )

    def read(place: Place, slot: memoryview) -> int:
        return os.preadv(files[place.segment], [slot[: place.payload_bytes]], place.offset + place.header_bytes)

    def loop() -> float:
        _empty(tier)
        grant = tier.reserve(request, blocks.CALL_S)
        slots = [tier.slot(int(grant.slots[row])) for row in grant.granted]
        begun = time.perf_counter()
        got = list(threads.map(read, places, slots))
        took_s = time.perf_counter() - begun
        tier.abort(grant)
        if got != [place.payload_bytes for place in places]:
            raise TierUnavailable(f"bare reads returned {got}")
        return took_s

    with ThreadPoolExecutor(tier.config.flash.read_threads) as threads:
        try:
            yield loop
        finally:
            for descriptor in files.values():
                os.close(descriptor)

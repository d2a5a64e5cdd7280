"""Lookup in process: keys a second through `TieredCache.lookup` and release, while another thread demotes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hifc_ray.bench import blocks
from hifc_ray.bench.report import Figure
from hifc_ray.bench.rounds import Progress
from hifc_ray.client import ChainQuery
from hifc_ray.errors import TierUnavailable
from hifc_ray.layout import BlockLayout
from hifc_ray.tiering import TieredCache
from hifc_ray.types import Lookup

NUM_KEYS = 64  # of a chain
_HALF = NUM_KEYS // 2
_NUM_CHAINS = 2  # one prefix in host memory, and for each chain another end on flash
_NUM_SLOTS = 64
# A window of half a chain: the blocks in host memory are leased, those on flash are found and left there.
_WINDOW_SHARE = _HALF / _NUM_SLOTS
_BATCH = 4  # blocks that the other thread stores at a time
_STORED_BYTES_PER_S = 1e9  # at most, so that a fast drive does not fill up meanwhile


def measure(layout: BlockLayout, directory: Path, progress: Progress, num_rounds: int, round_s: float) -> list[Figure]:
    """`lookup_keys_per_s`, and the same without demotion for comparison."""
    progress("lookup: keys a second in process, half of them on flash, while blocks are demoted")
    queries = _on_flash(layout, directory)
    tier = blocks.open_tier(blocks.tier_config(layout, _NUM_SLOTS, _WINDOW_SHARE, directory), layout)
    try:
        blocks.store(tier, layout, queries[0].keys[:_HALF])
        _check_split(tier, queries)
        alone = [_keys_per_s(tier, queries, round_s) for _ in range(num_rounds)]
        with _demoting(tier, layout):
            before, begun = tier.stats.get("evicted_blocks", reason="demoted"), time.perf_counter()
            samples = [_keys_per_s(tier, queries, round_s) for _ in range(num_rounds)]
            took_s = time.perf_counter() - begun
            demoted = tier.stats.get("evicted_blocks", reason="demoted") - before
        if not demoted:
            raise TierUnavailable("no block was demoted while lookups were measured: is the drive that slow?")
        _check_split(tier, queries)
    finally:
        tier.close(flush=False)
    what = f"lookup, lease, recency and release of chains of {NUM_KEYS} keys in process, half of them on flash only"
    parts = {"demoted_bytes_per_s": demoted * layout.block_bytes / took_s}
    return [
        Figure("lookup_keys_per_s", samples, f"{what}, while another thread stores and blocks are demoted", parts),
        Figure("lookup_keys_per_s_alone", alone, f"{what}, nothing else running"),
    ]


def _on_flash(layout: BlockLayout, directory: Path) -> list[ChainQuery]:
    """Queries of chains whose ends lie on flash when this returns, and in no memory."""
    chains = [blocks.chain(layout, (0, _HALF), (1 + number, _HALF)) for number in range(_NUM_CHAINS)]
    tier = blocks.open_tier(blocks.tier_config(layout, _NUM_SLOTS, _WINDOW_SHARE, directory), layout)
    for chained in chains:
        blocks.store(tier, layout, chained[_HALF:])
    tier.close(flush=True)
    return [blocks.query(layout, chained) for chained in chains]


def _check_split(tier: TieredCache, queries: list[ChainQuery]) -> None:
    """Half of each chain is in host memory and leased, half is on flash and only found."""
    for query in queries:
        reply = tier.lookup(query, blocks.CALL_S)
        tier.release(reply.lease)
        hits, found = int((reply.answers == Lookup.HIT).sum()), int((reply.answers == Lookup.RETRY).sum())
        if (hits, found, len(reply.lease)) != (_HALF, NUM_KEYS - _HALF, _HALF):
            raise TierUnavailable(f"{hits} keys in host memory and {found} on flash, of {NUM_KEYS}: not half and half")


def _keys_per_s(tier: TieredCache, queries: list[ChainQuery], duration_s: float) -> float:
    num_keys, begun = 0, time.perf_counter()
    while (now := time.perf_counter()) - begun < duration_s:
        for query in queries:
            tier.release(tier.lookup(query, blocks.CALL_S).lease)
            num_keys += NUM_KEYS
    return num_keys / (now - begun)


@contextmanager
def _demoting(tier: TieredCache, layout: BlockLayout) -> Iterator[None]:
    """Within the block, another thread stores new blocks without end, so that old ones are demoted without end."""
    stop = threading.Event()
    pause_s = _BATCH * layout.block_bytes / _STORED_BYTES_PER_S

    def run() -> None:
        text = 1000
        while not stop.is_set():
            begun = time.perf_counter()
            blocks.store(tier, layout, blocks.chain(layout, (text, _BATCH)))
            text += 1
            stop.wait(max(0.0, pause_s - (time.perf_counter() - begun)))

    thread = threading.Thread(target=run, name="hifc-bench-demote", daemon=True)
    thread.start()
    # Until the free slots are used up nothing has to leave.
    end = time.monotonic() + blocks.STORE_S
    while not tier.stats.get("evicted_blocks", reason="demoted") and time.monotonic() < end:
        time.sleep(0.01)
    try:
        yield
    finally:
        stop.set()
        thread.join()

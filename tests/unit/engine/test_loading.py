"""A request's walk through the tiers: windows, blocks on their way, deadlines, why it missed, what it gives back."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from hifc_ray.client import ChainQuery, Lease, LookupReply, StoreRequest
from hifc_ray.config import EngineConfig
from hifc_ray.device.copies import ThreadCopies
from hifc_ray.device.delayed import DelayedCopies
from hifc_ray.device.pool import BlockPool
from hifc_ray.engine.loading import Load, Loader
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.engine.sequence import Sequence
from hifc_ray.layout import BlockLayout
from hifc_ray.memory_tier import MemoryTier
from hifc_ray.messages import Purge
from hifc_ray.stats import Stats
from hifc_ray.types import BoolArray, ByteArray, Fate, Lookup, Namespace, Tier

TOKENS = 4
LAYOUT = BlockLayout(layers=2, kv_heads=1, head_dim=16, block_tokens=TOKENS)
NAMESPACE = Namespace(b"n" * 32)
pytestmark = pytest.mark.timeout(60)


class Bench:
    """A loader over a pool of 32 blocks and a tier; one sequence of `num_blocks` full blocks and a rest."""

    def __init__(self, tier: MemoryTier, num_blocks: int = 6, pool_blocks: int = 32, **settings: Any) -> None:
        self.tier = tier
        self.pool = BlockPool(LAYOUT, pool_blocks * LAYOUT.block_bytes)
        self.copies = DelayedCopies(ThreadCopies(self.pool))
        self.stats = Stats()
        self.loader = Loader(
            tier, self.copies, self.pool, EngineConfig(**{"load_deadline_s": 30.0, **settings}), self.stats
        )
        prompt = list(range(num_blocks * TOKENS + 1))
        self.sequence = Sequence(1, prompt, SamplingParams(max_new_tokens=1), frozenset(), TOKENS)
        self.sequence.open(NAMESPACE)
        blocks = self.pool.allocate(self.sequence.num_blocks)
        assert blocks is not None
        self.sequence.table = blocks

    def store(self, *indices: int) -> None:
        """Put blocks of the sequence into the tier, each filled with its index."""
        keys = tuple(self.sequence.keys[index] for index in indices)
        grant = self.tier.reserve(StoreRequest(NAMESPACE, keys, np.array(indices), LAYOUT), 1.0)
        for i in grant.granted:
            self.tier.slot(int(grant.slots[i]))[: LAYOUT.block_bytes] = bytes([indices[i] + 1]) * LAYOUT.block_bytes
        self.tier.commit(grant, None, 1.0)

    def run(self) -> Load:
        load = self.loader.start(self.sequence)
        while not load.advance():
            load.wait(0.01)
        return load

    @property
    def ready(self) -> list[int]:
        return np.flatnonzero(self.sequence.ready).tolist()

    def check(self) -> None:
        """What is ready has the right bytes and can be found; all else has been given back."""
        for index in self.ready:
            block = self.sequence.table[index]
            assert (self.pool.bytes[block] == index + 1).all()
            assert self.pool.block_of(self.sequence.keys[index]) == block
        self.copies.close()
        self.loader.collect()
        assert self.loader.num_late == 0
        self.tier.check()
        self.pool.release(self.sequence.table)
        self.pool.forget()
        assert self.pool.num_available == self.pool.num_blocks


def test_the_leading_run_is_loaded_and_the_first_missing_key_is_told() -> None:
    bench = Bench(MemoryTier(LAYOUT.block_bytes, 8, window=8))
    bench.store(0, 1, 2, 4)
    bench.run()
    assert bench.ready == [0, 1, 2]
    missed = bench.sequence.missed
    assert missed is not None
    assert (missed.index, missed.key, missed.fate) == (3, bench.sequence.keys[3], Fate.UNKNOWN)
    assert bench.sequence.sources == {"host": 3}
    assert bench.sequence.loaded_bytes == {"host": 3 * LAYOUT.block_bytes}
    assert bench.sequence.loaded_s["host"] > 0
    assert bench.stats.get("hits_blocks", tier=Tier.HOST) == 3
    bench.check()


def test_a_long_chain_is_loaded_window_by_window_and_counted_as_one_access() -> None:
    continued: list[bool] = []

    class Watched(MemoryTier):
        def lookup(self, query: ChainQuery, deadline_s: float) -> LookupReply:
            continued.append(query.continued)
            return super().lookup(query, deadline_s)

    bench = Bench(Watched(LAYOUT.block_bytes, 8, window=2), num_blocks=5)
    bench.store(*range(5))
    bench.run()
    assert bench.ready == [0, 1, 2, 3, 4]
    assert continued == [False, True, True]
    assert bench.sequence.missed is None
    bench.check()


def test_blocks_in_the_pool_are_named_to_the_tier_and_lend_no_slot() -> None:
    asked: list[list[bool]] = []

    class Watched(MemoryTier):
        def lookup(self, query: ChainQuery, deadline_s: float) -> LookupReply:
            asked.append(query.in_gpu.tolist())
            return super().lookup(query, deadline_s)

    bench = Bench(Watched(LAYOUT.block_bytes, 8, window=8), num_blocks=4)
    bench.store(1, 3)
    for index in (0, 2):
        bench.sequence.ready[index] = True
        bench.pool.bytes[bench.sequence.table[index]] = index + 1
        bench.pool.publish(bench.sequence.table[index], bench.sequence.keys[index], NAMESPACE)
    bench.run()
    assert asked == [[True, False, True, False]]
    assert bench.ready == [0, 1, 2, 3]
    assert bench.sequence.sources == {"host": 2}
    bench.check()


def test_evicted_blocks_come_back_and_count_at_their_tier() -> None:
    tier = MemoryTier(LAYOUT.block_bytes, 8, window=8, keep_evicted=True)
    bench = Bench(tier, num_blocks=3)
    bench.store(0, 1, 2)
    assert tier.evict((NAMESPACE, bench.sequence.keys[1]))
    bench.run()
    assert bench.ready == [0, 1, 2]
    assert bench.sequence.sources == {"host": 2, "flash": 1}
    bench.check()


class Stuck(MemoryTier):
    """A tier whose flash answers nothing, or that the read failed."""

    fails = False

    def wait(self, reply: LookupReply, deadline_s: float) -> ByteArray:
        answers = reply.answers.copy()
        if self.fails:
            answers[answers == Lookup.PENDING] = Lookup.MISS
        return answers


@pytest.mark.parametrize(("fails", "fate"), [(False, Fate.LATE), (True, Fate.READ_FAILED)])
def test_a_block_that_does_not_come_ends_the_hit_and_says_why(fails: bool, fate: Fate) -> None:
    tier = Stuck(LAYOUT.block_bytes, 8, window=8, keep_evicted=True)
    tier.fails = fails
    bench = Bench(tier, num_blocks=4, load_deadline_s=30.0 if fails else 0.05)
    bench.store(0, 1, 2, 3)
    tier.evict((NAMESPACE, bench.sequence.keys[2]))
    bench.run()
    assert bench.ready == [0, 1, 3]
    assert bench.sequence.missed is not None
    assert (bench.sequence.missed.index, bench.sequence.missed.fate) == (2, fate)
    bench.check()


def test_a_copy_whose_slot_changed_owner_is_not_used() -> None:
    class Forgetful(MemoryTier):
        def holds(self, lease: Lease) -> BoolArray:
            held = super().holds(lease)
            held[1] = False
            return held

    bench = Bench(Forgetful(LAYOUT.block_bytes, 8, window=8), num_blocks=3)
    bench.store(0, 1, 2)
    bench.run()
    assert bench.ready == [0, 2]
    assert bench.stats.get("stale_leases") == 1
    bench.check()


def test_time_spent_on_an_older_prompt_is_not_waiting() -> None:
    tier = MemoryTier(LAYOUT.block_bytes, 8, window=2)
    bench = Bench(tier, num_blocks=4, load_deadline_s=0.05)
    bench.store(0, 1, 2, 3)
    load = bench.loader.start(bench.sequence)
    assert not load.advance()
    begun_s = time.monotonic()
    time.sleep(0.1)
    load.excuse(time.monotonic() - begun_s)
    while not load.advance():
        load.wait(0.01)
    assert bench.ready == [0, 1, 2, 3]
    bench.check()


@pytest.mark.parametrize("pool_blocks", [32, 7])
def test_a_cancelled_load_gives_all_back_once_its_copies_have_returned(pool_blocks: int) -> None:
    bench = Bench(MemoryTier(LAYOUT.block_bytes, 8, window=8), num_blocks=6, pool_blocks=pool_blocks)
    bench.store(*range(6))
    bench.copies.hold("in")
    load = bench.loader.start(bench.sequence)
    assert not load.advance()
    load.abandon()
    assert bench.loader.num_late == 6
    assert len(bench.sequence.table) == bench.sequence.num_blocks - 6
    with pytest.raises(Exception, match="leases"):
        bench.tier.check()
    bench.loader.collect()
    assert bench.loader.num_late == 6
    bench.check()


def test_without_blocks_to_replace_late_ones_it_waits_for_them() -> None:
    bench = Bench(MemoryTier(LAYOUT.block_bytes, 8, window=8), num_blocks=6, pool_blocks=7, load_deadline_s=0.02)
    bench.store(*range(6))
    bench.copies.hold("in")
    load = bench.loader.start(bench.sequence)
    load.advance()
    time.sleep(0.03)
    assert not load.advance(), "late, but the pool has nothing to compute the rest into"
    bench.copies.release("in")
    while not load.advance():
        load.wait(0.01)
    assert bench.ready == [0, 1, 2, 3, 4, 5]
    bench.check()


def test_what_is_purged_while_it_is_copied_is_computed_instead() -> None:
    bench = Bench(MemoryTier(LAYOUT.block_bytes, 8, window=8), num_blocks=3)
    bench.store(0, 1, 2)
    bench.copies.hold("in")
    load = bench.loader.start(bench.sequence)
    assert not load.advance()
    assert bench.tier.purge(Purge(namespace=NAMESPACE)).host_blocks == 3
    bench.copies.release("in")
    while not load.advance():
        load.wait(0.01)
    assert bench.ready == []
    bench.check()


def test_a_purged_request_does_not_share_what_it_had_asked_for() -> None:
    bench = Bench(MemoryTier(LAYOUT.block_bytes, 8, window=8), num_blocks=2)
    bench.store(0, 1)
    bench.copies.hold("in")
    load = bench.loader.start(bench.sequence)
    assert not load.advance()
    bench.sequence.purge(Purge(namespace=NAMESPACE), NAMESPACE)
    bench.copies.release("in")
    while not load.advance():
        load.wait(0.01)
    assert bench.ready == [0, 1]  # it was lent them before
    assert not bench.pool.holds(bench.sequence.keys).any()

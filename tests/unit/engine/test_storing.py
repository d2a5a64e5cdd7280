"""Background stores: committed only after their copies, tried again where refused, dropped and counted when late."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hifc_ray.client import StoreRequest
from hifc_ray.config import EngineConfig
from hifc_ray.device.copies import ThreadCopies
from hifc_ray.device.delayed import DelayedCopies
from hifc_ray.device.pool import BlockPool
from hifc_ray.engine.storing import Filled, Storer
from hifc_ray.layout import BlockLayout
from hifc_ray.memory_tier import MemoryTier
from hifc_ray.messages import Purge
from hifc_ray.stats import Stats
from hifc_ray.types import NOBODY, Key, Namespace, Owner, Reserve

LAYOUT = BlockLayout(layers=2, kv_heads=1, head_dim=16, block_tokens=16)
NAMESPACE = Namespace(b"n" * 32)
pytestmark = pytest.mark.timeout(60)


class Bench:
    """A storer over a pool whose blocks are filled with their own numbers."""

    def __init__(self, tier: Any, **settings: Any) -> None:
        self.pool = BlockPool(LAYOUT, 16 * LAYOUT.block_bytes)
        for block in range(16):
            self.pool.bytes[block] = block + 1
        self.copies = DelayedCopies(ThreadCopies(self.pool))
        self.stats = Stats()
        self.tier = tier
        self.deadline_s = settings.get("store_deadline_s", 30.0)
        config = EngineConfig(**{"store_deadline_s": self.deadline_s, **settings})
        self.storer = Storer(tier, self.copies, LAYOUT, config, self.stats)

    def put(self, *blocks: int, owner: Owner = NOBODY) -> list[bool]:
        deadline_s = time.monotonic() + self.deadline_s
        return [
            self.storer.put(
                Filled(NAMESPACE, key(block), block, block, owner, 0, lambda block=block: block / 2, deadline_s)  # type: ignore[misc]
            )
            for block in blocks
        ]


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(tier: Any, **settings: Any) -> Bench:
        made.append(Bench(tier, **settings))
        return made[-1]

    yield make
    for each in made:
        each.copies.close()
        assert each.storer.close(10)


def key(number: int) -> Key:
    return Key(number.to_bytes(32, "little"))


def wait_for(condition: Callable[[], Any]) -> None:
    """pytest's timeout ends a wait that never does."""
    while not condition():
        time.sleep(0.001)


def reserved(tier: MemoryTier, number: int) -> Reserve:
    """What the tier says to another that wants to store the same block."""
    grant = tier.reserve(StoreRequest(NAMESPACE, (key(number),), np.zeros(1, np.int64), LAYOUT), 1.0)
    tier.abort(grant)
    return Reserve(int(grant.answers[0]))


def test_blocks_arrive_whole_with_their_attention(bench: Callable[..., Bench]) -> None:
    tier = MemoryTier(LAYOUT.block_bytes, 8, window=2)
    made = bench(tier)
    assert made.put(3, 4, 5) == [True] * 3
    assert made.storer.drain(10)
    assert made.storer.collect() == [3, 4, 5]
    assert made.storer.num_pinned == 0
    for block in (3, 4, 5):
        assert (NAMESPACE, key(block)) in tier
        assert tier.attention[NAMESPACE, key(block)] == block / 2
    stored = sorted({bytes(tier.slot(index)[: LAYOUT.block_bytes]) for index in range(tier.num_slots)})
    assert [page[:1] for page in stored] == [b"\0", b"\4", b"\5", b"\6"]
    assert made.stats.get("stored_blocks") == 3
    assert made.stats.get("stored_bytes") == 3 * LAYOUT.block_bytes


def test_a_block_stays_pinned_and_unpublished_until_its_copy_has_returned(bench: Callable[..., Bench]) -> None:
    tier = MemoryTier(LAYOUT.block_bytes, 8)
    made = bench(tier)
    made.copies.hold("out")
    made.put(1)
    wait_for(lambda: made.copies.num_held("out"))
    assert (NAMESPACE, key(1)) not in tier
    assert made.storer.collect() == []
    assert made.storer.num_pinned == 1
    assert not made.storer.drain(0.01)
    made.copies.release("out")
    assert made.storer.drain(10)
    assert made.storer.collect() == [1]
    assert (NAMESPACE, key(1)) in tier


def test_what_is_stored_already_is_not_copied_again(bench: Callable[..., Bench]) -> None:
    made = bench(MemoryTier(LAYOUT.block_bytes, 8))
    made.put(1)
    assert made.storer.drain(10)
    made.copies.hold("out")
    made.put(1)
    assert made.storer.drain(10)
    assert made.copies.num_held("out") == 0
    assert made.stats.get("stored_blocks") == 1
    assert made.stats.get("dropped_stores") == 0
    assert made.storer.collect() == [1, 1]


def test_a_refused_block_is_offered_until_there_is_room(bench: Callable[..., Bench]) -> None:
    tier = MemoryTier(LAYOUT.block_bytes, 1)
    other = tier.reserve(StoreRequest(NAMESPACE, (key(99),), np.zeros(1, np.int64), LAYOUT), 1.0)
    made = bench(tier)
    made.put(1)
    wait_for(lambda: tier._fates)  # refused at least once
    assert made.storer.collect() == []
    tier.abort(other)
    assert made.storer.drain(10)
    assert (NAMESPACE, key(1)) in tier


def test_a_block_refused_until_its_deadline_is_dropped_and_counted(bench: Callable[..., Bench]) -> None:
    tier = MemoryTier(LAYOUT.block_bytes, 1)
    tier.reserve(StoreRequest(NAMESPACE, (key(99),), np.zeros(1, np.int64), LAYOUT), 1.0)
    made = bench(tier, store_deadline_s=0.05)
    made.put(1, 2)
    assert made.storer.drain(10)
    assert made.stats.get("dropped_stores", reason="refused") == 2
    assert sorted(made.storer.collect()) == [1, 2]


def test_a_copy_that_is_late_is_waited_for_and_then_aborted(bench: Callable[..., Bench]) -> None:
    tier = MemoryTier(LAYOUT.block_bytes, 8)
    made = bench(tier, store_deadline_s=0.05)
    made.copies.hold("out")
    made.put(1)
    wait_for(lambda: made.copies.num_held("out"))
    time.sleep(0.06)  # past the deadline
    assert reserved(tier, 1) is Reserve.PRESENT, "the slot is given back while a copy may still write into it"
    made.copies.release("out")
    assert made.storer.drain(10)
    assert made.stats.get("dropped_stores", reason="late") == 1
    assert (NAMESPACE, key(1)) not in tier
    assert reserved(tier, 1) is Reserve.GRANTED
    assert made.storer.collect() == [1]


def test_a_full_queue_refuses_and_counts(bench: Callable[..., Bench]) -> None:
    made = bench(MemoryTier(LAYOUT.block_bytes, 8), store_queue_blocks=2)
    made.copies.hold("out")
    assert made.put(1, 2, 3) == [True, True, False]
    assert made.stats.get("dropped_stores", reason="queue_full") == 1
    made.copies.release("out")
    assert made.storer.drain(10)


def test_a_tier_that_raises_costs_only_the_store(bench: Callable[..., Bench]) -> None:
    class Broken(MemoryTier):
        broken = True

        def reserve(self, request: StoreRequest, deadline_s: float) -> Any:
            if self.broken:
                raise OSError("gone")
            return super().reserve(request, deadline_s)

    tier = Broken(LAYOUT.block_bytes, 8)
    made = bench(tier)
    made.put(1)
    assert made.storer.drain(10)
    assert made.stats.get("dropped_stores", reason="error") == 1
    tier.broken = False
    made.put(2)
    assert made.storer.drain(10)
    assert (NAMESPACE, key(2)) in tier
    assert made.storer.collect() == [1, 2]


ALICE, BOB = Owner(1, 10), Owner(2, 20)


def test_what_is_queued_or_under_way_when_it_is_purged_is_not_published(bench: Callable[..., Bench]) -> None:
    tier = MemoryTier(LAYOUT.block_bytes, 8)
    made = bench(tier)
    made.copies.hold("out")
    made.put(1, owner=ALICE)
    wait_for(lambda: made.copies.num_held("out"))
    made.put(2, owner=ALICE)
    made.put(3, owner=BOB)
    made.storer.purge(Purge(tenant=ALICE.tenant))
    assert made.storer.collect() == [2]  # of the other a copy is under way
    made.copies.release("out")
    assert made.storer.drain(10)
    assert [(NAMESPACE, key(number)) in tier for number in (1, 2, 3)] == [False, False, True]
    assert sorted(made.storer.collect()) == [1, 3]
    assert made.stats.get("dropped_stores", reason="purged") == 2
    made.put(1, owner=ALICE)  # later, it is a new store
    assert made.storer.drain(10)
    assert (NAMESPACE, key(1)) in tier
    tier.check()


def test_a_refused_block_that_is_purged_is_not_offered_again(bench: Callable[..., Bench]) -> None:
    tier = MemoryTier(LAYOUT.block_bytes, 1)
    other = tier.reserve(StoreRequest(NAMESPACE, (key(99),), np.zeros(1, np.int64), LAYOUT), 1.0)
    made = bench(tier)
    made.put(1, owner=ALICE)
    wait_for(lambda: tier._fates)
    made.storer.purge(Purge(session=ALICE.session))
    assert made.storer.drain(10)
    assert made.storer.collect() == [1]
    tier.abort(other)
    assert (NAMESPACE, key(1)) not in tier


def test_blocks_are_stored_under_their_owner(bench: Callable[..., Bench]) -> None:
    tier = MemoryTier(LAYOUT.block_bytes, 8)
    made = bench(tier)
    made.put(1, 2, owner=ALICE)
    made.put(3, owner=BOB)
    assert made.storer.drain(10)
    assert tier.purge(Purge(session=ALICE.session)).host_blocks == 2
    assert (NAMESPACE, key(3)) in tier

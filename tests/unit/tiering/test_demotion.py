from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hifc_ray.clock import ManualClock
from hifc_ray.policies import registry
from hifc_ray.policies.always import Always
from hifc_ray.policy import Features
from hifc_ray.tiering import TieredCache
from hifc_ray.types import BlockState, BoolArray, Fate, Lookup, Tier
from tests.fakes.blocks import OURS, SOON, THEIRS, holds_bytes, query, request, store
from tests.fakes.flash import FaultyDevice, broken, no_space
from tests.fakes.tier import WAIT_S, Held, faulty, in_host, on_flash, open_tier, push_out, serve

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def device() -> FaultyDevice:
    return faulty()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tier(tmp_path: Path, device: FaultyDevice, clock: ManualClock) -> Iterator[TieredCache]:
    """16 slots; eviction begins under 4 free ones and stops at 6."""
    made = open_tier(tmp_path, flash=device, clock=clock, low_watermark=0.25, high_watermark=0.375)
    yield made
    made.check()
    made.close(flush=False)


def settle(tier: TieredCache) -> None:
    tier.tick()
    assert tier.idle(WAIT_S)
    tier.check()


def fate(tier: TieredCache, number: int) -> Fate:
    reply = tier.lookup(query([number]), SOON)
    assert reply.missed is not None
    return reply.missed.fate


def test_nothing_leaves_above_the_low_mark(tier: TieredCache) -> None:
    store(tier, range(12))
    settle(tier)
    assert in_host(tier, range(12)) == list(range(12))
    assert not tier._shared.pressure.is_set()


def test_from_the_low_mark_on_room_is_made_up_to_the_high_mark_deepest_first(tier: TieredCache) -> None:
    store(tier, range(13))
    assert tier._shared.pressure.is_set()
    settle(tier)
    assert tier._books.num_free == 6
    assert in_host(tier, range(13)) == list(range(10))  # asked for together: the deepest leave
    assert on_flash(tier, range(13)) == [10, 11, 12]
    assert tier.stats.get("evicted_blocks", reason="demoted") == 3
    assert serve(tier, range(13))[:8] == list(range(8))


def test_the_least_recently_used_leave_first(tier: TieredCache) -> None:
    for number in range(12):
        store(tier, [number])
    assert serve(tier, [2]) == [2]
    store(tier, [12])
    settle(tier)
    assert on_flash(tier, range(13)) == [0, 1, 3]


def test_a_low_mark_of_nothing_still_makes_room_when_all_is_full(tmp_path: Path) -> None:
    made = open_tier(tmp_path, slots=4, name="full", low_watermark=0.0, high_watermark=0.0)
    store(made, range(4))
    made.tick()
    assert made._books.num_free == 1
    made.close(flush=False)


def test_a_block_that_flash_has_is_dropped_without_a_write(tier: TieredCache, device: FaultyDevice) -> None:
    store(tier, range(13))
    push_out(tier, range(4))
    assert serve(tier, range(4)) == [0, 1, 2, 3]
    written = tier.stats.get("blocks_stored", tier=Tier.FLASH)
    device.on_write = broken
    push_out(tier, range(4))
    assert tier.stats.get("blocks_stored", tier=Tier.FLASH) == written
    assert tier.stats.get("evicted_blocks", reason="on_flash") == 4
    device.on_write = lambda: None
    assert serve(tier, range(4)) == [0, 1, 2, 3]


def test_without_flash_what_leaves_is_gone_and_says_so(tmp_path: Path) -> None:
    made = open_tier(tmp_path, slots=8, name="bare")
    store(made, range(8))
    assert made._demoter.make_room() == 1
    assert in_host(made, range(8)) == list(range(7))
    assert fate(made, 7) == Fate.EVICTED
    made.check()
    made.close()


class Even(Always):
    """Admits blocks at even positions."""

    name = "even"

    def admit(self, candidates: Features, incumbents: Features, budget_level: float) -> BoolArray:
        return np.asarray(candidates.position % 2 == 0)


def test_what_is_not_admitted_is_dropped_and_says_so(tmp_path: Path) -> None:
    made = open_tier(tmp_path, flash=faulty(), name="admission", policies=(registry.eviction("lru"), Even()))
    store(made, range(6))
    push_out(made, range(6))
    assert on_flash(made, range(6)) == [0, 2, 4]
    assert made.stats.get("evicted_blocks", reason="not_admitted") == 3
    assert fate(made, 3) == Fate.NOT_ADMITTED
    made.close(flush=False)


def test_blocks_of_a_namespace_that_nobody_uses_leave_first(tmp_path: Path) -> None:
    first = open_tier(tmp_path, name="models")
    store(first, range(8))
    store(first, range(4), THEIRS)
    first.close(flush=False, keep_arena=True)
    second = open_tier(tmp_path, name="models", flash=faulty())
    assert serve(second, range(8)) == list(range(8))  # now ours is in use, theirs is not
    assert serve(second, range(4), OURS) == list(range(4))
    store(second, range(8, 12))
    settle(second)
    assert in_host(second, range(4), THEIRS) == [0, 1, 2]
    assert in_host(second, range(12)) == list(range(12))
    assert serve(second, range(2), THEIRS) == [0, 1]  # somebody uses it: nobody is foreign
    assert not second._books.hotness.foreign.any()
    second.close(flush=False)


def test_a_hit_while_writing_cancels_the_demotion(tier: TieredCache, device: FaultyDevice) -> None:
    held = Held()
    store(tier, range(13))
    device.on_write = held
    tier.tick()
    held.wait_entered()
    leaving = in_host(tier, range(13))[-3:]
    assert leaving == [10, 11, 12]  # still there, on their way
    reply = tier.lookup(query([11]), SOON)
    assert reply.answers.tolist() == [Lookup.HIT]
    assert holds_bytes(tier, int(reply.slots[0]), 11)
    held.let_go()
    device.on_write = lambda: None
    assert tier.idle(WAIT_S)
    assert in_host(tier, [10, 11, 12]) == [11]
    assert holds_bytes(tier, int(reply.slots[0]), 11)
    assert tier.holds(reply.lease).all()
    assert on_flash(tier, [10, 11, 12]) == [10, 11, 12]
    tier.release(reply.lease)
    push_out(tier, [11])  # dropped: flash has it
    assert tier.stats.get("blocks_stored", tier=Tier.FLASH) == 3


def test_released_while_the_write_is_still_under_way_it_stays(tier: TieredCache, device: FaultyDevice) -> None:
    held = Held()
    store(tier, range(13))
    device.on_write = held
    tier.tick()
    held.wait_entered()
    assert serve(tier, [11]) == [11]
    slot = int(tier._books.find(query([11]).keys)[0])
    assert slot not in tier._books.evictable()
    held.let_go()
    assert tier.idle(WAIT_S)
    assert slot in tier._books.evictable()


@pytest.mark.parametrize("fault", [no_space, broken])
def test_a_write_that_fails_costs_the_blocks_and_nothing_else(
    tier: TieredCache, device: FaultyDevice, fault: object
) -> None:
    store(tier, range(13))
    device.on_write = fault  # type: ignore[assignment]
    settle(tier)
    assert tier._books.num_free == 6
    assert fate(tier, 12) == Fate.WRITE_FAILED
    assert tier.stats.get("write_failures", tier=Tier.FLASH, reason="OSError") == 3
    device.on_write = lambda: None
    assert store(tier, [12, 20, 21, 22]) == [12, 20, 21, 22]
    settle(tier)
    assert on_flash(tier, range(30))
    assert serve(tier, range(8)) == list(range(8))


def test_a_full_device_refuses_stores_no_longer_than_it_must(tmp_path: Path) -> None:
    device = faulty()
    made = open_tier(tmp_path, flash=device, name="enospc", low_watermark=0.25, high_watermark=0.375)

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    device.on_create = full
    for start in range(0, 40, 4):
        store(made, range(start, start + 4))
        settle(made)
    assert made.stats.get("write_failures", reason="FlashFull") > 0
    assert made.stats.get("stores_refused") == 0
    assert in_host(made, range(36, 40)) == list(range(36, 40))
    made.close(flush=False)


def test_a_write_past_its_deadline_is_lost_and_its_slots_wait_for_it(
    tier: TieredCache, device: FaultyDevice, clock: ManualClock
) -> None:
    held = Held()
    store(tier, range(13))
    device.on_write = held
    tier.tick()
    held.wait_entered()
    late = tier._books.find(query([10, 11, 12]).keys).tolist()
    clock.advance(31.0)
    tier._demoter.expire()
    tier.check()
    assert tier._books.counts()["quarantined"] == 3
    assert fate(tier, 12) == Fate.WRITE_FAILED
    assert tier.stats.get("write_deadlines", reason="running") == 1
    grant = tier.reserve(request(range(100, 116)), SOON)
    assert len(grant.granted) == 3
    assert not set(grant.slots[grant.granted].tolist()) & set(late)
    tier.abort(grant)
    held.let_go()
    assert tier.idle(WAIT_S)
    tier.check()
    assert tier._books.counts()["quarantined"] == 0
    assert on_flash(tier, [10, 11, 12]) == [10, 11, 12]  # it was late, not lost after all


def test_writes_that_never_began_are_withdrawn(tier: TieredCache, device: FaultyDevice, clock: ManualClock) -> None:
    held = Held()
    store(tier, range(16))
    device.on_write = held
    tier._demoter._evict(*_rows(tier, range(4)))
    held.wait_entered()
    tier._demoter._evict(*_rows(tier, range(4, 8)))
    clock.advance(31.0)
    tier._demoter.expire()
    assert tier._books.counts()["quarantined"] == 4
    assert tier._books.num_free == 4
    assert tier.stats.get("write_deadlines", reason="queued") == 1
    held.let_go()
    assert tier.idle(WAIT_S)
    assert on_flash(tier, range(8)) == [0, 1, 2, 3]


def test_what_the_write_queue_cannot_take_stays(tmp_path: Path) -> None:
    device = faulty()
    made = open_tier(tmp_path, flash=device, name="queue", flash_options={"queue_blocks": 4, "write_threads": 1})
    store(made, range(16))
    held = Held()
    device.on_write = held
    made._demoter._evict(*_rows(made, range(4)))
    held.wait_entered()
    made._demoter._evict(*_rows(made, range(4, 12)))
    counts = made._books.counts()
    assert (counts["demoting"], counts["resident"]) == (8, 8)
    held.let_go()
    assert made.idle(WAIT_S)
    made.check()
    made.close(flush=False)


def test_leased_blocks_never_leave(tier: TieredCache) -> None:
    store(tier, range(16))
    reply = tier.lookup(query(range(8)), SOON)
    generations = tier._books.table.generation[reply.lease.slots].astype(np.int64)
    tier._demoter._evict(reply.lease.slots, generations)
    for _ in range(3):
        settle(tier)
        store(tier, range(20, 30))
    assert tier.holds(reply.lease).all()
    assert (tier._books.table.state[reply.lease.slots] == BlockState.LEASED).all()
    for number in range(8):
        assert holds_bytes(tier, int(reply.slots[number]), number)
    tier.release(reply.lease)


def _rows(tier: TieredCache, numbers: range) -> tuple[np.ndarray, np.ndarray]:
    slots = tier._books.find(query(numbers).keys)
    return slots, tier._books.table.generation[slots].astype(np.int64)

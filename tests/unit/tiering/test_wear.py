"""What a tier writes to its devices: never more than the budget bears, and every refused byte has a reason."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hifc_ray import points
from hifc_ray.clock import ManualClock
from hifc_ray.flash import Extent, FaultyDevice, MemoryDevice
from hifc_ray.flash.memory_device import MemoryExtent
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.policies import registry
from hifc_ray.policies.always import Always
from hifc_ray.policy import Features
from hifc_ray.tiering import TieredCache
from hifc_ray.types import BoolArray, Fate, FingerprintArray, Tier
from tests.contracts.tier_client import ALICE, BOB
from tests.fakes.blocks import SLOT_BYTES, keys, query, store
from tests.fakes.tier import WAIT_S, Held, in_host, keep_up, on_flash, open_tier, push_out, serve

pytestmark = pytest.mark.timeout(60)

DAY_S = 86_400.0
RECORD_BYTES = SLOT_BYTES + PAGE_BYTES


class Meter(MemoryDevice):
    """Counts every byte that is written to it."""

    def __init__(self) -> None:
        super().__init__(path="metered")
        self.written_bytes = 0

    def create(self, name: str, size_bytes: int) -> Extent:
        super().create(name, size_bytes)
        return self.open(name)

    def open(self, name: str) -> Extent:
        return MeteredExtent(self, self._find(name))

    def put(self, name: str, data: bytes) -> None:
        self.written_bytes += len(data)
        super().put(name, data)


class MeteredExtent(MemoryExtent):
    def __init__(self, meter: Meter, data: bytearray) -> None:
        super().__init__(data)
        self._meter = meter

    def pwritev(self, buffers: Sequence[memoryview], offset: int) -> int:
        done = super().pwritev(buffers, offset)
        self._meter.written_bytes += done
        return done


def refused(tier: TieredCache) -> dict[str, int]:
    """Bytes by reason."""
    reasons = ("policy", "budget", "quota", "read-only", "out")
    found = {name: tier.stats.get("refused_bytes", tier=Tier.FLASH, reason=name) for name in reasons}
    return {name: int(count) for name, count in found.items() if count}


def fate(tier: TieredCache, number: int) -> Fate:
    return tier._shared.fate(keys([number])[0])


def begin_demotion(tier: TieredCache, numbers: range) -> None:
    slots = tier._books.find(keys(numbers))
    tier._demoter._evict(slots, tier._books.table.generation[slots].astype(np.int64))


@pytest.mark.parametrize("seed", range(2))
def test_no_more_is_written_over_the_days_than_the_budget_allows(tmp_path: Path, seed: int) -> None:
    clock, meter, dice = ManualClock(), Meter(), random.Random(seed)
    per_day = 40 * RECORD_BYTES
    options = {"write_bytes_per_day": per_day, "carry_share": 0.3, "checkpoint_interval_s": 3600.0}

    def opened() -> TieredCache:
        return open_tier(tmp_path, flash=meter, clock=clock, flash_options=options)

    tier = opened()
    assert tier._shared.flash is not None
    slack = 2 * tier._shared.flash.segment_bytes  # what one new segment may carry over and say about the one before
    numbers, carried = 0, 0.0
    for _ in range(120):
        chain = range(numbers, numbers + dice.randint(1, 14))
        numbers = chain.stop
        store(tier, chain)
        push_out(tier, chain)
        for old in dice.sample(range(numbers), min(4, numbers)):
            if serve(tier, [old]):
                push_out(tier, [old])
        clock.advance(dice.expovariate(1 / (DAY_S / 8)))
        keep_up(tier)
        assert meter.written_bytes <= per_day * (clock.now() / DAY_S + 1) + slack
        if dice.random() < 0.05:
            carried += tier.stats.get("device_written_bytes", reason="carried")
            level = tier._shared.flash.budget_level
            tier.close()
            tier = opened()
            assert tier._shared.flash is not None
            assert tier._shared.flash.budget_level <= level
    assert carried + tier.stats.get("device_written_bytes", reason="carried") > 0
    assert set(refused(tier)) == {"budget"}
    assert meter.written_bytes > 0.8 * per_day * clock.now() / DAY_S  # and it is made use of
    tier.close(flush=False)


def test_every_byte_that_is_written_is_told_and_taken_from_the_budget(tmp_path: Path) -> None:
    clock, meter = ManualClock(), Meter()
    per_day = 1 << 30
    tier = open_tier(tmp_path, flash=meter, clock=clock, flash_options={"write_bytes_per_day": per_day})
    for begin in range(0, 1200, 16):
        store(tier, range(begin, begin + 16))
        push_out(tier, range(begin, begin + 16))
        serve(tier, range(begin, begin + 8))
        push_out(tier, in_host(tier, range(begin, begin + 8)))
    keep_up(tier)
    clock.advance(61.0)
    keep_up(tier)
    assert tier._upkeep is not None
    assert tier._shared.flash is not None
    budget = tier._shared.flash.volumes[0].budget
    taken = per_day * (1 + 61.0 / DAY_S - budget.level)
    assert tier.stats.get("device_written_bytes", reason="state.checkpoint") > 0
    assert tier.stats.get("device_written_bytes", reason="carried") > 0
    assert tier.stats.get("device_written_bytes") == meter.written_bytes
    assert taken == pytest.approx(meter.written_bytes)
    assert tier.stats.get("admitted_bytes") == 1200 * SLOT_BYTES == tier.stats.get("stored_bytes", tier=Tier.FLASH)
    summary: Any = tier._upkeep.summary()
    assert summary["write_amplification"] == pytest.approx(meter.written_bytes / (1200 * SLOT_BYTES))
    tier.close(flush=False)


def test_what_the_budget_does_not_bear_is_dropped_and_counted(tmp_path: Path) -> None:
    clock = ManualClock()
    options = {"write_bytes_per_day": 9 * RECORD_BYTES}
    tier = open_tier(tmp_path, flash=MemoryDevice(), clock=clock, flash_options=options)
    store(tier, range(16))
    push_out(tier, range(16))
    assert on_flash(tier, range(16)) == list(range(8))
    assert refused(tier) == {"budget": 8 * SLOT_BYTES}
    assert tier.stats.get("admitted_bytes", tier=Tier.FLASH) == 8 * SLOT_BYTES
    assert fate(tier, 15) == Fate.NOT_ADMITTED
    clock.advance(DAY_S / 2)
    store(tier, range(16, 24))
    push_out(tier, range(16, 24))
    assert on_flash(tier, range(16, 24)) == [16, 17, 18, 19]
    tier.close(flush=False)


def test_one_device_whose_budget_is_spent_leaves_the_writing_to_the_other(tmp_path: Path) -> None:
    devices = [MemoryDevice(path="small"), MemoryDevice(path="large")]
    tier = open_tier(tmp_path, flash=devices, clock=ManualClock())
    assert tier._shared.flash is not None
    spent = tier._shared.flash.volumes[0].budget
    spent.charge(int(spent.bytes_per_day))
    store(tier, range(16))
    push_out(tier, range(16))
    assert on_flash(tier, range(16)) == list(range(16))
    assert tier._shared.flash.volumes[0].log.segments == []
    assert refused(tier) == {}
    tier.close(flush=False)


def test_what_a_busy_device_may_yet_take_is_not_refused(tmp_path: Path) -> None:
    devices = [FaultyDevice(MemoryDevice(path=name)) for name in ("busy", "spent")]
    options = {"queue_blocks": 4, "write_threads": 1}
    tier = open_tier(tmp_path, flash=devices, clock=ManualClock(), flash_options=options)
    assert tier._shared.flash is not None
    spent = tier._shared.flash.volumes[1].budget
    spent.charge(int(spent.bytes_per_day))
    store(tier, range(16))
    with devices[0].hang("write") as hang:
        begin_demotion(tier, range(4))
        assert hang.entered.wait(WAIT_S)
        begin_demotion(tier, range(4, 16))  # one group waits, the others do not fit
        assert tier._books.counts()["resident"] == 8
        assert refused(tier) == {}
    assert tier.idle(WAIT_S)
    push_out(tier, range(8, 12))
    assert on_flash(tier, range(16)) == list(range(12))
    tier.close(flush=False)


def test_a_quota_holds_between_the_choice_of_a_block_and_its_write(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, flash=MemoryDevice(), flash_options={"tenant_quota_bytes": 5 * RECORD_BYTES})
    store(tier, range(8), owner=ALICE)
    store(tier, range(8, 12), owner=BOB)
    held = Held()
    first = threading.Thread(target=begin_demotion, args=(tier, range(4)))
    with points.at("tier.demote.before", held):
        first.start()
        held.wait_entered()  # chosen, and in no queue yet
        second = threading.Thread(target=begin_demotion, args=(tier, range(4, 12)))
        second.start()
        held.wait_entered()
        held.let_go()
        first.join(WAIT_S)
        second.join(WAIT_S)
    assert tier.idle(WAIT_S)
    assert on_flash(tier, range(12)) == [0, 1, 2, 3, 4, 8, 9, 10, 11]
    assert refused(tier) == {"quota": 3 * SLOT_BYTES}
    assert not tier._demoter._under_way
    tier.close(flush=False)


def test_with_every_device_out_what_leaves_is_dropped_and_counted(tmp_path: Path) -> None:
    device = FaultyDevice(MemoryDevice())
    tier = open_tier(tmp_path, flash=device, clock=ManualClock(), flash_options={"max_faults": 1})
    device.fail("write", count=None)
    store(tier, range(8))
    push_out(tier, range(4))
    push_out(tier, range(4, 8))
    assert refused(tier) == {"out": 4 * SLOT_BYTES}
    assert on_flash(tier, range(8)) == []
    tier.close(flush=False)


class Spy(Always):
    """Admits even positions, and remembers what it was told."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.levels: list[float] = []
        self.num_incumbents: list[int] = []

    def observe(self, fingerprints: FingerprintArray) -> None:
        self.seen += fingerprints.tolist()

    def admit(self, candidates: Features, incumbents: Features, budget_level: float) -> BoolArray:
        self.levels.append(budget_level)
        self.num_incumbents.append(len(incumbents))
        assert candidates.fingerprint.all()
        assert len(incumbents) == 0 or incumbents.fingerprint.all()
        return np.asarray(candidates.position % 2 == 0)


def test_admission_is_told_of_accesses_incumbents_and_the_budget(tmp_path: Path) -> None:
    spy = Spy()
    options = {"write_bytes_per_day": 1000 * RECORD_BYTES}
    policies = registry.eviction("lru"), spy
    tier = open_tier(tmp_path, flash=MemoryDevice(), clock=ManualClock(), policies=policies, flash_options=options)
    for begin in range(0, 800, 16):
        store(tier, range(begin, begin + 16))
        push_out(tier, range(begin, begin + 16))
    assert refused(tier) == {"policy": 400 * SLOT_BYTES}
    assert fate(tier, 1) == Fate.NOT_ADMITTED
    assert spy.levels[0] == 1.0
    assert spy.levels == sorted(spy.levels, reverse=True)
    assert 0.3 < spy.levels[-1] < 0.7
    assert spy.num_incumbents[0] == 0  # flash has room
    assert spy.num_incumbents[-1] > 0
    assert serve(tier, [798]) == [798]
    assert spy.seen == [int.from_bytes(query([798]).keys[0][:8], "little")]
    tier.close(flush=False)


def test_second_sight_keeps_off_flash_what_was_seen_once(tmp_path: Path) -> None:
    policies = registry.eviction("lru"), registry.admission("second-sight")
    tier = open_tier(tmp_path, flash=MemoryDevice(), policies=policies)
    store(tier, range(4))
    assert serve(tier, range(2)) == [0, 1]  # asked for while in host memory
    push_out(tier, range(4))
    assert on_flash(tier, range(4)) == [0, 1]
    store(tier, range(2, 4))  # computed again
    push_out(tier, range(2, 4))
    assert on_flash(tier, range(4)) == [0, 1, 2, 3]
    assert refused(tier) == {"policy": 2 * SLOT_BYTES}
    tier.close(flush=False)


def test_tinylfu_lets_in_what_is_asked_for_more_than_what_would_leave(tmp_path: Path) -> None:
    policies = registry.eviction("lru"), registry.admission("tinylfu", num_blocks=400)
    tier = open_tier(tmp_path, flash=MemoryDevice(), policies=policies)
    for begin in range(0, 400, 16):  # until flash is full of blocks that were asked for once
        serve(tier, range(begin, begin + 16))
        store(tier, range(begin, begin + 16))
        push_out(tier, range(begin, begin + 16))
    store(tier, [1000, 1001])
    for _ in range(3):
        serve(tier, [1000])
    push_out(tier, [1000, 1001])
    assert on_flash(tier, [1000, 1001]) == [1000]
    assert fate(tier, 1001) == Fate.NOT_ADMITTED
    tier.close(flush=False)


def test_budgeted_admits_the_share_that_the_budget_bears(tmp_path: Path) -> None:
    clock = ManualClock()
    eviction = registry.eviction("lru")
    policies = eviction, registry.admission("budgeted", eviction)
    options = {"write_bytes_per_day": 100 * RECORD_BYTES}
    tier = open_tier(tmp_path, flash=MemoryDevice(), clock=clock, policies=policies, flash_options=options)
    for begin in range(0, 16 * 120, 16):  # 16 times what the budget bears, evenly over the time
        store(tier, range(begin, begin + 16))
        push_out(tier, range(begin, begin + 16))
        clock.advance(DAY_S / 100)
    assert tier._shared.flash is not None
    assert refused(tier)["policy"] > 10 * refused(tier).get("budget", 0)
    assert 0.0 < tier._shared.flash.budget_level < 0.5
    assert tier.idle(WAIT_S)
    tier.close(flush=False)

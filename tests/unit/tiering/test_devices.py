"""A tier over several devices, one of which misbehaves: it costs its own blocks, for a while, and nobody else's."""

from __future__ import annotations

import errno
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from hifc_ray.clock import ManualClock
from hifc_ray.flash import FaultyDevice, FlashStore, MemoryDevice, volume_of
from hifc_ray.flash.address import unpack
from hifc_ray.flash.faulty_device import Hang
from hifc_ray.flash.format import FAULTS_NAME
from hifc_ray.tiering import TieredCache
from hifc_ray.types import Fate, Lookup, Tier
from tests.fakes.blocks import SLOT_BYTES, SOON, keys, query, store
from tests.fakes.tier import WAIT_S, in_host, keep_up, on_flash, open_tier, push_out, serve, words

pytestmark = pytest.mark.timeout(30)

OPTIONS = {"read_threads": 1, "queue_blocks": 16, "max_faults": 3, "retry_s": 30.0, "write_deadline_s": 0.5}
ALL = range(24)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def devices(clock: ManualClock) -> list[FaultyDevice]:
    return [FaultyDevice(MemoryDevice(path=f"nvme{number}")) for number in range(3)]


@pytest.fixture
def tier(tmp_path: Path, devices: list[FaultyDevice], clock: ManualClock) -> Iterator[TieredCache]:
    """24 blocks on flash only, spread over three devices."""
    made = open_tier(tmp_path, slots=24, flash=devices, clock=clock, flash_options=OPTIONS)
    store(made, ALL)
    push_out(made, ALL)
    yield made
    for device in devices:
        device.heal()
    assert made.idle(WAIT_S)
    made.check()
    made.close(flush=False)


def flash_of(tier: TieredCache) -> FlashStore:
    flash = tier._shared.flash
    assert flash is not None
    return flash


def homes(tier: TieredCache, numbers: Iterable[int] = ALL) -> dict[int, list[int]]:
    """Which of these blocks lie on each volume."""
    found = defaultdict(list)
    chain = list(numbers)
    for number, address in zip(chain, flash_of(tier).locate(keys(chain)), strict=True):
        if address is not None:
            found[volume_of(address)].append(number)
    return dict(found)


def states(tier: TieredCache) -> list[str]:
    return [volume.state for volume in flash_of(tier).volumes]


def serve_each(tier: TieredCache, numbers: Iterable[int]) -> list[int]:
    """Each by itself, so that one that is missed does not end the run."""
    return [number for number in numbers if serve(tier, [number])]


def miss_late(tier: TieredCache, clock: ManualClock, number: int, hang: Hang) -> None:
    """Ask for a block whose device does not answer, until its deadline."""
    reply = tier.lookup(query([number]), SOON)
    assert words(reply) == "P"
    assert hang.entered.wait(WAIT_S)
    clock.advance(2.5)
    tier.tick()
    assert tier.wait(reply, 0.0).tolist() == [Lookup.MISS]
    tier.release(reply.lease)


def fate(tier: TieredCache, number: int) -> Fate:
    reply = tier.lookup(query([number]), SOON)
    assert words(reply) == "M"
    assert reply.missed is not None
    return reply.missed.fate


def test_blocks_are_spread_and_all_are_served(tier: TieredCache) -> None:
    assert {volume: len(numbers) for volume, numbers in homes(tier).items()} == {0: 8, 1: 8, 2: 8}
    assert serve_each(tier, ALL) == list(ALL)


def test_a_device_that_hangs_is_taken_out_and_the_others_serve_on(
    tier: TieredCache, devices: list[FaultyDevice], clock: ManualClock
) -> None:
    at = homes(tier)
    with devices[0].hang("read", count=None) as hang:
        for number in at[0][:3]:  # the first runs, the others wait behind it
            assert states(tier)[0] == "ok"
            miss_late(tier, clock, number, hang)
        assert states(tier) == ["out", "ok", "ok"]
        assert {fate(tier, number) for number in at[0]} == {Fate.READ_FAILED}  # at once, without a read
        assert devices[0].calls["read"] == 1
        assert serve_each(tier, at[1] + at[2]) == at[1] + at[2]
        store(tier, range(30, 35))
        push_out(tier, range(30, 35))
        assert set(homes(tier, range(30, 35))) <= {1, 2}
    assert tier.idle(WAIT_S)
    assert serve_each(tier, at[0]) == []  # not before it was tried
    keep_up(tier)
    assert states(tier)[0] == "out"
    clock.advance(31.0)
    keep_up(tier)
    assert states(tier) == ["ok", "ok", "ok"]
    assert serve_each(tier, at[0]) == at[0]
    assert tier.stats.get("breaker_changes", reason="open") == 1


def test_a_probe_that_hangs_holds_up_no_other_upkeep(
    tier: TieredCache, devices: list[FaultyDevice], clock: ManualClock
) -> None:
    assert tier._upkeep is not None
    at = homes(tier)
    for number in (0, 1):
        devices[number].fail("read", count=None)
        for block in at[number][:3]:
            assert serve(tier, [block]) == []
    assert states(tier) == ["out", "out", "ok"]
    devices[0].heal()
    devices[1].heal()
    clock.advance(61.0)  # a checkpoint is due as well
    with devices[0].hang("read") as hang:
        tier._upkeep.step()
        assert hang.entered.is_set()
        assert states(tier) == ["out", "ok", "ok"]
        assert tier.stats.get("checkpoints") == 1
        clock.advance(31.0)
        tier._upkeep.step()  # its last probe has not come back: no second one
        assert devices[0].calls["read"] == 4
    assert tier._upkeep._errands.wait(WAIT_S)
    clock.advance(60.0)
    keep_up(tier)
    assert states(tier) == ["ok", "ok", "ok"]


def test_jobs_that_wait_too_long_behind_a_device_that_works_are_no_fault_of_it(
    tier: TieredCache, devices: list[FaultyDevice], clock: ManualClock
) -> None:
    at = homes(tier)[0]
    with devices[0].hang("read") as hang:
        first = tier.lookup(query([at[0]]), SOON)
        assert hang.entered.wait(WAIT_S)
        clock.advance(1.5)
        behind = [tier.lookup(query([number]), SOON) for number in at[1:5]]
        clock.advance(1.0)
        tier.tick()  # the first is late, those behind it have time left
    assert [tier.wait(reply, WAIT_S).tolist() for reply in behind] == [[Lookup.HIT]] * 4
    for reply in (first, *behind):
        tier.release(reply.lease)
    assert states(tier)[0] == "ok"


@pytest.mark.parametrize("fault", ["error", "short"])
def test_reads_that_fail_take_a_device_out_until_it_works_again(
    tier: TieredCache, devices: list[FaultyDevice], clock: ManualClock, fault: str
) -> None:
    at = homes(tier)
    devices[1].fail("read", count=None) if fault == "error" else devices[1].short("read", 0, count=None)
    assert serve_each(tier, at[1]) == []
    assert tier.stats.get("read_failures", tier=Tier.FLASH, reason="OSError") == 3
    assert states(tier) == ["ok", "out", "ok"]
    assert serve_each(tier, ALL) == sorted(at[0] + at[2])
    clock.advance(31.0)
    keep_up(tier)
    assert states(tier)[1] == "out"
    devices[1].heal()
    clock.advance(31.0)  # it failed again: the interval is twice as long
    keep_up(tier)
    assert states(tier)[1] == "out"
    clock.advance(30.0)
    keep_up(tier)
    assert serve_each(tier, at[1]) == at[1]


def test_a_device_without_room_loses_what_was_on_its_way_and_gets_no_more(
    tmp_path: Path, devices: list[FaultyDevice], clock: ManualClock
) -> None:
    tier = open_tier(tmp_path, name="full", slots=24, flash=devices, clock=clock, flash_options=OPTIONS)
    devices[0].fail("create", errno.ENOSPC, count=None)
    store(tier, ALL)
    push_out(tier, ALL)
    assert tier.stats.get("write_failures", reason="FlashFull") == 8  # a third, before anyone could know
    for begin in (24, 48):
        store(tier, range(begin, begin + 24))
        push_out(tier, range(begin, begin + 24))
    assert on_flash(tier, range(24, 72)) == list(range(24, 72))
    assert tier.stats.get("write_failures") == 8
    assert states(tier)[0] == "ok"
    devices[0].heal()
    clock.advance(31.0)
    store(tier, range(72, 76))
    push_out(tier, range(72, 76))
    assert homes(tier, range(72, 76)) == {0: [72, 73, 74, 75]}  # the emptiest
    tier.close(flush=False)


def test_corruption_is_a_miss_that_is_counted_and_kept_for_examination(
    tier: TieredCache, devices: list[FaultyDevice]
) -> None:
    number = homes(tier)[2][0]
    address = flash_of(tier).locate(keys([number]))[0]
    assert address is not None
    place = unpack(address)
    devices[2].corrupt("read", place.offset + place.header_bytes + 100)
    reply = tier.lookup(query([number]), SOON)
    assert words(reply) == "P"
    assert tier.wait(reply, WAIT_S).tolist() == [Lookup.MISS]
    tier.release(reply.lease)
    assert fate(tier, number) == Fate.CORRUPT
    assert tier.stats.get("corrupt", tier=Tier.FLASH) == 1
    inner = devices[2].inner
    assert isinstance(inner, MemoryDevice)
    (row,) = json.loads(inner.files[FAULTS_NAME])
    assert (row["key"], row["offset"]) == (keys([number])[0].hex(), place.offset)
    assert states(tier)[2] == "ok"
    assert serve_each(tier, ALL) == [other for other in ALL if other != number]


def test_a_slow_device_serves_until_its_deadline(tmp_path: Path, clock: ManualClock) -> None:
    def take(seconds: float) -> None:
        clock.advance(seconds)
        made.tick()

    slow = FaultyDevice(MemoryDevice(path="slow"), sleep=take)
    devices = [slow, FaultyDevice(MemoryDevice(path="other"))]
    tier = made = open_tier(tmp_path, name="slow", slots=24, flash=devices, clock=clock, flash_options=OPTIONS)
    store(tier, ALL)
    push_out(tier, ALL)
    at = homes(tier)
    slow.slow("read", 1.5)
    assert serve_each(tier, at[0][:4]) == at[0][:4]
    slow.heal()
    slow.slow("read", 2.5)
    for number in at[0][4:7]:
        assert serve(tier, [number]) == []
    assert tier.idle(WAIT_S)
    tier.check()
    assert states(tier) == ["out", "ok"]
    assert tier.stats.get("read_deadlines", reason="running") == 3
    assert serve_each(tier, at[1]) == at[1]
    tier.close(flush=False)


def test_blocks_that_lie_side_by_side_are_read_in_one_go(tier: TieredCache, devices: list[FaultyDevice]) -> None:
    for device, numbers in zip(devices, (range(4), range(4, 8), range(8, 12)), strict=True):
        device.calls.clear()
        assert set(homes(tier, numbers)) == {devices.index(device)}
    assert serve(tier, range(12)) == list(range(12))
    assert [device.calls["read"] for device in devices] == [1, 1, 1]
    assert tier.stats.get("loaded_bytes", tier=Tier.FLASH) == 12 * SLOT_BYTES


def test_one_bad_neighbour_costs_only_itself(tier: TieredCache, devices: list[FaultyDevice]) -> None:
    address = flash_of(tier).locate(keys([1]))[0]
    assert address is not None
    devices[0].corrupt("read", unpack(address).offset + 4096)
    reply = tier.lookup(query(range(4)), SOON)
    assert tier.wait(reply, WAIT_S).tolist() == [Lookup.HIT, Lookup.MISS, Lookup.HIT, Lookup.HIT]
    tier.release(reply.lease)
    assert in_host(tier, range(4)) == [0, 2, 3]
    assert devices[0].calls["read"] == 1


def test_one_page_that_cannot_be_read_costs_only_its_block(tier: TieredCache, devices: list[FaultyDevice]) -> None:
    devices[1].fail("read", count=2)  # all four in one go, then the first by itself
    reply = tier.lookup(query(range(4, 8)), SOON)
    assert tier.wait(reply, WAIT_S).tolist() == [Lookup.MISS, Lookup.HIT, Lookup.HIT, Lookup.HIT]
    tier.release(reply.lease)
    assert serve_each(tier, range(4, 8)) == [4, 5, 6, 7]

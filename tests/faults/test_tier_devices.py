"""Tiers whose devices come late, hang and lie, all at once: no wrong byte, no slot lost, nobody waits for long."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hifc_ray.clock import ManualClock
from hifc_ray.flash import FaultyDevice, MemoryDevice
from hifc_ray.messages import Purge, PurgeReport
from hifc_ray.tiering import TieredCache, upkeep
from hifc_ray.types import BlockState, Lookup
from tests.contracts.tier_client import ALICE, BOB
from tests.fakes.blocks import SOON, fill, holds_bytes, keys, query, request, store
from tests.fakes.tier import WAIT_S, in_host, keep_up, on_flash, open_tier, push_out, serve, words

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def devices() -> list[FaultyDevice]:
    return [FaultyDevice(MemoryDevice(path=f"nvme{number}")) for number in range(2)]


@pytest.fixture
def tier(tmp_path: Path, devices: list[FaultyDevice], clock: ManualClock) -> Iterator[TieredCache]:
    """16 slots; blocks 0 to 3 and 8 to 11 on the first device, 4 to 7 on the second."""
    made = open_tier(tmp_path, flash=devices, clock=clock)
    store(made, range(4), owner=ALICE)
    store(made, range(4, 8), owner=BOB)
    push_out(made, range(8))
    store(made, range(8, 12), owner=BOB)
    push_out(made, range(8, 12))
    yield made
    for device in devices:
        device.heal()
    assert made.idle(WAIT_S)
    made.check()
    assert made._books.counts()["quarantined"] == 0
    made.close(flush=False)


def states_of(tier: TieredCache, slots: list[int]) -> set[BlockState]:
    return {BlockState(state) for state in tier._books.table.state[slots].tolist()}


def take_all_the_rest(tier: TieredCache, first: int) -> list[int]:
    """New owners for every slot that can be had; their bytes are written."""
    numbers = list(range(first, first + tier.num_slots))
    grant = tier.reserve(request(numbers), SOON)
    fill(tier, grant, numbers)
    tier.commit(grant, None, SOON)
    return [int(slot) for slot in grant.slots[grant.granted]]


def check_owners(tier: TieredCache, first: int, slots: list[int]) -> None:
    for number, slot in enumerate(slots, first):
        assert holds_bytes(tier, slot, number)


def test_a_late_read_lands_in_slots_that_nobody_else_was_given(
    tier: TieredCache, devices: list[FaultyDevice], clock: ManualClock
) -> None:
    with devices[0].hang("read") as hang:
        reply = tier.lookup(query(range(4)), SOON)
        assert hang.entered.wait(WAIT_S)
        late = reply.slots.tolist()
        clock.advance(2.5)
        tier.tick()
        assert tier.wait(reply, 0.0).tolist() == [Lookup.MISS] * 4
        tier.release(reply.lease)
        assert states_of(tier, late) == {BlockState.QUARANTINED}
        owners = take_all_the_rest(tier, 100)
        assert len(owners) == 12
        assert not set(owners) & set(late)
        tier.check()
    assert tier.idle(WAIT_S)  # here the late bytes land
    check_owners(tier, 100, owners)
    assert states_of(tier, late) == {BlockState.ABSENT}
    heirs = take_all_the_rest(tier, 200)
    assert set(heirs) == set(late)
    check_owners(tier, 200, heirs)
    check_owners(tier, 100, owners)


def test_a_late_write_reads_from_slots_that_nobody_else_was_given(
    tier: TieredCache, devices: list[FaultyDevice], clock: ManualClock
) -> None:
    tier._demoter._volume(1).retire(drain=False)
    store(tier, range(20, 24))
    late = tier._books.find(keys(range(20, 24))).tolist()
    with devices[0].hang("write") as hang:
        tier._demoter._evict(tier._books.find(keys(range(20, 24))), tier._books.table.generation[late].astype("int64"))
        assert hang.entered.wait(WAIT_S)
        clock.advance(31.0)
        tier.tick()
        assert states_of(tier, late) == {BlockState.QUARANTINED}
        assert in_host(tier, range(20, 24)) == []
        owners = take_all_the_rest(tier, 100)
        assert len(owners) == 12
        tier.check()
    assert tier.idle(WAIT_S)
    check_owners(tier, 100, owners)
    heirs = take_all_the_rest(tier, 200)
    assert set(heirs) == set(late)
    push_out(tier, range(100, 112))
    assert serve(tier, range(20, 24)) == [20, 21, 22, 23]  # what was written late is what was stored


@pytest.mark.parametrize("op", ["write", "put", "sync"])
def test_a_purge_that_hangs_holds_up_only_itself(tier: TieredCache, devices: list[FaultyDevice], op: str) -> None:
    reports: list[PurgeReport] = []
    purging = threading.Thread(target=lambda: reports.append(tier.purge(Purge(tenant=ALICE.tenant))))
    with devices[0].hang(op) as hang:  # type: ignore[arg-type]
        purging.start()
        assert hang.entered.wait(WAIT_S)
        began = time.monotonic()
        assert words(tier.lookup(query([0]), SOON)) == "M"
        assert serve(tier, range(4, 8)) == [4, 5, 6, 7]
        store(tier, range(30, 34), owner=BOB)
        tier.tick()
        keep_up(tier)
        assert tier._upkeep is not None
        assert tier.summary()["flash"]
        assert time.monotonic() - began < WAIT_S / 2
        assert not reports
    purging.join(WAIT_S)
    assert [report.flash_blocks for report in reports] == [4]
    assert not tier._shared.barred
    assert on_flash(tier, range(12)) == list(range(4, 12))
    assert serve(tier, range(4, 12)) == list(range(4, 12))


def break_something(device: FaultyDevice, dice: random.Random, address_range: int) -> None:
    kind = dice.randrange(8)
    count = dice.randint(1, 6)
    if kind == 0:
        device.fail("read", count=count)
    elif kind == 1:
        device.fail("write", count=count)
    elif kind == 2:
        device.short("read", 4096, count=count)
    elif kind == 3:
        device.short("write", 4096, count=count)
    elif kind == 4:
        device.slow("read", 0.03, count=count)
    elif kind == 5:
        device.corrupt("read", dice.randrange(address_range), count=count)
    elif kind == 6:
        device.corrupt("write", dice.randrange(address_range), count=count)
    else:
        device.fail("create", count=1)


def live(tier: TieredCache, seed: int, until: float, served: list[int], failed: list[BaseException]) -> None:
    """An engine: it looks up, checks what it is given, and stores what it had to compute."""
    dice = random.Random(seed)
    try:
        while time.monotonic() < until:
            begin = dice.randrange(60) * 4
            chain = range(begin, begin + dice.randint(1, 8))
            got = serve(tier, chain)
            served.append(len(got))
            store(tier, chain[len(got) :])
    except BaseException as error:
        failed.append(error)


@pytest.mark.parametrize("seed", range(2))
def test_a_storm_of_faults_on_three_devices_serves_no_wrong_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(upkeep, "PAUSE_S", 0.02)
    devices = [FaultyDevice(MemoryDevice(path=f"nvme{number}")) for number in range(3)]
    options = {
        "read_deadline_s": 0.02, "write_deadline_s": 0.1, "max_faults": 4, "fault_window_s": 1.0, "retry_s": 0.05,
        "checkpoint_interval_s": 0.05,
    }  # fmt: skip
    tier = open_tier(
        tmp_path, slots=48, flash=devices, background=True, flash_options=options, low_watermark=0.1, high_watermark=0.2
    )
    dice, failed, served = random.Random(seed), list[BaseException](), list[int]()
    until = time.monotonic() + 2.5
    engine = threading.Thread(target=live, args=(tier, seed, until, served, failed))
    engine.start()
    while time.monotonic() < until:
        device = dice.choice(devices)
        if dice.random() < 0.1:
            with device.hang(dice.choice(["read", "write", "put"])) as hang:  # type: ignore[arg-type]
                hang.entered.wait(0.1)
        else:
            break_something(device, dice, 1 << 20)
        engine.join(0.005)
        if dice.random() < 0.05:
            device.heal()
        tier.check()
    engine.join(WAIT_S)
    for device in devices:
        device.heal()
    assert not failed, failed
    assert sum(served) > 100
    assert tier.stats.get("breaker_changes", reason="open") > 0
    assert tier.idle(WAIT_S)
    back = time.monotonic() + WAIT_S
    assert tier._shared.flash is not None
    while any(volume.state != "ok" for volume in tier._shared.flash.volumes):
        assert time.monotonic() < back
    tier.check()
    assert tier._books.counts()["quarantined"] == 0
    assert not tier.stats.get("tick_failures")
    assert not tier.stats.get("upkeep_failures")
    tier.close()
    again = open_tier(tmp_path, slots=48, flash=[device.inner for device in devices])
    for number in range(240):
        serve(again, [number])
        push_out(again, in_host(again, [number]))
    again.check()
    again.close(flush=False)

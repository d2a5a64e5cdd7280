"""Upkeep of flash: worn drives are left alone and give their blocks away; what is told of flash is true."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hifc_ray.actors.state import _tier
from hifc_ray.cli.output import to_json
from hifc_ray.clock import ManualClock
from hifc_ray.flash import FaultyDevice, MemoryDevice, volume_of
from hifc_ray.flash.address import Place, segment_number, unpack
from hifc_ray.flash.entries import entry
from hifc_ray.flash.node_filter import Summary
from hifc_ray.health.block_devices import BlockDevice, Placement
from hifc_ray.health.devices import DeviceReading
from hifc_ray.health.gpus import GpuReading
from hifc_ray.health.smart import SmartReading
from hifc_ray.health.watch import HealthWatch
from hifc_ray.messages import Purge
from hifc_ray.tiering import TieredCache, upkeep
from hifc_ray.types import NOBODY, Tier
from tests.contracts.tier_client import ALICE
from tests.fakes.blocks import OURS, SLOT_BYTES, SOON, key, keys, query, store
from tests.fakes.tier import WAIT_S, in_host, keep_up, on_flash, open_tier, push_out, serve, words

pytestmark = pytest.mark.timeout(30)

ALL = range(40)


class Drives:
    """What the drives under two directories say of their spare blocks, in percent."""

    def __init__(self) -> None:
        self.spare = {"nvme0": 100, "nvme1": 100}

    def read(self, directory: Path) -> DeviceReading:
        name = str(directory)
        smart = SmartReading(name, percentage_used=50, available_spare=self.spare[name], written_bytes=1 << 40)
        return DeviceReading(Placement(directory, disks=(BlockDevice(name),)), (smart,), 1 << 40)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def drives() -> Drives:
    return Drives()


@pytest.fixture
def devices() -> list[FaultyDevice]:
    return [FaultyDevice(MemoryDevice(path=f"nvme{number}")) for number in range(2)]


@pytest.fixture
def tier(tmp_path: Path, devices: list[FaultyDevice], drives: Drives, clock: ManualClock) -> Iterator[TieredCache]:
    """40 blocks on the first of two devices, and their drives well."""
    made = open_tier(tmp_path, slots=40, flash=devices, clock=clock)
    assert made._shared.flash is not None
    assert made._upkeep is not None
    made._upkeep._watch = HealthWatch(
        [Path(device.path) for device in devices], clock=clock, read_device=drives.read, read_gpus=GpuReading
    )
    made._shared.flash.volumes[1].retire(drain=False)
    store(made, ALL, owner=ALICE)
    push_out(made, ALL)
    made._shared.flash.volumes[1].reinstate()
    yield made
    assert made.idle(WAIT_S)
    made.check()
    made.close(flush=False)


def states(tier: TieredCache) -> list[str]:
    assert tier._shared.flash is not None
    return [volume.state for volume in tier._shared.flash.volumes]


def lie_on(tier: TieredCache, volume: int) -> list[int]:
    flash = tier._shared.flash
    assert flash is not None
    entries = flash._index.entries(flash._index.on_volume(volume))
    found = {words.tobytes() for words in entries["key"]}
    return [number for number in ALL if key(number) in found]


def written(device: FaultyDevice) -> tuple[int, ...]:
    return device.calls["write"], device.calls["put"], device.calls["create"], device.calls["sync"]


def look(tier: TieredCache, clock: ManualClock) -> None:
    clock.advance(60.0)
    keep_up(tier)


def test_a_worn_drive_gives_its_blocks_away_best_first_and_is_not_written_to(
    tier: TieredCache, devices: list[FaultyDevice], drives: Drives, clock: ManualClock
) -> None:
    keep_up(tier)
    assert states(tier) == ["ok", "ok"]
    for number in range(39, -1, -1):  # the lower its number, the later a block was asked for
        assert serve(tier, [number]) == [number]
    push_out(tier, ALL)
    before, reads = written(devices[0]), devices[0].calls["read"]
    drives.spare["nvme0"] = 3
    look(tier, clock)
    assert states(tier) == ["draining", "ok"]
    assert lie_on(tier, 1) == list(range(32))
    keep_up(tier)
    assert (lie_on(tier, 0), lie_on(tier, 1)) == ([], list(ALL))
    assert tier.stats.get("drained_blocks", tier=Tier.FLASH) == 40
    assert devices[0].calls["read"] == reads + 40
    for number in ALL:
        assert serve(tier, [number]) == [number]
    assert devices[0].calls["read"] == reads + 40  # all of it came from the other
    push_out(tier, ALL)
    store(tier, range(100, 120))
    push_out(tier, range(100, 120))
    look(tier, clock)  # checkpoints go to the other as well
    assert tier.stats.get("checkpoints") > 0
    assert written(devices[0]) == before


def test_a_drive_that_is_left_alone_is_still_purged(
    tier: TieredCache, devices: list[FaultyDevice], drives: Drives, clock: ManualClock
) -> None:
    drives.spare["nvme0"] = 3
    assert tier._shared.flash is not None
    budget = tier._shared.flash.volumes[1].budget
    budget.charge(int(budget.bytes_per_day))  # nowhere to go
    look(tier, clock)
    assert states(tier) == ["draining", "ok"]
    before = written(devices[0])
    assert serve(tier, [7]) == [7]
    assert tier.purge(Purge(tenant=ALICE.tenant)).flash_blocks == 40
    assert on_flash(tier, ALL) == []
    assert written(devices[0]) > before


def test_a_verdict_that_goes_away_gives_the_drive_back_and_events_are_told_once(
    tier: TieredCache, drives: Drives, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=upkeep.__name__)
    drives.spare["nvme0"] = 3
    for _ in range(3):
        look(tier, clock)
    assert states(tier) == ["draining", "ok"]
    drives.spare["nvme0"] = 60
    for _ in range(3):
        look(tier, clock)
    assert states(tier) == ["ok", "ok"]
    told = [(record.levelname, record.getMessage()) for record in caplog.records if "nvme0" in record.getMessage()]
    assert [level for level, _ in told] == ["WARNING", "INFO"]
    assert "3 % of its spare" in told[0][1]
    store(tier, range(100, 108))
    push_out(tier, range(100, 108))
    assert lie_on(tier, 1) == list(ALL)
    assert tier._shared.flash is not None
    found = tier._shared.flash.locate(keys(range(100, 108)))
    assert {volume_of(address) for address in found if address is not None} == {0, 1}


def test_drives_are_looked_at_no_more_often_than_they_should(
    tier: TieredCache, drives: Drives, clock: ManualClock
) -> None:
    keep_up(tier)
    drives.spare["nvme0"] = 3
    clock.advance(59.0)
    keep_up(tier)
    assert states(tier) == ["ok", "ok"]
    clock.advance(1.0)
    keep_up(tier)
    assert states(tier) == ["draining", "ok"]


def test_a_worn_drive_without_another_serves_on(tmp_path: Path, drives: Drives, clock: ManualClock) -> None:
    device = FaultyDevice(MemoryDevice(path="nvme0"))
    tier = open_tier(tmp_path, name="alone", flash=device, clock=clock)
    assert tier._upkeep is not None
    tier._upkeep._watch = HealthWatch([Path("nvme0")], clock=clock, read_device=drives.read, read_gpus=GpuReading)
    store(tier, range(8))
    push_out(tier, range(8))
    drives.spare["nvme0"] = 3
    keep_up(tier)
    reads, before = device.calls["read"], written(device)
    keep_up(tier)
    assert device.calls["read"] == reads  # nothing is read that has nowhere to go
    assert serve(tier, range(8)) == list(range(8))
    store(tier, range(8, 16))
    push_out(tier, range(8, 16))
    assert tier.stats.get("refused_bytes", tier=Tier.FLASH, reason="read-only") == 8 * SLOT_BYTES
    push_out(tier, range(8))
    device.corrupt("read", 3 * 4096, count=None)
    served = [number for number in range(8) if serve(tier, [number])]
    assert (len(served), tier.stats.get("corrupt")) == (7, 1)
    assert written(device) == before
    tier.close(flush=False)


def test_blocks_that_cannot_be_read_do_not_hold_up_a_drain(
    tier: TieredCache, devices: list[FaultyDevice], drives: Drives, clock: ManualClock
) -> None:
    drives.spare["nvme0"] = 3
    assert tier._shared.flash is not None
    address = tier._shared.flash.locate(keys([0]))[0]
    assert address is not None
    devices[0].corrupt("read", unpack(address).offset + 4096, count=None)
    for _ in range(3):
        look(tier, clock)
    assert (lie_on(tier, 0), lie_on(tier, 1)) == ([], list(range(1, 40)))
    reply = tier.lookup(query([0]), SOON)
    assert words(reply) == "M"


def test_upkeep_outlives_what_goes_wrong_in_it(tier: TieredCache, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def look(self) -> None:
            raise RuntimeError("a bug")

    assert tier._upkeep is not None
    monkeypatch.setattr(upkeep, "PAUSE_S", 0.001)
    monkeypatch.setattr(tier._upkeep, "_watch", Broken())
    tier._upkeep._next_look_s = 0.0
    tier._upkeep.start()
    while tier.stats.get("upkeep_failures", reason="RuntimeError") < 1:
        pass
    assert tier._upkeep._thread.is_alive()
    assert tier._upkeep.close(WAIT_S)


def test_the_summary_says_what_is_on_flash_and_how_it_is(tier: TieredCache, clock: ManualClock) -> None:
    look(tier, clock)
    summary: Any = tier.summary()
    flash = summary["flash"]
    assert flash["blocks"] == 40
    assert 0 < flash["used_bytes"] <= flash["limit_bytes"] == 8 << 20
    assert flash["device_written_bytes"] == tier.stats.get("device_written_bytes")
    assert 1.5 < flash["write_amplification"] < 2.0  # a page of header for two of payload, and a checkpoint
    assert flash["read_back_per_written"] == 0
    assert [device["state"] for device in flash["devices"]] == ["ok", "ok"]
    assert flash["devices"][0]["budget_bytes_per_day"] == 1 << 40
    assert flash["devices"][0]["budget_level"] == pytest.approx(1.0)
    assert flash["health"]["health_available_spare_percent"] == 100
    serve(tier, range(20))
    again: Any = tier.summary()
    assert again["flash"]["read_back_per_written"] == pytest.approx(20 * SLOT_BYTES / flash["device_written_bytes"])
    assert in_host(tier, range(20)) == list(range(20))
    printed = json.loads(to_json(_tier(again)))
    assert "data" not in printed["flash"]["filter"]
    assert printed["flash"]["devices"][1]["path"] == "nvme1"


def test_the_filter_takes_two_bytes_a_block_and_keeps_its_rate_under_churn(tier: TieredCache) -> None:
    flash, dice = tier._shared.flash, np.random.default_rng(1)
    assert flash is not None
    place = Place(segment_number(0, 1), 4096, 4096, 8192)
    probes = dice.integers(0, 1 << 64, (20_000, 4), np.uint64)
    versions = set()
    for generation in range(8):
        many = np.repeat(entry(key(0), OURS, NOBODY, 0, place), 20_000)
        many["key"] = dice.integers(0, 1 << 64, (len(many), 4), np.uint64)
        count = (20_000, 10_000, 4_000)[generation % 3]
        with flash._lock:
            flash._index.remove(flash._index.rows()[: count if generation else 0])  # as reclaim does
            flash._index.add(many[:count])
        keep_up(tier)
        told: Any = tier.summary()
        known = Summary.from_bytes(told["flash"]["filter"]["data"])
        versions.add(known.version)
        assert len(told["flash"]["filter"]["data"]) <= 2 * flash.num_blocks
        assert known.may_hold(probes).mean() <= 0.02
        assert told["flash"]["filter"]["false_positive_rate"] <= 0.03  # of 2,000 probes
        with flash._lock:
            assert known.may_hold(flash._index.key_words(flash._index.rows())).all()
    assert len(versions) == 8  # each time more than a tenth of it was dead
    with flash._lock:
        flash._index.remove(flash._index.rows())

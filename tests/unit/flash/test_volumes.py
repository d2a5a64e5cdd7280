"""A store over several directories."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest

from hifc_ray import points
from hifc_ray.clock import ManualClock
from hifc_ray.errors import ConfigError, CorruptRecord, FlashFull, ForeignFiles
from hifc_ray.flash import FaultyDevice, FileDevice, FlashStore, MemoryDevice, keys_as_words, volume_of
from hifc_ray.flash.format import segment_name
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.stats import Stats
from hifc_ray.types import Owner, Tier
from tests.fakes.flash import (
    BLOCK_BYTES,
    RECORD_BYTES,
    abandon,
    block,
    blocks,
    config,
    key,
    load,
    open_store,
    payload,
    segment_log,
    stored_numbers,
)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    for directory in found:
        directory.mkdir()
    return found


def maintain(store: FlashStore) -> None:
    """What upkeep does for each device."""
    for volume in store.volumes:
        volume.probe()
        if volume.draining:
            store.drain(volume)


def three(**capacities: int) -> list[MemoryDevice]:
    return [MemoryDevice(path=name, **capacities) for name in "abc"]


def spread(store: FlashStore, numbers: range) -> Counter[int]:
    """Blocks on each volume."""
    found = store.locate([key(number) for number in numbers])
    return Counter(volume_of(address) for address in found if address is not None)


def append_one_by_one(store: FlashStore, numbers: range) -> None:
    for number in numbers:
        store.append([block(number)])


def test_blocks_are_spread_over_all_and_found_again(directories: list[Path]) -> None:
    with open_store(directories) as store:
        append_one_by_one(store, range(90))
        counts = spread(store, range(90))
        assert len(counts) == 3
        assert max(counts.values()) - min(counts.values()) <= 21  # a segment
        assert [volume.path for volume in store.volumes] == [str(directory) for directory in directories]
        assert stored_numbers(store, range(100)) == list(range(90))
        assert store.used_bytes <= store.limit_bytes == sum(volume.log.limit_bytes for volume in store.volumes)
    with open_store(directories) as store:
        assert store.recovered.num_blocks == 90
        assert stored_numbers(store, range(100)) == list(range(90))


def test_the_emptiest_takes_most_and_each_stays_within_its_limit() -> None:
    devices = three()
    with open_store(devices) as store:
        store.append(blocks(range(60)), volume=0)
        append_one_by_one(store, range(100, 160))
        assert spread(store, range(100, 160))[0] == 0
        append_one_by_one(store, range(200, 800))
        for volume, device in zip(store.volumes, devices, strict=True):
            assert sum(device.sizes().values()) <= volume.log.used_bytes <= volume.log.limit_bytes
        assert sorted(spread(store, range(800))) == [0, 1, 2]
        assert stored_numbers(store, range(700, 800)) == list(range(700, 800))


def test_a_larger_device_has_more_of_the_limit() -> None:
    devices = [MemoryDevice(1 << 30, "small"), MemoryDevice(3 << 30, "large")]
    with open_store(devices, num_segments=12) as store:
        small, large = (volume.log.limit_bytes for volume in store.volumes)
        assert abs(3 * small - large) <= 3
        assert small + large <= config(num_segments=12, num_volumes=2).limit_bytes


def test_which_blocks_are_under_way_counts_before_which_is_emptiest() -> None:
    with open_store(three()) as store:
        assert store.draw(RECORD_BYTES, {0: 2, 1: 1, 2: 1}) == 1
        store.append([block(0)], volume=1)
        assert store.draw(RECORD_BYTES, {0: 2, 1: 1, 2: 1}) == 2
        assert store.draw(RECORD_BYTES, {0: 2, 1: 1}) == 1
        assert store.draw(RECORD_BYTES, {}) is None
        entered, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            if not entered.is_set():
                entered.set()
                assert let_go.wait(30)

        with points.at("flash.append.header", hold):
            writer = threading.Thread(target=lambda: store.append([block(1)], volume=0))
            writer.start()
            assert entered.wait(30)
            append_one_by_one(store, range(2, 8))
            let_go.set()
            writer.join(30)
        assert spread(store, range(2, 8))[0] == 0


def test_directories_may_change_their_order(directories: list[Path]) -> None:
    with open_store(directories) as store:
        append_one_by_one(store, range(60))
        store.purge(tenant=5)
    for order in ([2, 0, 1], [1, 2, 0]):
        with open_store([directories[row] for row in order]) as store:
            assert stored_numbers(store, range(70)) == list(range(60))


def test_a_directory_that_was_taken_away_costs_only_its_own_blocks(directories: list[Path]) -> None:
    with open_store(directories) as store:
        append_one_by_one(store, range(60))
        lost = {number for number in range(60) if volume_of(store.locate([key(number)])[0] or 0) == 1}  # type: ignore[arg-type]
    shutil.rmtree(directories[1])
    directories[1].mkdir()
    with open_store(directories) as store:
        assert set(stored_numbers(store, range(60))) == set(range(60)) - lost


def test_foreign_files_in_one_stop_all_and_no_lock_is_left(directories: list[Path]) -> None:
    (directories[2] / "photo.jpg").write_bytes(b"x")
    with pytest.raises(ForeignFiles, match="photo"):
        open_store(directories)
    assert not any((directory / "LOCK").exists() for directory in directories)
    (directories[2] / "photo.jpg").unlink()
    open_store(directories).close()


def test_one_directory_twice_and_more_than_there_are_numbers_for_are_refused(directories: list[Path]) -> None:
    with pytest.raises(ConfigError, match="each directory once"):
        config(directories[0], directories[0])
    with pytest.raises(ConfigError, match="allowed: at most 64"):
        open_store([MemoryDevice() for _ in range(65)])


def test_one_that_fails_is_taken_out_and_the_others_go_on() -> None:
    clock, stats = ManualClock(), Stats()
    devices = [FaultyDevice(device) for device in three()]
    with open_store(devices, stats, clock=clock, max_faults=3) as store:
        append_one_by_one(store, range(30))
        there = [number for number in range(30) if volume_of(store.locate([key(number)])[0] or 0) == 1]  # type: ignore[arg-type]
        devices[1].fail("read", count=None)
        for number in there[:3]:
            with pytest.raises(OSError, match="Input/output"):
                load(store, number)
        assert [volume.state for volume in store.volumes] == ["ok", "out", "ok"]
        others = sorted(set(range(30)) - set(there))
        assert stored_numbers(store, range(30)) == others
        append_one_by_one(store, range(30, 50))
        assert spread(store, range(30, 50))[1] == 0
        maintain(store)
        assert store.volumes[1].state == "out"
        devices[1].heal()
        maintain(store)
        assert store.volumes[1].state == "out"  # not tried again yet
        clock.advance(31)
        maintain(store)
        assert store.volumes[1].state == "ok"
        assert stored_numbers(store, range(50)) == list(range(50))
        assert stats.get("breaker_changes", tier=Tier.FLASH, reason="open") == 1


def test_one_that_holds_nothing_yet_is_tried_again_too() -> None:
    clock = ManualClock()
    devices = [FaultyDevice(device) for device in three()]
    with open_store(devices, clock=clock, max_faults=2) as store:
        devices[0].fail("create", count=None)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                store.append([block(0)], volume=0)
        assert store.volumes[0].state == "out"
        clock.advance(31)
        maintain(store)
        assert store.volumes[0].state == "out"
        devices[0].heal()
        clock.advance(120)
        maintain(store)
        assert store.volumes[0].state == "ok"
        store.append([block(0)], volume=0)
        assert load(store, 0) == payload(0)


def test_what_is_stored_elsewhere_while_its_device_is_out_is_served_from_there() -> None:
    clock = ManualClock()
    devices = three()
    with open_store(devices, clock=clock, max_faults=1) as store:
        store.append([block(0)], volume=0)
        store.volumes[0].stalled()
        assert store.locate([key(0)]) == [None]
        (address,) = store.append([block(0)])
        assert volume_of(address) != 0
        assert load(store, 0) == payload(0)
        assert store.num_blocks == 1
    with open_store(devices) as store:
        assert store.num_blocks == 1
        assert load(store, 0) == payload(0)


def test_all_out_says_so() -> None:
    with open_store(three(), max_faults=1) as store:
        for volume in store.volumes:
            volume.stalled()
        with pytest.raises(FlashFull, match="no device takes blocks now: out"):
            store.append([block(0)])
        assert store.budget_level == 0.0


def test_a_budget_is_drawn_from_the_device_that_has_some() -> None:
    clock, day = ManualClock(), PAGE_BYTES + 10 * RECORD_BYTES  # a segment begins with a page
    with open_store(three(), clock=clock, write_bytes_per_day=day) as store:
        for number in range(30):
            volume = store.draw(RECORD_BYTES)
            assert volume is not None, number
            store.append([block(number)], volume=volume)
        assert store.draw(RECORD_BYTES) is None
        assert store.why_not() == "budget"
        assert stored_numbers(store, range(30)) == list(range(30))


def drained(store: FlashStore, volume: int, numbers: range) -> None:
    for _ in range(20):
        maintain(store)
        if not spread(store, numbers)[volume]:
            return
    raise AssertionError(f"{spread(store, numbers)[volume]} blocks are left on volume {volume}")


def test_one_that_drains_gives_its_blocks_to_the_others_the_best_first() -> None:
    devices = three()
    with open_store(devices, num_segments=12) as store:
        store.append(blocks(range(40)), volume=0)
        store.append(blocks(range(40, 80)), volume=1)
        store.look_up(keys_as_words([key(number) for number in range(35, 40)]), 3)
        store.volumes[0].retire(drain=True)
        maintain(store)
        assert spread(store, range(35, 40))[0] == 0
        drained(store, 0, range(40))
        assert stored_numbers(store, range(80)) == list(range(80))
        append_one_by_one(store, range(80, 100))
        assert spread(store, range(80, 100))[0] == 0
        with pytest.raises(FlashFull, match="draining"):
            store.append([block(100)], volume=0)
    with open_store(devices, num_segments=12) as store:  # some lie on two volumes now
        assert store.num_blocks == 100
        assert stored_numbers(store, range(110)) == list(range(100))


def test_a_record_that_does_not_hold_does_not_stop_a_drain() -> None:
    devices, stats = three(), Stats()
    with open_store(devices, stats, num_segments=12) as store:
        store.append(blocks(range(40)), volume=0)
        for row in range(0, 20, 2):
            devices[0].files[segment_name(1)][4096 + row * RECORD_BYTES + 5000] ^= 1
        store.volumes[0].retire(drain=True)
        drained(store, 0, range(40))
        assert stored_numbers(store, range(40)) == [number for number in range(40) if number % 2 or number >= 20]


def test_a_drain_with_nowhere_to_go_keeps_serving() -> None:
    with open_store(three()) as store:
        append_one_by_one(store, range(30))
        for volume in store.volumes:
            volume.retire(drain=True)
        for _ in range(5):
            maintain(store)
        assert stored_numbers(store, range(30)) == list(range(30))


@pytest.mark.parametrize("point", ["flash.append.header", "flash.append.part", "flash.append.written"])
def test_a_block_on_two_volumes_after_a_kill_in_a_drain_is_served_once(point: str) -> None:
    devices = three()
    store = open_store(devices)
    store.append([block(number, owner=Owner(3, 4)) for number in range(10)], volume=0)
    store.volumes[0].retire(drain=True)

    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    with points.at(point, die), pytest.raises(Killed):
        maintain(store)
    abandon(store)
    with open_store(devices) as again:
        assert again.num_blocks == 10
        assert stored_numbers(again, range(10)) == list(range(10))
        assert again.purge(tenant=3)[0] == 10
    with open_store(list(reversed(devices))) as again:
        assert stored_numbers(again, range(10)) == []


def test_a_damaged_segment_on_one_costs_the_others_nothing() -> None:
    devices = three()
    with open_store(devices) as store:
        append_one_by_one(store, range(30))
        lost = {number for number in range(30) if volume_of(store.locate([key(number)])[0] or 0) == 2}  # type: ignore[arg-type]
    devices[2].files[segment_name(1)][0] ^= 1
    with open_store(devices) as store:
        assert set(stored_numbers(store, range(30))) == set(range(30)) - lost


def test_a_directory_may_be_read_by_who_may_not_write(directories: list[Path]) -> None:
    with open_store(directories) as store:
        append_one_by_one(store, range(30))
    before = {path: path.read_bytes() for directory in directories for path in directory.iterdir()}
    with open_store(directories, read_only=True) as store:
        assert stored_numbers(store, range(30)) == list(range(30))
        with pytest.raises(FlashFull, match="read-only"):
            store.append([block(99)])
        with pytest.raises(OSError, match="Read-only"):
            store.purge(tenant=0)
        other = open_store(directories, read_only=True)  # readers share
        other.close()
    assert {path: path.read_bytes() for directory in directories for path in directory.iterdir()} == before


def test_a_faulty_record_is_noted_on_its_own_device() -> None:
    devices = three()
    with open_store(devices) as store:
        (address,) = store.append([block(0)], volume=2)
        devices[2].files[segment_name(1)][9000] ^= 1
        with pytest.raises(CorruptRecord):
            load(store, 0)
        assert [len(volume.quarantine.all()) for volume in store.volumes] == [0, 0, 1]
        assert volume_of(address) == 2


def test_the_segments_of_each_are_its_own(directories: list[Path]) -> None:
    with open_store(directories) as store:
        for volume in range(3):
            store.append(blocks(range(100 * volume, 100 * volume + 25)), volume=volume)
        numbers = [[segment.sequence for segment in segment_log(store, volume).segments] for volume in range(3)]
        assert numbers == [[1, 2]] * 3
        assert isinstance(store.volumes[0].device, FileDevice)
        assert stored_numbers(store, range(300)) == [n for n in range(300) if n % 100 < 25]
        assert store.segment_bytes > BLOCK_BYTES

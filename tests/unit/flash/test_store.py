from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from hifc_ray import points
from hifc_ray.clock import ManualClock
from hifc_ray.errors import ConfigError, FlashFull, StaleAddress
from hifc_ray.flash import FaultyDevice, FlashStore, MemoryDevice
from hifc_ray.flash.device import pages
from hifc_ray.stats import Stats
from hifc_ray.types import Fate, Tier
from tests.fakes.flash import (
    BLOCK_BYTES,
    OURS,
    RECORD_BYTES,
    SEGMENT_BYTES,
    THEIRS,
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


def occupied_bytes(directory: Path) -> int:
    return sum(max(stat.st_size, stat.st_blocks * 512) for stat in (path.stat() for path in directory.iterdir()))


def test_what_is_stored_is_what_is_read(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        addresses = store.append(blocks(range(7)))
        assert store.locate([key(number) for number in range(7)]) == addresses
        assert stored_numbers(store, range(9)) == list(range(7))
        assert store.num_blocks == 7
        assert store.namespaces() == {OURS: 7}
        assert key(3) in store
        assert key(8) not in store


def test_a_longer_buffer_keeps_its_rest(tmp_path: Path) -> None:
    out = pages(BLOCK_BYTES + 4096)
    with open_store(tmp_path) as store:
        (address,) = store.append([block(1)])
        assert store.read(key(1), OURS, address, out) == BLOCK_BYTES
    assert bytes(out) == payload(1) + bytes(4096)


def test_a_buffer_that_is_too_short_is_refused() -> None:
    with open_store(MemoryDevice()) as store:
        (address,) = store.append([block(1)])
        with pytest.raises(ValueError, match=str(BLOCK_BYTES)):
            store.read(key(1), OURS, address, pages(BLOCK_BYTES - 4096))


def test_a_key_is_written_once() -> None:
    stats = Stats()
    with open_store(MemoryDevice(), stats) as store:
        (first,) = store.append([block(1)])
        assert store.append([block(1), block(2), block(2)])[0] == first
        assert store.num_blocks == 2
        assert stats.get("blocks_stored", tier=Tier.FLASH) == 2


def test_a_batch_larger_than_a_segment_goes_into_several() -> None:
    with open_store(MemoryDevice()) as store:
        store.append(blocks(range(50)))
        assert store.num_segments == 3
        assert stored_numbers(store, range(50)) == list(range(50))


def test_blocks_that_fit_go_to_the_device_in_one_write() -> None:
    device = FaultyDevice(MemoryDevice())
    with open_store(device) as store:
        store.append([block(0)])
        before = device.calls["write"]
        store.append(blocks(range(1, 15)))
        assert device.calls["write"] == before + 1


def test_each_byte_and_block_is_counted() -> None:
    stats = Stats()
    with open_store(MemoryDevice(), stats) as store:
        store.append(blocks(range(3)))
        assert load(store, 1) == payload(1)
    counts = {name: stats.get(name, tier=Tier.FLASH) for name in ("stored_bytes", "blocks_loaded", "loaded_bytes")}
    assert counts == {"stored_bytes": 3 * BLOCK_BYTES, "blocks_loaded": 1, "loaded_bytes": BLOCK_BYTES}
    assert stats.get("device_written_bytes", tier=Tier.FLASH) > 3 * RECORD_BYTES + 4096


def test_seconds_are_those_of_the_clock() -> None:
    clock, stats = ManualClock(), Stats()
    store = FlashStore(config(), BLOCK_BYTES, stats, devices=[MemoryDevice()], clock=clock)
    with points.at("flash.append.written", lambda: clock.advance(2.0)):
        store.append([block(1)])
    with points.at("flash.read.done", lambda: clock.advance(3.0)):
        load(store, 1)
    assert stats.get("write_s", tier=Tier.FLASH) == 2.0
    assert stats.get("read_s", tier=Tier.FLASH) == 3.0
    store.close()


def test_a_long_run_stays_within_the_limit(tmp_path: Path) -> None:
    limit = config(tmp_path).limit_bytes
    seen = []

    def measure() -> None:
        seen.append(occupied_bytes(tmp_path))
        assert seen[-1] <= limit

    names = (
        "flash.append.header",
        "flash.append.written",
        "flash.hint.tmp",
        "flash.drop.before",
        "flash.drop.hint",
        "flash.drop.index",
        "flash.seal.footer",
        "flash.seal.synced",
        "flash.reclaim.before",
        "flash.reclaim.carried",
        "flash.append.part",
    )
    with open_store(tmp_path) as store:
        with ExitStack() as hooks:
            for name in names:
                hooks.enter_context(points.at(name, measure))
            for number in range(0, 400, 4):
                store.append(blocks(range(number, number + 4)))
                assert occupied_bytes(tmp_path) <= store.used_bytes <= limit
        assert stored_numbers(store, range(395, 400)) == [395, 396, 397, 398, 399]
    assert occupied_bytes(tmp_path) <= limit
    assert max(seen) > limit // 2


def test_the_oldest_segment_goes_whole_and_its_keys_say_why() -> None:
    stats = Stats()
    with open_store(MemoryDevice(), stats) as store:
        (address, *_) = store.append(blocks(range(20)))
        store.append(blocks(range(20, 121)))
        assert stored_numbers(store, range(121)) == list(range(20, 121))
        assert {store.fate(key(number)) for number in range(20)} == {Fate.DROPPED}
        assert store.fate(key(20)) is None
        assert stats.get("dropped_blocks", tier=Tier.FLASH) == 20
        assert stats.get("dropped_segments", tier=Tier.FLASH) == 1
        with pytest.raises(StaleAddress):
            store.read(key(0), OURS, address, pages(BLOCK_BYTES))


def test_a_dropped_block_may_be_stored_again() -> None:
    with open_store(MemoryDevice()) as store:
        store.append(blocks(range(121)))
        store.append([block(0)])
        assert load(store, 0) == payload(0)
        assert store.fate(key(0)) is None


def test_blocks_of_a_namespace_that_nobody_uses_go_first() -> None:
    with open_store(MemoryDevice()) as store:
        store.append(blocks(range(20)))
        store.append(blocks(range(20), THEIRS))
        store.append(blocks(range(20, 100)))
        store.set_live_namespaces([OURS])
        store.append([block(100)])
        assert store.namespaces() == {OURS: 101}
        store.append(blocks(range(101, 121)))
        assert stored_numbers(store, range(121)) == list(range(20, 121))


def test_reading_a_namespace_makes_it_live() -> None:
    with open_store(MemoryDevice()) as store:
        store.append(blocks(range(20)))
        store.append(blocks(range(20), THEIRS))
        store.append(blocks(range(20, 100)))
        store.set_live_namespaces([OURS])
        load(store, 0, THEIRS)
        store.append([block(100)])
        assert store.namespaces() == {OURS: 81, THEIRS: 20}


def test_a_segment_that_is_being_read_is_passed_over(tmp_path: Path) -> None:
    """Its bytes would stay on the disk until the read ends, and the limit would not hold."""
    with open_store(tmp_path) as store:
        store.append(blocks(range(100)))
        in_read, go_on, got = threading.Event(), threading.Event(), []

        def hold() -> None:
            in_read.set()
            assert go_on.wait(30)

        with points.at("flash.read.before", hold):
            reader = threading.Thread(target=lambda: got.append(load(store, 0)))
            reader.start()
            assert in_read.wait(30)
            store.append(blocks(range(100, 125)))
            go_on.set()
            reader.join(30)
        assert got == [payload(0)]
        assert stored_numbers(store, range(125)) == [*range(20), *range(40, 125)]
        store.append(blocks(range(125, 145)))
        assert load(store, 0) is None


def test_where_every_segment_is_being_read_a_store_is_refused_and_works_later() -> None:
    stats = Stats()
    with open_store(MemoryDevice(), stats) as store:
        store.append(blocks(range(120)))
        held = [segment_log(store).acquire(sequence) for sequence in range(1, 7)]
        store.append(blocks(range(120, 140)))  # into the one that was kept free
        held.append(segment_log(store).acquire(7))
        with pytest.raises(FlashFull, match="do not fit"):
            store.append([block(140)])
        assert store.used_bytes <= store.limit_bytes
        assert stats.get("write_refused", tier=Tier.FLASH, reason="full") == 1
        assert stored_numbers(store, range(141)) == list(range(140))
        for segment in held:
            segment_log(store).release(segment)
        store.append([block(140)])
        assert stored_numbers(store, range(141)) == list(range(40, 141))


def test_a_read_in_flight_while_the_store_closes_still_gets_its_bytes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    (address,) = store.append([block(1)])
    out = pages(BLOCK_BYTES)
    with points.at("flash.read.before", store.close):
        assert store.read(key(1), OURS, address, out) == BLOCK_BYTES
    assert bytes(out) == payload(1)
    with pytest.raises(StaleAddress):
        store.read(key(1), OURS, address, out)


def test_a_closed_store_takes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.close()
    store.close()
    with pytest.raises(FlashFull, match="closed"):
        store.append([block(1)])


def test_a_seal_says_whether_everything_is_durable() -> None:
    said: list[bool] = []
    with open_store(MemoryDevice(), write_deadline_s=0.05) as store:
        with points.at("flash.append.header", lambda: said.append(store.seal())):
            store.append([block(1)])
        assert (said, store.seal()) == ([False], True)


def test_close_does_not_wait_for_ever_for_a_write_that_hangs() -> None:
    device = MemoryDevice()
    store = open_store(device, write_deadline_s=0.05)
    with points.at("flash.append.header", store.close):
        store.append([block(1)])
    assert load(store, 1) == payload(1)
    store.close()
    assert open_store(device).num_blocks == 1


def test_several_threads_append_and_read_at_once() -> None:
    with open_store(MemoryDevice()) as store:
        wrong: list[object] = []

        def work(first: int) -> None:
            for number in range(first, first + 25):
                store.append([block(number)])
                data = load(store, number)
                if data != payload(number):
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(25 * row,)) for row in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong
        assert stored_numbers(store, range(100)) == list(range(100))


def test_nothing_is_visible_before_it_is_written() -> None:
    with open_store(MemoryDevice()) as store:
        seen = []
        with points.at("flash.append.written", lambda: seen.append(key(1) in store)):
            store.append([block(1)])
        assert seen == [False]
        assert key(1) in store


def test_a_record_that_no_segment_can_hold_is_refused() -> None:
    with open_store(MemoryDevice()) as store:
        huge = replace(block(1), num_stripes=SEGMENT_BYTES // 4096, buffer=pages(SEGMENT_BYTES))
        with pytest.raises(FlashFull, match="record of"):
            store.append([huge])


def test_no_directory_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"flash.directories is empty; allowed"):
        FlashStore(config(), BLOCK_BYTES, Stats())


def test_seal_does_not_wait_for_ever_for_a_segment_that_hangs_as_it_begins() -> None:
    device = FaultyDevice(MemoryDevice())
    store = FlashStore(config(write_deadline_s=0.05), BLOCK_BYTES, Stats(), devices=[device])
    with device.hang("write") as held:
        thread = threading.Thread(target=store.append, args=([block(1)],))
        thread.start()
        assert held.entered.wait(10)
        assert not store.seal()
    thread.join(10)
    assert store.seal()
    store.close()

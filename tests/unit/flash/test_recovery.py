from __future__ import annotations

import stat
from pathlib import Path

from hifc_ray.flash import FaultyDevice, FlashStore, MemoryDevice
from hifc_ray.flash.format import hint_name, segment_name
from hifc_ray.stats import Stats
from hifc_ray.types import Tier
from tests.fakes.flash import (
    BLOCK_BYTES,
    OURS,
    RECORD_BYTES,
    THEIRS,
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


def test_a_closed_store_comes_back_from_its_hints(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.append(blocks(range(50)))
    stats = Stats()
    with open_store(tmp_path, stats) as store:
        found = store.recovered
        assert (found.num_segments, found.num_hinted, found.num_scanned, found.num_cut) == (3, 3, 0, 0)
        assert found.num_blocks == stats.get("recovered_blocks", tier=Tier.FLASH) == 50
        assert stored_numbers(store, range(50)) == list(range(50))


def test_an_abandoned_store_comes_back_by_a_scan_of_its_tail(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(blocks(range(20)))
    store.append(blocks(range(20, 25)))
    abandon(store)
    with open_store(tmp_path) as store:
        found = store.recovered
        assert (found.num_hinted, found.num_scanned, found.num_cut, found.cut_bytes) == (1, 1, 0, 0)
        assert stored_numbers(store, range(30)) == list(range(25))


def test_a_scanned_segment_gets_a_hint_and_gives_its_rest_back(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(blocks(range(5)))
    abandon(store)
    abandon(open_store(tmp_path))
    assert (tmp_path / segment_name(1)).stat().st_size == 4096 + 5 * RECORD_BYTES + 4096  # its filter
    with open_store(tmp_path) as store:
        assert (store.recovered.num_hinted, store.recovered.num_scanned) == (1, 0)
        assert stored_numbers(store, range(5)) == list(range(5))


def test_many_restarts_with_few_blocks_each_lose_none(tmp_path: Path) -> None:
    for number in range(12):
        with open_store(tmp_path) as store:
            store.append([block(number)])
    with open_store(tmp_path) as store:
        assert stored_numbers(store, range(12)) == list(range(12))


def test_a_store_that_took_nothing_leaves_no_segment(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    store = open_store(tmp_path)
    segment_log(store).begin()
    abandon(store)
    with open_store(tmp_path) as store:
        assert store.recovered.num_segments == 0
    assert [path.name for path in tmp_path.iterdir()] == ["LOCK"]


def test_leftovers_of_ours_are_removed(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.append([block(1)])
    (tmp_path / (hint_name(1) + ".tmp")).write_bytes(b"half")
    (tmp_path / hint_name(7)).write_bytes(b"hint without a segment")
    (tmp_path / segment_name(8)).write_bytes(bytes(8192))  # preallocated, never begun
    with open_store(tmp_path) as store:
        assert store.recovered.num_removed == 3
        assert stored_numbers(store, [1]) == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [hint_name(1), segment_name(1), "LOCK"]


def test_the_newer_of_two_records_of_a_key_is_served() -> None:
    """A block that failed verification is stored again; after a restart the bad one must not come back."""
    device = MemoryDevice()
    store = open_store(device)
    store.append([block(1)])
    store.seal()
    store._forget(key(1), store.locate([key(1)])[0], "test")  # type: ignore[arg-type]
    store.append([block(1, salt=5)])
    store.close()
    with open_store(device) as store:
        assert load(store, 1) == payload(1, salt=5)


def test_new_segments_are_numbered_after_the_old(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.append(blocks(range(25)))
    with open_store(tmp_path) as store:
        store.append(blocks(range(25, 30)))
    with open_store(tmp_path) as store:
        assert stored_numbers(store, range(30)) == list(range(30))
    assert (tmp_path / segment_name(3)).exists()


def test_a_smaller_limit_drops_the_oldest_at_the_start(tmp_path: Path) -> None:
    with open_store(tmp_path, num_segments=10) as store:
        store.append(blocks(range(190)))
    with open_store(tmp_path, num_segments=5) as store:
        assert store.used_bytes <= store.limit_bytes
        kept = stored_numbers(store, range(190))
        assert kept
        assert kept == list(range(kept[0], 190))


def test_another_block_size_finds_what_was_stored_with_the_old_one(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.append(blocks(range(5)))
    settings = config(tmp_path, num_segments=12, segment_bytes=0)
    with FlashStore(settings, 2 * BLOCK_BYTES, Stats()) as store:
        assert stored_numbers(store, range(5)) == list(range(5))


def test_namespaces_come_back(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.append(blocks(range(3)))
        store.append(blocks(range(2), THEIRS))
    with open_store(tmp_path) as store:
        assert store.namespaces() == {OURS: 3, THEIRS: 2}


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.append(blocks(range(25)))
        store.seal()
        modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {0o600}


def test_a_hint_that_cannot_be_written_costs_a_scan_and_no_block() -> None:
    stats, memory = Stats(), MemoryDevice()
    device = FaultyDevice(memory)
    device.fail("put", count=None)
    store = open_store(device, stats)
    store.append(blocks(range(25)))
    assert stats.get("write_refused", tier=Tier.FLASH, reason="hint") == 1
    assert stored_numbers(store, range(25)) == list(range(25))
    store.close()
    with open_store(memory) as store:
        assert store.recovered.num_scanned == 2
        assert stored_numbers(store, range(25)) == list(range(25))

from __future__ import annotations

import json

import pytest

from hifc_ray.flash import FaultyDevice, MemoryDevice
from hifc_ray.flash.address import Place
from hifc_ray.flash.entries import EntryArray, entry, join_rows
from hifc_ray.flash.format import PURGES_NAME, hint_name, segment_name
from hifc_ray.flash.purges import Purges, Selector
from hifc_ray.stats import Stats
from hifc_ray.types import Namespace, Owner, Tier
from tests.fakes.flash import (
    OURS,
    RECORD_BYTES,
    THEIRS,
    abandon,
    block,
    blocks,
    key,
    load,
    open_store,
    payload,
    segment_log,
    stored_numbers,
)

pytestmark = pytest.mark.timeout(60)

ANNA, BERT = Owner(1, 11), Owner(2**64 - 1, 22)


def rows(*owners: Owner, namespace: Namespace = OURS) -> EntryArray:
    place = Place(1, 4096, 4096, 4096)
    return join_rows([entry(key(n), namespace, owner, 0, place) for n, owner in enumerate(owners)])


def kept(purges: Purges, entries: EntryArray, sequence: int) -> int:
    return len(purges.kept(entries, sequence))


def test_a_purge_speaks_of_the_segments_up_to_its_time() -> None:
    purges = Purges(MemoryDevice())
    purges.add(Selector(tenant=ANNA.tenant), 5, 1)
    found = rows(ANNA, BERT)
    assert [kept(purges, found, sequence) for sequence in (1, 5, 6)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        (Selector(tenant=1), 2),
        (Selector(session=22), 1),
        (Selector(tenant=1, session=22), 3),
        (Selector(namespace=OURS), 0),
        (Selector(namespace=THEIRS), 3),
        (Selector(tenant=2**64 - 1, session=22, namespace=OURS), 1),
        (Selector(), 3),
    ],
)
def test_a_selector_means_what_has_all_that_it_names(selector: Selector, left: int) -> None:
    purges = Purges(MemoryDevice())
    purges.add(selector, 5, 1)
    assert kept(purges, rows(ANNA, BERT, BERT), 3) == left


def test_the_file_says_the_same_after_a_restart() -> None:
    device = MemoryDevice()
    first = Purges(device)
    first.add(Selector(BERT.tenant, None, OURS), 4, 1)
    device.put(PURGES_NAME, first.add(Selector(session=ANNA.session), 6, 1))
    second = Purges(device)
    assert second.load()
    assert second.last_sequence == 6
    assert [kept(second, rows(ANNA, BERT), sequence) for sequence in (4, 5, 7)] == [0, 1, 2]


def test_purges_whose_segments_are_gone_are_forgotten() -> None:
    purges = Purges(MemoryDevice())
    for sequence in range(1, 100):
        data = purges.add(Selector(tenant=sequence), sequence, oldest_sequence=sequence - 2)
    assert len(json.loads(json.loads(data)["purges"])) == 3


def test_the_same_purge_again_is_kept_once() -> None:
    purges = Purges(MemoryDevice())
    purges.add(Selector(tenant=1), 3, 1)
    data = purges.add(Selector(tenant=1), 8, 1)
    assert len(json.loads(json.loads(data)["purges"])) == 1
    assert kept(purges, rows(ANNA), 8) == 0


def test_every_flipped_bit_makes_everything_count_as_purged() -> None:
    device = MemoryDevice()
    device.put(PURGES_NAME, Purges(device).add(Selector(7, 8, THEIRS), 4, 1))
    data = device.files[PURGES_NAME]
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        purges = Purges(device)
        if not purges.load():
            assert kept(purges, rows(ANNA, BERT), 10**6) == 0
        else:  # a letter of a name that JSON may spell in two ways, or a blank
            assert kept(purges, rows(ANNA, BERT), 4) == 2
            assert kept(purges, rows(Owner(7, 8), namespace=THEIRS), 4) == 0
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"purges": 1, "checksum": 2}', b"null", b"\xff\xfe", b"[" * 99_999]
)
def test_a_damaged_file_costs_what_was_stored_before_and_nothing_later(data: bytes) -> None:
    device, stats = MemoryDevice(), Stats()
    with open_store(device) as store:
        store.append(blocks(range(30)))
        store.purge(tenant=1)
    device.files[PURGES_NAME] = bytearray(data)
    with open_store(device, stats) as store:
        assert stats.get("corrupt", tier=Tier.FLASH, reason="purges") == 1
        assert (store.num_blocks, store.num_segments) == (0, 0)
        store.append(blocks(range(20, 40)))
    with open_store(device) as store:
        assert stored_numbers(store, range(50)) == list(range(20, 40))


def test_a_file_that_cannot_be_read_counts_as_damaged() -> None:
    memory = MemoryDevice()
    with open_store(memory) as store:
        store.append(blocks(range(30)))
        store.purge(tenant=1)
    device = FaultyDevice(memory)
    device.fail("get", after=1)  # the first is for the faults of former runs
    with open_store(device) as store:
        assert store.num_blocks == 0


def fill(device: MemoryDevice) -> None:
    """Sixty blocks of ANNA and BERT in turn, in three segments, the last of them open, and the process dies."""
    store = open_store(device)
    store.append([block(number, owner=(ANNA, BERT)[number % 2]) for number in range(50)])
    store.purge(tenant=ANNA.tenant)
    abandon(store)


@pytest.mark.parametrize("without_hints", [False, True])
def test_purged_records_are_found_neither_by_hints_nor_by_scans(without_hints: bool) -> None:
    device = MemoryDevice()
    fill(device)
    if without_hints:
        for sequence in (1, 2, 3):
            device.delete(hint_name(sequence))
    with open_store(device) as store:
        assert store.recovered.num_scanned == (3 if without_hints else 0)
        assert stored_numbers(store, range(60)) == list(range(1, 50, 2))


@pytest.mark.parametrize("without_hints", [False, True])
def test_a_copy_that_lies_on_flash_still_is_not_found(without_hints: bool) -> None:
    """As after a kill between the note of a purge and its erasure."""
    device = MemoryDevice()
    store = open_store(device)
    store.append([block(number, owner=(ANNA, BERT)[number % 2]) for number in range(50)])
    store.seal()
    before = {name: bytearray(data) for name, data in device.files.items()}
    store.purge(tenant=ANNA.tenant)
    abandon(store)
    device.files |= before
    if without_hints:
        for sequence in (1, 2, 3):
            device.delete(hint_name(sequence))
    with open_store(device) as store:
        assert stored_numbers(store, range(60)) == list(range(1, 50, 2))


def test_what_is_stored_again_under_the_same_tags_is_served_after_any_number_of_restarts() -> None:
    device = MemoryDevice()
    fill(device)
    for start in range(3):
        with open_store(device) as store:
            store.append([block(number, owner=ANNA) for number in range(100 + start, 103 + start)])
            assert load(store, 100) == payload(100)
    with open_store(device) as store:
        assert stored_numbers(store, range(110)) == [*range(1, 50, 2), *range(100, 105)]


def test_numbers_of_segments_go_on_where_a_purge_left_nothing() -> None:
    """Were they to begin anew, what comes next would lie in segments that the purge speaks of."""
    device = MemoryDevice()
    with open_store(device) as store:
        store.append([block(number, owner=ANNA) for number in range(50)])
        store.purge(tenant=ANNA.tenant)
        for segment in segment_log(store).segments:
            segment_log(store).drop(segment)
    with open_store(device) as store:
        store.append([block(number, owner=ANNA) for number in range(5)])
    with open_store(device) as store:
        assert stored_numbers(store, range(50)) == list(range(5))


def test_a_purge_that_could_not_erase_is_made_good_by_the_next() -> None:
    memory = MemoryDevice()
    device = FaultyDevice(memory)
    with open_store(device) as store:
        store.append([block(number, owner=ANNA) for number in range(10)])
        store.seal()
        device.fail("write", after=3)
        with pytest.raises(OSError, match="Input/output"):
            store.purge(tenant=ANNA.tenant)
        assert store.num_blocks == 0
        assert store.purge(tenant=ANNA.tenant) == (0, 0)
        data = bytes(memory.files[segment_name(1)])
        assert not any(data[4096 : 4096 + 10 * RECORD_BYTES])


def test_a_purge_that_cannot_be_noted_says_so_and_serves_nothing_meanwhile() -> None:
    device = FaultyDevice(MemoryDevice())
    with open_store(device) as store:
        store.append([block(number, owner=ANNA) for number in range(10)])
        device.fail("put")
        with pytest.raises(OSError, match="Input/output"):
            store.purge(tenant=ANNA.tenant)
        assert stored_numbers(store, range(10)) == []
        store.purge(tenant=ANNA.tenant)
    with open_store(device) as store:
        assert stored_numbers(store, range(10)) == []

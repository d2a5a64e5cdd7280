from __future__ import annotations

import gc
import tracemalloc

import pytest

from hifc_ray.flash import index as index_module
from hifc_ray.flash.address import Address, Place, pack
from hifc_ray.flash.index import Entry, Index
from hifc_ray.types import Fate, Key, Namespace
from tests.fakes.flash import OURS, THEIRS, key


def at(segment: int, row: int) -> Address:
    return pack(Place(segment, 4096 * (1 + 4 * row), 4096, 12288))


def entry(number: int, segment: int, row: int, namespace: Namespace = OURS) -> Entry:
    return Entry(key(number), namespace, at(segment, row))


def test_locate_answers_each_key_in_order() -> None:
    index = Index()
    index.add([entry(1, 1, 0), entry(2, 1, 1)])
    assert index.locate([key(2), key(9), key(1)]) == [at(1, 1), None, at(1, 0)]
    assert key(1) in index
    assert key(9) not in index


def test_dropping_a_segment_forgets_its_keys_and_no_others() -> None:
    index = Index()
    index.add([entry(1, 1, 0), entry(2, 1, 1), entry(3, 2, 0)])
    assert index.drop_segment(1) == 2
    assert index.locate([key(1), key(2), key(3)]) == [None, None, at(2, 0)]
    assert index.fate(key(1)) is Fate.DROPPED
    assert index.fate(key(3)) is None


def test_a_key_that_moved_does_not_leave_with_its_old_segment() -> None:
    index = Index()
    index.add([entry(1, 1, 0)])
    index.add([entry(1, 2, 0)])
    assert index.drop_segment(1) == 0
    assert index.locate([key(1)]) == [at(2, 0)]
    assert len(index) == 1


def test_remove_spares_a_key_that_has_moved_meanwhile() -> None:
    index = Index()
    index.add([entry(1, 2, 0)])
    assert not index.remove(key(1), at(1, 0), Fate.CORRUPT)
    assert index.remove(key(1), at(2, 0), Fate.CORRUPT)
    assert index.fate(key(1)) is Fate.CORRUPT
    assert index.entries(2) == []


def test_a_key_that_came_back_has_no_fate() -> None:
    index = Index()
    index.add([entry(1, 1, 0)])
    index.drop_segment(1)
    index.add([entry(1, 2, 0)])
    assert index.fate(key(1)) is None


def test_only_so_many_fates_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MAX_FATES", 3)
    index = Index()
    index.add(entry(number, 1, number) for number in range(5))
    index.drop_segment(1)
    assert [index.fate(key(number)) for number in range(5)] == [None, None] + [Fate.DROPPED] * 3


def test_namespaces_are_counted_and_told_apart() -> None:
    index = Index()
    index.add([entry(1, 1, 0), entry(2, 1, 1, THEIRS), entry(3, 2, 0, THEIRS)])
    assert index.namespaces() == {OURS: 1, THEIRS: 2}
    assert index.all_foreign(2, {OURS})
    assert not index.all_foreign(1, {OURS})
    index.remove(key(1), at(1, 0))
    assert index.all_foreign(1, {OURS})
    assert index.namespaces() == {THEIRS: 2}


def test_a_block_costs_at_most_200_bytes() -> None:
    num_blocks = 30_000
    gc.collect()
    tracemalloc.start()
    index = Index()
    rows = ((number, 1 + number // 1000, number % 1000) for number in range(num_blocks))
    index.add(Entry(Key(number.to_bytes(32, "little")), OURS, at(segment, row)) for number, segment, row in rows)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index) == num_blocks
    assert used / num_blocks <= 200


def test_entries_come_in_the_order_of_their_addresses() -> None:
    index = Index()
    index.add([entry(3, 1, 2), entry(1, 1, 0, THEIRS), entry(2, 1, 1)])
    assert [e.key for e in index.entries(1)] == [key(1), key(2), key(3)]

from __future__ import annotations

import numpy as np
import pytest

from hifc_ray.flash import index as index_module
from hifc_ray.flash.address import Address, Place, pack, segment_number
from hifc_ray.flash.entries import ENTRY, EntryArray, addresses, entry, join_rows, keys_as_words
from hifc_ray.flash.index import Index
from hifc_ray.flash.key_table import NO_ROW
from hifc_ray.types import NOBODY, Fate, Key, Namespace, Owner
from tests.fakes.flash import OURS, THEIRS, key

RECORD = 4 * 4096


def place(segment: int, row: int) -> Place:
    return Place(segment, 4096 + RECORD * row, 4096, RECORD - 4096)


def at(segment: int, row: int) -> Address:
    return pack(place(segment, row))


def row_of(number: int, segment: int, row: int, namespace: Namespace = OURS, owner: Owner = NOBODY) -> EntryArray:
    return entry(key(number), namespace, owner, number, place(segment, row))


def filled(*rows: EntryArray) -> Index:
    index = Index()
    index.add(join_rows(rows))
    return index


def located(index: Index, *numbers: int) -> list[Address | None]:
    return index.locate(index.find([key(number) for number in numbers]))


def drop(index: Index, segment: int) -> int:
    rows = index.rows_of(segment)
    index.remove(rows, Fate.DROPPED)
    return len(rows)


def test_locate_answers_each_key_in_order() -> None:
    index = filled(row_of(1, 1, 0), row_of(2, 1, 1))
    assert located(index, 2, 9, 1) == [at(1, 1), None, at(1, 0)]
    assert index.find([]).tolist() == []


def test_dropping_a_segment_forgets_its_keys_and_no_others() -> None:
    index = filled(row_of(1, 1, 0), row_of(2, 1, 1), row_of(3, 2, 0))
    assert drop(index, 1) == 2
    assert located(index, 1, 2, 3) == [None, None, at(2, 0)]
    assert index.fate(key(1)) is Fate.DROPPED
    assert index.fate(key(3)) is None


def test_a_segment_of_another_volume_with_the_same_number_is_another() -> None:
    other = segment_number(1, 1)
    index = filled(row_of(1, 1, 0), row_of(2, other, 0))
    assert index.on_volume(1).tolist() == index.find([key(2)]).tolist()
    assert drop(index, 1) == 1
    assert located(index, 1, 2) == [None, at(other, 0)]


def test_a_key_that_moved_keeps_its_row_and_history_and_does_not_leave_with_its_old_segment() -> None:
    index = filled(row_of(1, 1, 0), row_of(2, 1, 1))
    (row,) = index.find([key(1)])
    index.hotness.touch(np.array([row]), 5)
    last = index.hotness.last[row]
    index.add(row_of(1, 2, 0))
    assert index.find([key(1)]).tolist() == [row]
    assert (index.hotness.last[row], index.hotness.turn[row]) == (last, 5)
    assert (index.live(1), index.live(2)) == ((1, RECORD), (1, RECORD))
    assert drop(index, 1) == 1
    assert located(index, 1) == [at(2, 0)]
    assert len(index) == 1


def test_of_one_key_twice_in_a_batch_the_last_counts() -> None:
    index = filled(row_of(1, 1, 0), row_of(2, 1, 1), row_of(1, 2, 0))
    assert located(index, 1, 2) == [at(2, 0), at(1, 1)]
    assert (len(index), index.live(1), index.live(2)) == (2, (1, RECORD), (1, RECORD))


def test_a_row_is_found_only_at_the_address_that_it_has() -> None:
    index = filled(row_of(1, 2, 0))
    assert index.at(key(1), at(1, 0)) == NO_ROW
    row = index.at(key(1), at(2, 0))
    index.remove(np.array([row]), Fate.CORRUPT)
    assert index.fate(key(1)) is Fate.CORRUPT
    assert index.at(key(1), at(2, 0)) == NO_ROW
    assert index.rows_of(2).tolist() == []


def test_a_key_that_came_back_has_no_fate() -> None:
    index = filled(row_of(1, 1, 0))
    drop(index, 1)
    index.add(row_of(1, 2, 0))
    assert index.fate(key(1)) is None


def test_only_so_many_fates_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MAX_FATES", 3)
    index = filled(*(row_of(number, 1, number) for number in range(5)))
    drop(index, 1)
    assert [index.fate(key(number)) for number in range(5)] == [None, None] + [Fate.DROPPED] * 3


def test_namespaces_are_counted_and_told_apart() -> None:
    index = filled(row_of(1, 1, 0), row_of(2, 1, 1, THEIRS), row_of(3, 2, 0, THEIRS))
    assert index.namespaces() == {OURS: 1, THEIRS: 2}
    index.mark_foreign({OURS})
    assert index.hotness.foreign[index.find([key(1), key(2), key(3)])].tolist() == [False, True, True]
    index.mark_foreign({OURS, THEIRS})
    assert not index.hotness.foreign.any()
    index.remove(index.find([key(1)]))
    assert index.namespaces() == {THEIRS: 2}


def test_blocks_are_selected_by_what_is_given() -> None:
    index = filled(
        row_of(1, 1, 0, owner=Owner(7, 1)),
        row_of(2, 1, 1, owner=Owner(7, 2)),
        row_of(3, 1, 2, THEIRS, Owner(8, 1)),
    )

    def selected(
        tenant: int | None = None, session: int | None = None, namespace: Namespace | None = None
    ) -> list[int]:
        return index.hotness.position[index.select(tenant, session, namespace)].tolist()

    assert selected(tenant=7) == [1, 2]
    assert selected(session=1) == [1, 3]
    assert selected(tenant=7, session=1) == [1]
    assert selected(namespace=THEIRS) == [3]
    assert selected(namespace=Namespace(b"x" * 32)) == []
    assert selected() == []
    assert index.tenant_bytes(7) == 2 * RECORD
    assert index.owners(index.find([key(3), key(1)])) == [Owner(8, 1), Owner(7, 1)]


def test_entries_come_in_the_order_of_their_addresses_and_are_what_was_added() -> None:
    rows = [row_of(3, 1, 2), row_of(1, 1, 0, THEIRS, Owner(3, 4)), row_of(2, 1, 1)]
    index = filled(*rows)
    found = index.entries(index.rows_of(1))
    assert np.array_equal(found, join_rows([rows[1], rows[2], rows[0]]))
    assert addresses(found) == [at(1, 0), at(1, 1), at(1, 2)]
    assert len(Index().entries(np.zeros(0, np.int64))) == 0


def test_what_is_alive_adds_up_in_any_order_of_changes() -> None:
    """By segment and by tenant, against a recount, through adds, moves, removals and growth."""
    dice = np.random.default_rng(5)
    index = Index(1024)
    for step in range(60):
        numbers = dice.choice(4000, 200, replace=False)
        rows = join_rows(
            [row_of(n, 1 + step // 3, i, owner=Owner(int(dice.integers(3)))) for i, n in enumerate(numbers.tolist())]
        )
        index.add(rows)
        if step % 4 == 3:
            drop(index, int(dice.integers(1, 2 + step // 3)))
        if step % 5 == 0:
            some = index.find([key(int(n)) for n in dice.choice(numbers, 20, replace=False)])
            index.remove(some[some >= 0])
    found = index.entries(index.rows())
    assert len(found) == len(index) > 1024
    segments = found["where"] >> np.uint64(32)
    for segment in range(1, 22):
        count = int(np.count_nonzero(segments == segment))
        assert index.live(segment) == (count, count * RECORD)
    for tenant in range(3):
        assert index.tenant_bytes(tenant) == int(np.count_nonzero(found["tenant"] == tenant)) * RECORD
    assert np.array_equal(index.find([Key(words.tobytes()) for words in found["key"]]), index.rows())


def many(count: int) -> EntryArray:
    rows = np.zeros(count, ENTRY)
    rows["key"] = np.random.default_rng(1).integers(0, 2**63, (count, 4), np.uint64)
    rows["namespace"] = keys_as_words([Key(OURS)])
    numbers = np.arange(count, dtype=np.uint64)
    rows["where"] = (np.uint64(1) + numbers // np.uint64(1000)) << np.uint64(32) | (numbers % np.uint64(1000)) * 4
    rows["extent"] = 1 << 28 | 3
    return rows


def test_a_block_costs_at_most_200_bytes_right_after_growth() -> None:
    index, rows = Index(), many(300_000)
    most, done = 0.0, 0
    while done < len(rows):
        index.add(rows[done : done + 1000])
        done += 1000
        if done >= 10_000:
            most = max(most, index.nbytes / len(index))
    assert len(index) == 300_000
    assert 100 < most <= 200, most

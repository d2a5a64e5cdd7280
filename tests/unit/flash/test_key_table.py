from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hifc_ray.flash.key_table import NO_ROW, KeyArray, KeyTable
from hifc_ray.types import IntArray

ROWS = 1024

# Few different numbers in few words, so that keys differ in one word alone and meet in the table.
WORD = st.integers(0, 3).map(lambda small: small * 0x5555_5555_5555_5555)
KEYS = st.lists(st.tuples(WORD, WORD, WORD, WORD), min_size=1, max_size=200, unique=True)


def words(keys: list[tuple[int, int, int, int]]) -> KeyArray:
    return np.array(keys, np.uint64).reshape(-1, 4)


class Model:
    """A table and a dictionary that are told the same."""

    def __init__(self) -> None:
        self.table = KeyTable(ROWS)
        self.rows: dict[bytes, int] = {}
        self.free = list(range(ROWS))

    def insert(self, keys: KeyArray) -> None:
        fresh = keys[[key.tobytes() not in self.rows for key in keys]]
        while len(self.free) < len(fresh):
            before = len(self.table.keys)
            self.table.resize(before + 700)
            self.free += range(before, before + 700)
        rows = np.array([self.free.pop() for _ in fresh], np.int64)
        self.table.keys[rows] = fresh
        self.table.insert(rows)
        self.rows |= {key.tobytes(): int(row) for key, row in zip(fresh, rows, strict=True)}

    def remove(self, keys: KeyArray) -> None:
        known = [key.tobytes() for key in keys if key.tobytes() in self.rows]
        rows = [self.rows.pop(key) for key in known]
        self.table.remove(np.array(rows, np.int64))
        self.free += rows

    def check(self, keys: KeyArray) -> None:
        wanted = [self.rows.get(key.tobytes(), NO_ROW) for key in keys]
        assert self.table.find(keys).tolist() == wanted


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), KEYS), min_size=1, max_size=12))
def test_it_finds_what_a_dictionary_finds(steps: list[tuple[bool, list[tuple[int, int, int, int]]]]) -> None:
    model = Model()
    everything = words([key for _, keys in steps for key in keys])
    for insert, keys in steps:
        (model.insert if insert else model.remove)(words(keys))
        model.check(everything)


def test_it_finds_what_a_dictionary_finds_through_growth_and_years_of_changes() -> None:
    """Each place in the table is used, freed and used again many times over."""
    dice, model = np.random.default_rng(3), Model()
    keys = dice.integers(0, 2**63, (6000, 4), np.uint64)
    for _ in range(80):
        model.insert(dice.choice(keys, 500, replace=False))
        model.remove(dice.choice(keys, 450, replace=False))
        model.check(keys)
    assert len(model.table.keys) > ROWS


def test_keys_that_begin_alike_are_told_apart_by_any_word() -> None:
    model = Model()
    alike = np.ones((9, 4), np.uint64)
    alike[np.arange(1, 9), np.arange(8) % 4] += np.arange(1, 9, dtype=np.uint64)
    model.insert(alike)
    model.check(alike)


def test_keys_made_by_hand_do_not_crowd() -> None:
    """Small numbers as keys, as tests and peers have them; a probe that walks far would take minutes here."""
    model = Model()
    keys = np.zeros((100_000, 4), np.uint64)
    keys[:, 0] = np.arange(len(keys))
    model.insert(keys)
    model.check(keys[::97])
    assert np.array_equal(model.table.find(keys), [model.rows[key.tobytes()] for key in keys])


@pytest.mark.parametrize("rows", [[5], [0, 5], [NO_ROW]])
def test_what_is_not_there_cannot_be_removed(rows: list[int]) -> None:
    table = KeyTable(ROWS)
    first: IntArray = np.array([0])
    table.keys[0] = 7
    table.insert(first)
    with pytest.raises(KeyError, match="are not in the table"):
        table.remove(np.array(rows))
    assert table.find(table.keys[:1]).tolist() == [0]

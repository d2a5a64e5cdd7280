"""Rows by key: a hash table in numpy, open addressing with linear probing, for whole batches at a time.

A block costs 32 bytes for its key and 16 to 32 for its place in the table, where a dictionary takes 180. At least
three quarters of the table are empty, so that a batch is found in two or three steps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hifc_ray.types import BoolArray, IntArray

KeyArray = npt.NDArray[np.uint64]  # [n, 4]: the 32 bytes of each key, as numbers
NO_ROW = -1

_EMPTY, _DEAD = -1, -2
_FEW = 4  # up to so many keys, one after the other is faster than all at once
_ALL_FOUR = np.uint32(0x01010101)  # four comparisons that are True, seen as one number
_LEAST_SIZE = 1 << 14
# Keys are hashes already; the multiplier (2^64 over the golden ratio) spreads those that tests or peers make by hand.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_WORD = (1 << 64) - 1


class KeyTable:
    """Finds rows of `keys`, which grows with `resize`. No lock in here."""

    def __init__(self, rows: int) -> None:
        self.keys: KeyArray = np.zeros((rows, 4), np.uint64)
        self._num_used = self._num_dead = 0
        self._allocate(rows)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self._table.nbytes

    def resize(self, rows: int) -> None:
        """Room for so many rows, not fewer than there are."""
        keys = np.zeros((rows, 4), np.uint64)
        keys[: len(self.keys)] = self.keys
        self.keys = keys
        if rows > len(self._table) // 4:
            self._rebuild(rows)

    def find(self, wanted: KeyArray) -> IntArray:
        """[n] row of each key, NO_ROW where there is none."""
        if len(wanted) <= _FEW:
            return np.array([self.find_one(words) for words in wanted.tolist()], np.int64)
        return self._probe(wanted)[0]

    def insert(self, rows: IntArray) -> None:
        """Make these rows, whose keys are set, distinct, and not in the table, findable."""
        if self._num_used + self._num_dead + len(rows) > len(self._table) * 3 // 4:
            self._rebuild(len(self.keys))
        todo, at = rows, self._home(self.keys[rows])
        while len(todo):
            free = np.flatnonzero(self._table[at] < 0)
            _, first = np.unique(at[free], return_index=True)  # of those that want one place, the first has it
            placed = free[first]
            self._num_dead -= int(np.count_nonzero(self._table[at[placed]] == _DEAD))
            self._table[at[placed]] = todo[placed]
            todo, at = np.delete(todo, placed), np.delete(at, placed)
            at = np.where(self._table[at] < 0, at, (at + 1) & self._mask)
        self._num_used += len(rows)

    def remove(self, rows: IntArray) -> None:
        """Forget these rows, each of which is in the table."""
        found, at = self._probe(self.keys[rows])
        wrong = (found != rows) | (rows < 0)
        if wrong.any():
            raise KeyError(f"{int(np.count_nonzero(wrong))} of {len(rows)} rows are not in the table")
        self._table[at] = _DEAD
        self._num_used -= len(rows)
        self._num_dead += len(rows)

    def find_one(self, words: list[int]) -> int:
        """The row of a key given as four numbers, or NO_ROW."""
        at = self._home_of(words)
        while (row := self._table.item(at)) != _EMPTY:
            if row >= 0 and self.keys[row].tolist() == words:
                return row
            at = (at + 1) & self._mask
        return NO_ROW

    def insert_one(self, row: int) -> None:
        """`insert` of one row."""
        if self._num_used + self._num_dead >= len(self._table) * 3 // 4:
            self._rebuild(len(self.keys))
        at = self._home_of(self.keys[row].tolist())
        while (there := self._table.item(at)) >= 0:
            at = (at + 1) & self._mask
        self._num_dead -= there == _DEAD
        self._num_used += 1
        self._table[at] = row

    def _probe(self, wanted: KeyArray) -> tuple[IntArray, IntArray]:
        """Rows, and where in the table each was found."""
        at = self._home(wanted)
        rows, hit = self._compare(at, wanted)
        found: IntArray = np.where(hit, rows, NO_ROW)
        todo = (~hit & (rows != _EMPTY)).nonzero()[0]
        while len(todo):  # few: most keys are where they belong, or nothing is
            beside = (at[todo] + 1) & self._mask
            at[todo] = beside
            rows, hit = self._compare(beside, wanted[todo])
            found[todo[hit]] = rows[hit]
            todo = todo[~hit & (rows != _EMPTY)]
        return found, at

    def _compare(self, at: IntArray, wanted: KeyArray) -> tuple[IntArray, BoolArray]:
        """Rows at these places, and whether each has the key; of no row, the last one is compared, in vain."""
        rows = self._table[at].astype(np.int64)
        same = (self.keys[rows] == wanted).view(np.uint32)[:, 0] == _ALL_FOUR
        return rows, same & (rows >= 0)

    def _home(self, keys: KeyArray) -> IntArray:
        mixed = ((keys[:, 0] ^ keys[:, 3]) * _SPREAD) >> self._shift
        return mixed.astype(np.int64)

    def _home_of(self, words: list[int]) -> int:
        return ((words[0] ^ words[3]) * int(_SPREAD) & _WORD) >> int(self._shift)

    def _allocate(self, rows: int) -> None:
        size = max(_LEAST_SIZE, 1 << (4 * rows - 1).bit_length())
        self._table = np.full(size, _EMPTY, np.int32)
        self._mask = size - 1
        self._shift = np.uint64(64 - (size.bit_length() - 1))

    def _rebuild(self, rows: int) -> None:
        used = self._table[self._table >= 0].astype(np.int64)
        self._allocate(rows)
        self._num_used = self._num_dead = 0
        self.insert(used)

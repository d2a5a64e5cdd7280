"""Access history of the blocks of a tier, as arrays: one row a block, touched and scored in batches.

Two last accesses (LRU-2: O'Neil et al., SIGMOD 1993), an exponentially decayed count, attention average, position and
turn. Time is counted in block accesses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hifc_ray.policy import Features
from hifc_ray.types import AnyArray, BoolArray, FingerprintArray, FloatArray, IntArray, SlotArray

_MAX_EXPONENT = 300.0  # of the weight of an access; doubles end at 709
ATTENTION_SMOOTHING = 0.25  # weight of a new attention reading in its running average
_EMPTY = {"last": -1, "previous": -1, "_grown": 0.0, "attention": np.nan, "position": 0, "turn": 0, "foreign": False}


class Hotness:
    """History of up to `rows` blocks. The caller holds the lock."""

    def __init__(self, rows: int, half_life: float | None = None) -> None:
        self.now = 0  # block accesses so far
        self._half_life = half_life  # in accesses; none: it grows with the rows
        self._decay_per_access = self._decay(rows)
        self._epoch = 0  # accesses before which the scale of `_weight` begins
        self.last: IntArray = np.full(rows, -1, np.int64)
        self.previous: IntArray = np.full(rows, -1, np.int64)
        # Forward decay (Cormode et al., ICDE 2009): an access adds a weight that grows with time, instead of all counts
        # shrinking; so a touch is one addition, and the decayed count is this divided by the weight of now.
        self._grown = np.zeros(rows, np.float64)
        self.attention = np.full(rows, np.nan, np.float32)
        self.position = np.zeros(rows, np.int64)
        self.turn = np.zeros(rows, np.int64)
        self.foreign = np.zeros(rows, np.bool_)

    def born(self, rows: SlotArray, positions: SlotArray, turn: int) -> None:
        """New blocks take these rows; storing counts as their first access."""
        self.last[rows] = -1
        self._grown[rows] = 0.0
        self.attention[rows] = np.nan
        self.position[rows] = positions
        self.foreign[rows] = False
        self.touch(rows, turn)

    def born_one(self, row: int, position: int, turn: int) -> None:
        """`born` of one, in a tenth of the time."""
        self.now += 1
        weight = self._weight()
        self.last[row], self.previous[row] = self.now, -1
        self._grown[row] = weight
        self.attention[row] = np.nan
        self.position[row], self.turn[row] = position, turn
        self.foreign[row] = False

    def touch(self, rows: SlotArray, turn: int) -> None:
        """These blocks were asked for, together: they share one moment, which is their last access."""
        self.now += len(rows)
        weight = self._weight()  # first: it may rescale what it is added to
        self._grown[rows] += weight
        self.previous[rows] = self.last[rows]
        self.last[rows] = self.now
        self.turn[rows] = turn

    def _weight(self) -> float:
        grown = (self.now - self._epoch) * self._decay_per_access
        if grown > _MAX_EXPONENT:
            self._grown *= math.exp(-grown)
            self._epoch = self.now
            grown = 0.0
        return math.exp(grown)

    def seen(self, rows: SlotArray, attention: FloatArray) -> None:
        """Fold attention readings into the running averages; NaN leaves an average as it is."""
        old = self.attention[rows]
        mixed = np.where(np.isnan(old), attention, old + ATTENTION_SMOOTHING * (attention - old))
        self.attention[rows] = np.where(np.isnan(attention), old, mixed)

    def features(self, rows: SlotArray | IntArray, fingerprints: FingerprintArray | None = None) -> Features:
        """A copy of the history of these rows, safe to score outside the lock. Fingerprints are passed on."""
        weight = self._weight()  # first: it may rescale what is divided by it
        foreign: BoolArray = self.foreign[rows]
        return Features(
            last_access=self.last[rows],
            previous_access=self.previous[rows],
            frequency=(self._grown[rows] / weight).astype(np.float32),
            attention=self.attention[rows],
            position=self.position[rows],
            turn=self.turn[rows],
            foreign=foreign,
            now=self.now,
            fingerprint=np.zeros(len(rows), np.uint64) if fingerprints is None else fingerprints,
        )

    def grow(self, rows: int) -> None:
        """Room for `rows` blocks, at least as many as before; the history of those there are stays."""
        more = rows - len(self.last)
        self._grown /= self._weight()
        self._epoch, self._decay_per_access = self.now, self._decay(rows)
        for name, empty in _EMPTY.items():
            column = getattr(self, name)
            setattr(self, name, np.concatenate((column, np.full(more, empty, column.dtype))))

    def export(self, rows: SlotArray | IntArray) -> dict[str, AnyArray]:
        """The history of these rows as columns [n], times as ages, so that any clock can take them up again."""
        previous = self.previous[rows]
        return {
            "age": self.now - self.last[rows],
            "previous_age": np.where(previous >= 0, self.now - previous, -1),
            "frequency": self._grown[rows] / self._weight(),
            "attention": self.attention[rows],
            "position": self.position[rows],
            "turn": self.turn[rows],
        }

    def restore(self, rows: SlotArray | IntArray, columns: Mapping[str, AnyArray]) -> None:
        """These rows take up the history that `export` gave: as old, relative to now, as they were then."""
        age, previous_age = columns["age"], columns["previous_age"]
        if len(rows):
            self._make_past(int(max(age.max(), previous_age.max())))
        self.last[rows] = self.now - age
        self.previous[rows] = np.where(previous_age >= 0, self.now - previous_age, -1)
        self._grown[rows] = columns["frequency"] * self._weight()
        self.attention[rows] = columns["attention"]
        self.position[rows] = columns["position"]
        self.turn[rows] = columns["turn"]

    def _make_past(self, age: int) -> None:
        """Move the clock and all times on, so that no age changes and a block may be `age` accesses old."""
        shift = max(0, age - self.now)
        self.now += shift
        self._epoch += shift
        self.last[self.last >= 0] += shift
        self.previous[self.previous >= 0] += shift

    def _decay(self, rows: int) -> float:
        return math.log(2.0) / (self._half_life or 8.0 * rows)

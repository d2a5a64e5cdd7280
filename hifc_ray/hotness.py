"""Access history of the blocks of a tier, as arrays: one row a block, touched and scored in batches.

Two last accesses (LRU-2: O'Neil et al., SIGMOD 1993), an exponentially decayed count, attention average, position and
turn. Time is counted in block accesses.
"""

from __future__ import annotations

import math

import numpy as np

from hifc_ray.policy import Features
from hifc_ray.types import BoolArray, FloatArray, IntArray, SlotArray

_MAX_EXPONENT = 300.0  # of the weight of an access; doubles end at 709
ATTENTION_SMOOTHING = 0.25  # weight of a new attention reading in its running average


class Hotness:
    """History of up to `rows` blocks. The caller holds the lock."""

    def __init__(self, rows: int, half_life: float | None = None) -> None:
        self.now = 0  # block accesses so far
        self._decay_per_access = math.log(2.0) / (half_life or 8.0 * rows)
        self._epoch = 0  # accesses before which the scale of `_weight` begins
        self.last = np.full(rows, -1, np.int64)
        self.previous = np.full(rows, -1, np.int64)
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

    def features(self, rows: SlotArray | IntArray) -> Features:
        """A copy of the history of these rows, safe to score outside the lock."""
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
        )

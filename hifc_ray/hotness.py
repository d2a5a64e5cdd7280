"""Access history of the blocks of a tier, as arrays: one row a block, touched and scored in batches.

Two last accesses (LRU-2: O'Neil et al., SIGMOD 1993), an exponentially decayed count, attention average, position and
turn. Time is counted in block accesses.
"""

from __future__ import annotations

import numpy as np

from hifc_ray.policy import Features
from hifc_ray.types import BoolArray, FloatArray, IntArray, SlotArray

ATTENTION_SMOOTHING = 0.25  # weight of a new attention reading in its running average


class Hotness:
    """History of up to `rows` blocks. The caller holds the lock."""

    def __init__(self, rows: int, half_life: float | None = None) -> None:
        self.now = 0  # block accesses so far
        self._decay_per_access = np.log(2.0) / (half_life or 8.0 * rows)
        self.last = np.full(rows, -1, np.int64)
        self.previous = np.full(rows, -1, np.int64)
        self.frequency = np.zeros(rows, np.float32)
        self.attention = np.full(rows, np.nan, np.float32)
        self.position = np.zeros(rows, np.int64)
        self.turn = np.zeros(rows, np.int64)
        self.foreign = np.zeros(rows, np.bool_)

    def born(self, rows: SlotArray, positions: SlotArray, turn: int) -> None:
        """New blocks take these rows; storing counts as their first access."""
        self.last[rows] = self.previous[rows] = -1
        self.frequency[rows] = 0.0
        self.attention[rows] = np.nan
        self.position[rows] = positions
        self.foreign[rows] = False
        self.touch(rows, turn)

    def touch(self, rows: SlotArray, turn: int) -> None:
        """These blocks were asked for, together: they share one moment, which is their last access."""
        self.now += len(rows)
        last = self.last[rows]
        # A row that was never touched has frequency 0, so that its age does not matter.
        age = (last - self.now) * self._decay_per_access
        self.frequency[rows] = 1.0 + self.frequency[rows] * np.exp(age)
        self.previous[rows] = last
        self.last[rows] = self.now
        self.turn[rows] = turn

    def seen(self, rows: SlotArray, attention: FloatArray) -> None:
        """Fold attention readings into the running averages; NaN leaves an average as it is."""
        old = self.attention[rows]
        mixed = np.where(np.isnan(old), attention, old + ATTENTION_SMOOTHING * (attention - old))
        self.attention[rows] = np.where(np.isnan(attention), old, mixed)

    def features(self, rows: SlotArray | IntArray) -> Features:
        """A copy of the history of these rows, safe to score outside the lock."""
        foreign: BoolArray = self.foreign[rows]
        return Features(
            last_access=self.last[rows],
            previous_access=self.previous[rows],
            frequency=self.frequency[rows],
            attention=self.attention[rows],
            position=self.position[rows],
            turn=self.turn[rows],
            foreign=foreign,
            now=self.now,
        )

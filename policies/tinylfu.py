"""TinyLFU: a block is written if it was asked for more often lately than what it would push out.

A count-min sketch (Cormode & Muthukrishnan, 2005), four rows of counters, of which only the smallest are raised, counts
every access of the tier; after ten accesses for each block that flash has room for all counters are halved, so old
popularity fades (Einziger, Friedman & Manes, ACM TOS 2017). A candidate is admitted if its count is above the median
count of the blocks that would leave next. Where flash still has room, everything is admitted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hifc_ray.policies.ghost import mixed
from hifc_ray.policy import Features
from hifc_ray.types import AnyArray, BoolArray, FingerprintArray

NUM_ROWS = 4
COUNTERS_PER_BLOCK = 2  # of each row; with four rows a count is wrong by more than one for few blocks in a hundred
SAMPLE_PER_BLOCK = 10  # accesses between halvings, for each block that flash has room for
_MOST = 255


class TinyLfu:
    """`AdmissionPolicy` by recent popularity, for a flash of `num_blocks` blocks."""

    name = "tinylfu"

    def __init__(self, num_blocks: int) -> None:
        width = 1 << max(6, (COUNTERS_PER_BLOCK * num_blocks - 1).bit_length())
        self._shift = np.uint64(64 - (width.bit_length() - 1))
        self._counts = np.zeros((NUM_ROWS, width), np.uint8)
        self._until_halving = self._sample = SAMPLE_PER_BLOCK * max(1, num_blocks)

    def observe(self, fingerprints: FingerprintArray) -> None:
        columns = self._columns(fingerprints)
        counts = np.take_along_axis(self._counts, columns, axis=1)
        least = counts.min(axis=0)
        raised = counts + ((counts == least) & (counts < _MOST))
        np.put_along_axis(self._counts, columns, raised, axis=1)
        self._until_halving -= len(fingerprints)
        while self._until_halving <= 0:
            self._counts >>= 1
            self._until_halving += self._sample // 2

    def admit(self, candidates: Features, incumbents: Features, budget_level: float) -> BoolArray:
        if not len(incumbents):
            return np.ones(len(candidates), np.bool_)
        bar = np.median(self.count(incumbents.fingerprint))
        admitted: BoolArray = self.count(candidates.fingerprint) > bar
        return admitted

    def count(self, fingerprints: FingerprintArray) -> AnyArray:
        """[n] uint8: about how often each was seen lately; never less, where no two share all their counters."""
        smallest: AnyArray = np.take_along_axis(self._counts, self._columns(fingerprints), axis=1).min(axis=0)
        return smallest

    def state(self) -> Mapping[str, AnyArray]:
        return {"counts": self._counts.copy(), "until_halving": np.array([self._until_halving], np.int64)}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        counts, until = state.get("counts"), state.get("until_halving")
        if counts is None or until is None or counts.shape != self._counts.shape:
            return
        self._counts[:] = counts
        self._until_halving = int(until[0])

    def _columns(self, fingerprints: FingerprintArray) -> AnyArray:
        rows = [mixed(fingerprints, salt) >> self._shift for salt in range(1, NUM_ROWS + 1)]
        return np.stack(rows).astype(np.int64)

"""A ghost: the fingerprints of blocks that are not stored, as many as fit, the oldest forgotten first.

A table of sets of eight places; a fingerprint belongs to one set, in which places are taken in turn. So what is
remembered is bounded, looked up in batches, and a plain array in a checkpoint.
"""

from __future__ import annotations

import numpy as np

from hifc_ray.types import AnyArray, BoolArray, FingerprintArray

WAYS = 8
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads what may not be uniform


def mixed(fingerprints: FingerprintArray, salt: int = 0) -> FingerprintArray:
    """Other numbers for the same fingerprints, well spread in their high bits; each salt gives its own."""
    salted = fingerprints ^ np.uint64(salt * 0xD6E8FEB86659FD93 & 0xFFFFFFFFFFFFFFFF)
    salted = (salted ^ (salted >> np.uint64(32))) * _MIX
    result: FingerprintArray = (salted ^ (salted >> np.uint64(29))) * _MIX
    return result


class Ghost:
    """About `capacity` fingerprints. Zero is never remembered: it marks an empty place."""

    def __init__(self, capacity: int) -> None:
        self._table = np.zeros((max(1, -(-capacity // WAYS)), WAYS), np.uint64)
        self._next = np.zeros(len(self._table), np.uint8)  # the place of each set that is taken next

    def seen(self, fingerprints: FingerprintArray) -> BoolArray:
        """[n], True where it is remembered."""
        here = (self._table[self._sets(fingerprints)] == fingerprints[:, None]).any(axis=1)
        remembered: BoolArray = here & (fingerprints != 0)
        return remembered

    def add(self, fingerprints: FingerprintArray) -> None:
        """Remember those that are not remembered yet, in this order."""
        new = np.unique(fingerprints[~self.seen(fingerprints)])
        sets = self._sets(new)
        order = np.argsort(sets, kind="stable")
        sets, new = sets[order], new[order]
        num_before = np.arange(len(sets)) - np.searchsorted(sets, sets)  # of the same set, in this batch
        self._table[sets, (self._next[sets] + num_before) % WAYS] = new
        np.add.at(self._next, sets, np.uint8(1))

    def state(self) -> dict[str, AnyArray]:
        return {"ghost": self._table.copy(), "ghost_next": self._next.copy()}

    def restore(self, state: dict[str, AnyArray]) -> bool:
        """True if the state was of a ghost of this size, and has been taken."""
        table, places = state.get("ghost"), state.get("ghost_next")
        if table is None or places is None or table.shape != self._table.shape or places.shape != self._next.shape:
            return False
        self._table[:], self._next[:] = table, places
        return True

    def _sets(self, fingerprints: FingerprintArray) -> AnyArray:
        return ((mixed(fingerprints) >> np.uint64(32)) * np.uint64(len(self._table)) >> np.uint64(32)).astype(np.int64)

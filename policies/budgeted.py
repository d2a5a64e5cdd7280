"""Budgeted: the blocks most worth keeping are written, as many as the write budget bears.

Worth is what the eviction policy says of a block, as if it had been asked for just now: blocks that leave host memory
have all waited about equally long, so recency tells them not apart. While the bucket of the budget is at least half
full, everything is admitted; below that, only the share `fill / half` of the candidates, those of highest worth: so the
bucket settles where as much is admitted as flows in. The bar is taken from the last thousand candidates, so it follows
the load. Of equal worth, the shallower come first: a prefix without its end still serves, an end without it does not.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hifc_ray.policy import EvictionPolicy, Features
from hifc_ray.types import AnyArray, BoolArray, FingerprintArray

FREELY = 0.5  # fill of the bucket from which on everything is admitted
NUM_REMEMBERED = 1024  # candidates that make the bar
_NEVER = np.int64(1) << 60  # accesses since an access that never was


class Budgeted:
    """`AdmissionPolicy` by the values of `eviction` and the fill of the budget."""

    name = "budgeted"

    def __init__(self, eviction: EvictionPolicy) -> None:
        self._eviction = eviction
        self._recent: dict[str, AnyArray] = {}  # columns of features of recent candidates, the newest last

    def observe(self, fingerprints: FingerprintArray) -> None:
        """The eviction policy's features already tell what was asked for."""

    def admit(self, candidates: Features, incumbents: Features, budget_level: float) -> BoolArray:
        if not len(candidates):
            return np.ones(0, np.bool_)
        standing = self._standing(candidates)
        share = min(1.0, max(0.0, budget_level / FREELY))
        # Standing is the share of recent candidates that were worth less, so this admits `share` of what comes.
        admitted: BoolArray = standing >= 1.0 - share
        return admitted

    def state(self) -> Mapping[str, AnyArray]:
        """The bar is found again within a thousand candidates."""
        return {}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Nothing to go on from."""

    def _standing(self, candidates: Features) -> AnyArray:
        """[n] in [0, 1): the share of recent candidates, these included, that are worth less, or equally and deeper."""
        pool = self._pool(candidates)
        values, depths = self._eviction.values(pool), pool.position
        order = np.lexsort((-depths, values))
        first = np.ones(len(order), np.bool_)  # of those of equal worth and depth
        first[1:] = (np.diff(values[order]) != 0) | (np.diff(depths[order]) != 0)
        standing = np.empty(len(order))
        standing[order] = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
        result: AnyArray = standing[-len(candidates) :] / len(pool)
        return result

    def _pool(self, candidates: Features) -> Features:
        """Recent candidates and, last, these, as if all had been asked for just now; they are recent from now on."""
        now, previous = candidates.now, candidates.previous_access
        columns = {name: getattr(candidates, name) for name in ("frequency", "attention", "position", "turn")}
        columns["age"] = np.where(previous >= 0, now - previous, _NEVER)
        joined = {
            name: np.concatenate((self._recent.get(name, column[:0]), column)) for name, column in columns.items()
        }
        self._recent = {name: column[-NUM_REMEMBERED:] for name, column in joined.items()}
        age = joined.pop("age")
        return Features(
            last_access=np.full(len(age), now),
            previous_access=np.maximum(-1, now - age),
            foreign=np.zeros(len(age), np.bool_),
            now=now,
            **joined,
        )

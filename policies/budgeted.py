"""Budgeted: the blocks most worth keeping are written, as many as the write budget bears.

Worth is what the eviction policy says. While the bucket of the budget is at least half full, everything is admitted;
below that, only the share `fill / half` of the candidates, those of highest value: so the bucket settles where what is
admitted is what flows in. The bar is taken from the last few hundred candidates, valued as of now, so it follows the
load. Of equal value the shallower blocks come first: a prefix without its end still serves.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hifc_ray.policy import EvictionPolicy, Features
from hifc_ray.types import AnyArray, BoolArray, FingerprintArray, IntArray

FREELY = 0.5  # fill of the bucket from which on everything is admitted
NUM_REMEMBERED = 1024  # candidates that make the bar
_NEVER = np.int64(1) << 60  # accesses since an access that never was


class Budgeted:
    """`AdmissionPolicy` by the values of `eviction` and the fill of the budget."""

    name = "budgeted"

    def __init__(self, eviction: EvictionPolicy) -> None:
        self._eviction = eviction
        self._recent: dict[str, AnyArray] = {}  # columns of features of recent candidates, times as ages

    def observe(self, fingerprints: FingerprintArray) -> None:
        """The eviction policy's features already tell what was asked for."""

    def admit(self, candidates: Features, incumbents: Features, budget_level: float) -> BoolArray:
        if not len(candidates):
            return np.ones(0, np.bool_)
        self._remember(candidates)
        share = min(1.0, max(0.0, budget_level / FREELY))
        # Standing is the share of recent candidates that were worth less, so this admits `share` of what comes.
        admitted: BoolArray = self._standing(candidates) >= 1.0 - share
        return admitted

    def state(self) -> Mapping[str, AnyArray]:
        """The bar is found again within a few hundred candidates."""
        return {}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Nothing to go on from."""

    def _remember(self, candidates: Features) -> None:
        previous, now = candidates.previous_access, candidates.now
        columns = {
            "last_access": now - candidates.last_access,
            "previous_access": np.where(previous >= 0, now - previous, _NEVER),
            **{name: getattr(candidates, name) for name in ("frequency", "attention", "position", "turn")},
        }
        for name, column in columns.items():
            before = self._recent.get(name, column[:0])
            self._recent[name] = np.concatenate((before, column))[-NUM_REMEMBERED:]

    def _standing(self, candidates: Features) -> AnyArray:
        """[n] in [0, 1): the share of recent candidates of lower value, or of equal value and deeper."""
        now, recent = candidates.now, self._recent
        pool = Features(
            last_access=now - recent["last_access"],
            previous_access=np.maximum(-1, now - recent["previous_access"]),
            frequency=recent["frequency"],
            attention=recent["attention"],
            position=recent["position"],
            turn=recent["turn"],
            foreign=np.zeros(len(recent["turn"]), np.bool_),
            now=now,
        )
        values = np.concatenate((self._eviction.values(pool), self._eviction.values(candidates)))
        depths = np.concatenate((pool.position, candidates.position))
        order = np.lexsort((-depths, values))
        sorted_values, sorted_depths = values[order], depths[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (np.diff(sorted_values) != 0) | (np.diff(sorted_depths) != 0)
        of_pool = order < len(pool)
        lower: IntArray = np.cumsum(of_pool) - of_pool
        standing = np.empty(len(order))
        standing[order] = np.maximum.accumulate(np.where(first, lower, 0))
        result: AnyArray = standing[len(pool) :] / len(pool)
        return result

"""Least recently used: the block that has not been asked for the longest leaves first.

Blocks of one chain that were asked for together share their last access; the deepest leaves first, since a prefix
without its end still serves, and an end without its prefix does not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hifc_ray.messages import Weights
from hifc_ray.policies.ranking import first_to_leave
from hifc_ray.policy import Features
from hifc_ray.types import IntArray


class Lru:
    """`EvictionPolicy` by last access."""

    name = "lru"

    def values(self, features: Features) -> npt.NDArray[np.float64]:
        return features.last_access.astype(np.float64)

    def victims(self, features: Features, count: int) -> IntArray:
        return first_to_leave(features, features.last_access, count)

    def use(self, weights: Weights) -> None:
        """Recency has no weights."""

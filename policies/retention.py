"""Retention value: what a block is worth keeping for, as a weighted mean of three terms; the least worth leaves first.

    value = (α·frequency + β·attention + γ·position) / (α + β + γ), each term and the value in [0, 1]

- frequency is the mean of three views of the access history: how long ago the block was asked for, how long ago the
  time before (LRU-2: O'Neil et al., SIGMOD 1993; 0 if there was none, so that a block seen once is worth less than
  one seen twice), and its decayed count on a logarithmic scale.
- attention is its share of the softmax mass: 1/2 for an even share, up or down by 1/8 for each factor of two. Where
  it is unknown (engines with fused kernels) the term is left out and the other weights carry the value alone.
- position decays from the start of the sequence, where reuse between requests begins.

Ages are measured against the number of blocks, so nothing depends on the size of the tier or on the wall clock.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hifc_ray.messages import Weights
from hifc_ray.policies.ranking import first_to_leave
from hifc_ray.policy import Features
from hifc_ray.types import AnyArray, IntArray

RECENCY_TURNOVERS = 1.0  # age, in accesses per block held, at which recency has fallen to 1/e
HISTORY_TURNOVERS = 8.0  # the same for the access before the last
COUNT_DOUBLINGS = 4.0  # a decayed count of 2^4 - 1 and more is worth 1
POSITION_BLOCKS = 64.0  # depth at which position has fallen to 1/e
ATTENTION_DOUBLINGS = 8.0  # from worth nothing to worth 1: 1/16 to 16 times an even share


class Retention:
    """`EvictionPolicy` by retention value, with the newest weights that it was given."""

    name = "retention"

    def __init__(self) -> None:
        self.weights = Weights()

    def use(self, weights: Weights) -> None:
        """Take the weights if their version is newer than that of the present ones."""
        if weights.version > self.weights.version:
            self.weights = weights

    def values(self, features: Features) -> npt.NDArray[np.float64]:
        return retention_value(features, self.weights)

    def victims(self, features: Features, count: int) -> IntArray:
        return first_to_leave(features, self.values(features), count)


def retention_value(features: Features, weights: Weights) -> AnyArray:
    """[n] float64 in [0, 1]; 0 where no term with a weight is known."""
    known = ~np.isnan(features.attention)
    beta = np.where(known, weights.beta, 0.0)
    total = weights.alpha + beta + weights.gamma
    terms = weights.alpha * frequency_term(features) + weights.gamma * position_term(features)
    terms += beta * np.where(known, attention_term(features), 0.0)
    return np.divide(terms, total, out=np.zeros(len(features)), where=total > 0)


def frequency_term(features: Features) -> AnyArray:
    """[n] in [0, 1], from the last two accesses and the decayed count."""
    turnover = max(1, len(features))
    age = np.maximum(0, features.now - features.last_access) / turnover
    age_before = np.maximum(0, features.now - features.previous_access) / turnover
    recency = np.exp(-age / RECENCY_TURNOVERS)
    second = np.where(features.previous_access >= 0, np.exp(-age_before / HISTORY_TURNOVERS), 0.0)
    count = np.minimum(1.0, np.log2(1.0 + features.frequency) / COUNT_DOUBLINGS)
    views: AnyArray = recency + second + count
    return views / 3.0


def attention_term(features: Features) -> AnyArray:
    """[n] in [0, 1] from the share of attention relative to an even one; NaN where unknown."""
    share = np.maximum(features.attention.astype(np.float64), np.exp2(-ATTENTION_DOUBLINGS))
    return np.clip(0.5 + np.log2(share) / ATTENTION_DOUBLINGS, 0.0, 1.0)


def position_term(features: Features) -> AnyArray:
    """[n] in (0, 1], 1 for the first block of a sequence."""
    return np.exp(-features.position / POSITION_BLOCKS)

"""The order in which blocks leave, given a score for each: what every eviction policy here shares."""

from __future__ import annotations

import numpy as np

from hifc_ray.policy import Features
from hifc_ray.types import AnyArray, IntArray


def first_to_leave(features: Features, score: AnyArray, count: int) -> IntArray:
    """At most `count` rows, the first to leave first: foreign ones before all others, then by lowest score.

    Equal scores leave oldest access first, then deepest position, so that a chain is eaten from its end; then by row.
    """
    foreign = _lowest(np.flatnonzero(features.foreign), features, score, count)
    own = _lowest(np.flatnonzero(~features.foreign), features, score, count - len(foreign))
    return np.concatenate((foreign, own))


def _lowest(rows: IntArray, features: Features, score: AnyArray, count: int) -> IntArray:
    if count <= 0:
        return rows[:0]
    if count < len(rows):
        # Partition is linear; only the rows that may be chosen are sorted, with every row that ties with the last one.
        scores = score[rows]
        rows = rows[scores <= np.partition(scores, count - 1)[count - 1]]
    order = np.lexsort((-features.position[rows], features.last_access[rows], score[rows]))
    return rows[order[:count]]

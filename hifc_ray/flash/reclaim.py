"""Which segment gives up its room, and which of its blocks are written again: pure functions of numbers.

Segments leave in the order in which they were written, those of models that nobody uses before all others. A live
block of the segment is carried over if, by the eviction policy, it is worth more than most of what flash holds. What
may be carried is bounded by a share of the segment, so write amplification is bounded by 1 / (1 - share).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hifc_ray.types import BoolArray, IntArray

Values = npt.NDArray[np.float64]

CARRY_RANK = 0.5  # a block is carried if it is worth more than this share of all blocks on flash


@dataclass(frozen=True)
class SegmentView:
    """What is known of one sealed segment."""

    sequence: int  # rises with each segment of the log: the lowest is the oldest
    size_bytes: int
    live_bytes: int
    foreign_bytes: int = 0  # of the live ones, those of namespaces that no live engine uses


def choose_segment(views: Sequence[SegmentView]) -> int:
    """Index of the segment to reclaim: empty ones first, then those mostly foreign, then the oldest.

    Raises `ValueError` if there is none.
    """
    return min(range(len(views)), key=lambda index: _order(views[index]))


def ranks(values: Values, all_values: Values) -> Values:
    """[n] in [0, 1]: the share of `all_values` that is lower than each of `values`; 0 where there are none."""
    lower = np.searchsorted(np.sort(all_values), values, side="left")
    return lower / max(1, len(all_values))


def choose_carried(
    rank: Values, foreign: BoolArray, num_bytes: IntArray, budget_bytes: int, floor: float = CARRY_RANK
) -> IntArray:
    """Rows of the live blocks to write again, ascending: of those ranked above `floor`, the highest that fit.

    Foreign blocks are never carried. Of equal ranks the later row comes first: it was written last.
    """
    wanted = np.flatnonzero((rank > floor) & ~foreign)
    wanted = wanted[np.lexsort((-wanted, -rank[wanted]))]
    carried: IntArray = np.sort(wanted[np.cumsum(num_bytes[wanted]) <= budget_bytes])
    return carried


def _order(view: SegmentView) -> tuple[bool, bool, int]:
    own_bytes = view.live_bytes - view.foreign_bytes
    return own_bytes > 0, own_bytes >= view.foreign_bytes, view.sequence

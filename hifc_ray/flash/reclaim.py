"""Which segment gives up its room, and which of its blocks are written again: pure functions of numbers.

Each live block is ranked by what the eviction policy says that it is worth, among all blocks of the log. The segment
whose room holds the least worth gives it up, wherever it lies in the log: a segment of blocks that are still asked for
stays, which costs no write at all. Of the blocks in the chosen one those above a floor are carried over, best first, as
far as the credit goes: a share of what was admitted, saved up over a few segments. So write amplification is at most
1 + share, in the long run and not only by segment.

By replays of `hifc simulate`: the oldest segment first and a limit for each segment loses up to 5 points of hit ratio
to an ideal LRU store, this 1 at most, since hot blocks lie together and cold segments have little to carry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hifc_ray.policy import Features, Valuing
from hifc_ray.types import BoolArray, IntArray

Ranks = npt.NDArray[np.float64]

CARRY_RANK = 0.25  # a block is carried if it is worth more than this share of all blocks of the log
CREDIT_SEGMENTS = 8  # the most that is saved up for carrying, in segments
EXACT_BLOCKS = 1 << 18  # that are sorted in some 50 ms
DEPTH_ACCESSES = 3  # accesses that a block counts as older for each block before it in its sequence


@dataclass(frozen=True)
class SegmentView:
    """What is known of one sealed segment."""

    sequence: int  # rises with each segment of the log: the lowest is the oldest
    size_bytes: int
    live_bytes: int
    foreign_bytes: int = 0  # of the live ones, those of namespaces that no live engine uses
    worth: float = 0.0  # `segment_worth`

    @property
    def own_bytes(self) -> int:
        return self.live_bytes - self.foreign_bytes


def choose_segment(views: Sequence[SegmentView]) -> int:
    """Index of the segment to reclaim. Raises `ValueError` if there is none.

    Empty segments come first, then those without a block of a live namespace, those mostly foreign, and the least
    worth; of equal ones the oldest.
    """
    return min(range(len(views)), key=lambda index: _order(views[index]))


def choose_carried(
    rank: Ranks, foreign: BoolArray, num_bytes: IntArray, budget_bytes: int, floor: float = CARRY_RANK
) -> IntArray:
    """Rows of the live blocks to write again, ascending: of those ranked above `floor`, the highest that fit.

    `budget_bytes` is the credit, and at most the room there is. Foreign blocks are never carried. Of equal ranks the
    later row comes first: it was written last.
    """
    wanted = np.flatnonzero((rank > floor) & ~foreign)
    wanted = wanted[np.lexsort((-wanted, -rank[wanted]))]
    carried: IntArray = np.sort(wanted[np.cumsum(num_bytes[wanted]) <= budget_bytes])
    return carried


def ranks(policy: Valuing, features: Features) -> Ranks:
    """[n] in [0, 1): the share of these blocks that are worth less to keep. Give it all live blocks of the log.

    A block counts as older the deeper it lies, since without those before it it serves nobody. Of more than
    `EXACT_BLOCKS` the ranks are those among every so many of them.
    """
    aged = replace(features, last_access=features.last_access - DEPTH_ACCESSES * features.position)
    values = policy.values(aged)
    if len(values) > EXACT_BLOCKS:
        some = np.sort(values[:: len(values) // EXACT_BLOCKS + 1])
        return np.searchsorted(some, values) / len(some)
    order = np.lexsort((-features.position, values))
    result = np.empty(len(order))
    result[order] = np.arange(len(order)) / max(1, len(order))
    return result


def segment_worth(
    rank: Ranks, foreign: BoolArray, num_bytes: IntArray, segment: IntArray, num_segments: int, segment_bytes: int
) -> Ranks:
    """[num_segments] in [0, 1], from the live blocks of the log: of each its rank, its bytes and its segment's index.

    The mean over a segment's bytes of the root of the rank, with dead and foreign bytes worth nothing. The root, since
    blocks in the middle are asked for again nearly as often as the best.
    """
    weights = np.sqrt(rank) * num_bytes * ~foreign
    return np.bincount(segment, weights=weights, minlength=num_segments) / segment_bytes


class CarryCredit:
    """Bytes that may be carried over now: `share` of what was admitted, up to `CREDIT_SEGMENTS` segments' worth."""

    def __init__(self, share: float, segment_bytes: int) -> None:
        self._share = share
        self._most = float(CREDIT_SEGMENTS * segment_bytes)
        self._credit = 0.0

    @property
    def available_bytes(self) -> int:
        return int(self._credit)

    def admitted(self, num_bytes: int) -> None:
        """So much was written for the first time."""
        self._credit = min(self._most, self._credit + self._share * num_bytes)

    def carried(self, num_bytes: int) -> None:
        """So much was written again. Raises `ValueError` if that is more than there was credit for."""
        if num_bytes > self._credit:
            raise ValueError(f"{num_bytes} bytes carried over with a credit of {self._credit:.0f}")
        self._credit -= num_bytes


def _order(view: SegmentView) -> tuple[bool, bool, bool, float, int]:
    return view.live_bytes > 0, view.own_bytes > 0, view.own_bytes >= view.foreign_bytes, view.worth, view.sequence

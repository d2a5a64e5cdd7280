"""Flash as the simulator sees it: the log of segments that ships, and the ideal that it is measured against."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hifc_ray.flash import reclaim
from hifc_ray.hotness import Hotness
from hifc_ray.policy import EvictionPolicy, Features
from hifc_ray.sim.sizes import FlashSize
from hifc_ray.types import AnyArray, BoolArray, FingerprintArray, IntArray

NOWHERE = -1
NUM_INCUMBENTS = 64  # of the blocks that would leave next, as admission is shown them
NUM_VIEWS = 8  # segments that are looked at more closely


@dataclass
class Written:
    """What went to the device, and what left it, in blocks."""

    admitted: int = 0
    carried: int = 0
    dropped: int = 0
    num_segments: int = 0


class SimFlash(Protocol):
    """Blocks are rows: numbers of the trace."""

    written: Written

    def holds(self, blocks: IntArray) -> BoolArray:
        """[n], True where the block is on flash."""

    def touch(self, blocks: IntArray, turn: int) -> None:
        """These blocks, all on flash, were asked for together, in the order of their chain."""

    def append(self, blocks: IntArray, positions: IntArray, turn: int) -> None:
        """Write blocks that are not here, in this order."""

    def incumbents(self) -> Features:
        """A sample of the blocks that would leave next; none while there is room."""


class LogFlash:
    """Segments filled one after the other, one always free; the least worth gives up its room, some is carried."""

    def __init__(
        self, size: FlashSize, eviction: EvictionPolicy, fingerprints: FingerprintArray, carry_share: float
    ) -> None:
        num_blocks = len(fingerprints)
        self.size, self.written = size, Written()
        self._eviction, self._fingerprints = eviction, fingerprints
        self._hotness = Hotness(num_blocks, half_life=8.0 * size.num_blocks)
        self._sequence_of = np.full(num_blocks, NOWHERE, np.int64)  # of each block, that of its segment
        self._sealed: list[int] = []  # sequences, rising
        self._open: list[IntArray] = []
        self._room_blocks = 0
        self._sequence = NOWHERE
        self._credit = reclaim.CarryCredit(carry_share, size.segment_bytes)
        self._incumbents: IntArray = np.zeros(0, np.int64)
        self._begin()

    def holds(self, blocks: IntArray) -> BoolArray:
        here: BoolArray = self._sequence_of[blocks] != NOWHERE
        return here

    def touch(self, blocks: IntArray, turn: int) -> None:
        self._hotness.touch(blocks, turn)

    def incumbents(self) -> Features:
        return self._hotness.features(self._incumbents, self._fingerprints[self._incumbents])

    def append(self, blocks: IntArray, positions: IntArray, turn: int) -> None:
        self._hotness.born(blocks, positions, turn)
        self.written.admitted += len(blocks)
        while len(blocks):
            now, blocks = blocks[: self._room_blocks], blocks[self._room_blocks :]
            self._credit.admitted(len(now) * self.size.record_bytes)
            self._put(now)
            while not self._room_blocks:
                self._sealed.append(self._sequence)
                self._begin()
                if len(self._sealed) + 1 >= self.size.num_segments:
                    self._reclaim()

    def _put(self, blocks: IntArray) -> None:
        self._sequence_of[blocks] = self._sequence
        self._room_blocks -= len(blocks)

    def _begin(self) -> None:
        self._sequence += 1
        self._room_blocks = self.size.segment_blocks
        self.written.num_segments += 1

    def _reclaim(self) -> None:
        blocks = np.flatnonzero(self._sequence_of != NOWHERE)
        rank = reclaim.ranks(self._eviction, self._hotness.features(blocks))
        segments = np.searchsorted(self._sealed, self._sequence_of[blocks])  # the open one comes after all others
        victim, next_one = self._choose(rank, segments)
        rows = np.flatnonzero(segments == victim)
        record_bytes = self.size.record_bytes
        budget = min(self._credit.available_bytes, self._room_blocks * record_bytes)
        none, all_bytes = np.zeros(len(rows), np.bool_), np.full(len(rows), record_bytes)
        carried = blocks[rows[reclaim.choose_carried(rank[rows], none, all_bytes, budget)]]
        after = blocks[segments == next_one]
        del self._sealed[victim]
        self._sequence_of[blocks[rows]] = NOWHERE
        self._put(carried)
        self._credit.carried(len(carried) * record_bytes)
        self.written.carried += len(carried)
        self.written.dropped += len(rows) - len(carried)
        self._incumbents = after[:: max(1, -(-len(after) // NUM_INCUMBENTS))]

    def _choose(self, rank: AnyArray, segments: IntArray) -> tuple[int, int]:
        """The sealed segment to reclaim, and the one that would be next."""
        count, size = len(self._sealed), self.size
        sealed = np.flatnonzero(segments < count)
        foreign, num_bytes = np.zeros(len(sealed), np.bool_), np.full(len(sealed), size.record_bytes)
        worth = reclaim.segment_worth(rank[sealed], foreign, num_bytes, segments[sealed], count, size.segment_bytes)
        live = np.bincount(segments[sealed], minlength=count) * size.record_bytes
        # The others cannot be chosen: nothing is foreign here.
        lowest = np.argsort(worth, kind="stable")[:NUM_VIEWS].tolist()
        views = [
            reclaim.SegmentView(self._sealed[i], size.segment_bytes, int(live[i]), worth=float(worth[i]))
            for i in lowest
        ]
        victim = lowest.pop(reclaim.choose_segment(views))
        return victim, lowest[0] if lowest else victim


class LruFlash:
    """The ideal: the same bytes, every block written where any other was, the least recently used leaves first."""

    def __init__(self, capacity: int, num_blocks: int) -> None:
        self.written = Written()
        self._capacity = capacity
        self._here = np.zeros(num_blocks, np.bool_)
        self._order: OrderedDict[int, None] = OrderedDict()
        self._nothing = Hotness(1).features(np.zeros(0, np.int64))

    def holds(self, blocks: IntArray) -> BoolArray:
        here: BoolArray = self._here[blocks]
        return here

    def touch(self, blocks: IntArray, turn: int) -> None:
        for block in blocks[::-1].tolist():  # the first of a chain is asked for last, so it is the last to leave
            self._order.move_to_end(block)

    def append(self, blocks: IntArray, positions: IntArray, turn: int) -> None:
        self.written.admitted += len(blocks)
        self._order.update(dict.fromkeys(blocks.tolist()))
        self._here[blocks] = True
        while len(self._order) > self._capacity:
            gone, _ = self._order.popitem(last=False)
            self._here[gone] = False
            self.written.dropped += 1

    def incumbents(self) -> Features:
        return self._nothing

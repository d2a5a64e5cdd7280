"""Making room in the log of one volume: which segment goes, and which of its blocks are written again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hifc_ray import points
from hifc_ray.errors import CorruptRecord
from hifc_ray.flash import entries as columns
from hifc_ray.flash.address import Place
from hifc_ray.flash.device import pages
from hifc_ray.flash.entries import EntryArray
from hifc_ray.flash.index import Index
from hifc_ray.flash.log import SegmentLog
from hifc_ray.flash.reclaim import SegmentView, choose_carried, choose_segment, ranks
from hifc_ray.flash.record import EncodedBlock, again
from hifc_ray.flash.segment import Segment
from hifc_ray.flash.verify import check_whole
from hifc_ray.policy import Features
from hifc_ray.stats import Stats
from hifc_ray.types import IntArray, Tier

log = logging.getLogger(__name__)

SAMPLE_BLOCKS = 16_384  # of all blocks on flash, against which those of a segment are ranked
_CARRY_BYTES = 4 << 20  # read and written again in one go

Worth = Callable[[Features], npt.NDArray[np.float64]]  # what each block is worth keeping
Rewrite = Callable[[list[EncodedBlock]], None]


class Reclaimer:
    """For the holder of the volume's pen."""

    def __init__(
        self,
        segments: SegmentLog,
        index: Index,
        stats: Stats,
        lock: threading.Lock,
        carry_share: float,
        worth: Worth,
    ) -> None:
        self._log = segments
        self._index = index
        self._stats = stats
        self._lock = lock
        self._carry_share = carry_share
        self._worth = worth
        self._dice = np.random.default_rng(0)

    def make_room(self, needed_bytes: int, rewrite: Rewrite | None = None) -> bool:
        """Reclaim segments until so many bytes fit into the limit; False if those that are idle do not suffice.

        With `rewrite` the blocks that are worth it are carried over, and published at their new place before their old
        one goes; a kill in between leaves both, and the newer counts.
        """
        while self._log.used_bytes + needed_bytes > self._log.limit_bytes:
            victim = self._victim()
            if victim is None:
                return False
            points.reach("flash.reclaim.before")
            if rewrite is not None and self._carry_share:
                self._carry(victim, rewrite)
                points.reach("flash.reclaim.carried")
            dropped = self._log.drop(victim)
            if dropped is not None:
                self._stats.add("dropped_segments", tier=Tier.FLASH)
                self._stats.add("dropped_blocks", dropped, tier=Tier.FLASH)
        return True

    def next_to_leave(self, count: int) -> Features:
        """History of a sample of the blocks of the segment that would go next; of none while there is room."""
        next_bytes = 2 * self._log.cost_bytes  # the next segment, and the one that is kept free
        full = self._log.used_bytes + next_bytes > self._log.limit_bytes
        victim = self._victim() if full else None
        with self._lock:
            rows = self._index.rows_of(victim.number) if victim is not None else np.zeros(0, np.int64)
            return self._index.features(self._some(rows, count))

    def _victim(self) -> Segment | None:
        idle = self._log.idle()
        if not idle:
            return None
        with self._lock:
            foreign = self._index.foreign_bytes()
            views = [
                SegmentView(s.sequence, s.size_bytes, self._index.live(s.number)[1], foreign.get(s.number, 0))
                for s in idle
            ]
        return idle[choose_segment(views)]

    def _carry(self, victim: Segment, rewrite: Rewrite) -> None:
        rows, sizes = self._worth_carrying(victim)
        with self._lock:
            entries = self._index.entries(rows)
        begun = 0
        for after in range(1, len(entries) + 1):
            if after == len(entries) or sizes[begun : after + 1].sum() > _CARRY_BYTES:
                records = self.read(victim, entries[begun:after])
                rewrite(records)
                self._stats.add("carried_blocks", len(records), tier=Tier.FLASH)
                self._stats.add("carried_bytes", sum(r.record_bytes for r in records), tier=Tier.FLASH)
                begun = after

    def _worth_carrying(self, victim: Segment) -> tuple[IntArray, IntArray]:
        """Rows, in the order in which they lie, and bytes of their records."""
        with self._lock:
            rows = self._index.rows_of(victim.number)
            sizes, foreign = self._index.record_bytes(rows), self._index.hotness.foreign[rows]
            sample = self._some(self._index.rows(), SAMPLE_BLOCKS)
            features = self._index.features(np.concatenate((rows, sample)))
        values = self._worth(features)  # of all in one call, since ages are relative to the number of blocks
        budget_bytes = int(self._carry_share * victim.size_bytes)
        chosen = choose_carried(ranks(values[: len(rows)], values[len(rows) :]), foreign, sizes, budget_bytes)
        return rows[chosen], sizes[chosen]

    def _some(self, rows: IntArray, count: int) -> IntArray:
        return rows if len(rows) <= count else self._dice.choice(rows, count, replace=False)

    def read(self, victim: Segment, entries: EntryArray) -> list[EncodedBlock]:
        """The records that still hold; one that does not is lost with its segment."""
        records = []
        heads, wholes = columns.header_bytes(entries["extent"]), columns.record_bytes(entries["extent"])
        for offset, head, whole in zip(columns.offsets(entries["where"]), heads, wholes, strict=True):
            data = pages(int(whole))
            try:
                victim.read([data], int(offset))
                place = Place(victim.number, int(offset), int(head), int(whole - head))
                records.append(again(check_whole(data, victim, place), data[int(head) :]))
            except (CorruptRecord, OSError) as error:
                self._stats.add("corrupt", tier=Tier.FLASH, reason="carried")
                log.warning("a block was not carried over: %s", error)
        return records

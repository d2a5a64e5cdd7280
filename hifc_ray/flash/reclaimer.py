"""Making room in the log of one volume: which segment goes, and which of its blocks are written again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import numpy as np

from hifc_ray import points
from hifc_ray.errors import CorruptRecord
from hifc_ray.flash import entries as columns
from hifc_ray.flash.address import Place
from hifc_ray.flash.device import pages
from hifc_ray.flash.entries import EntryArray
from hifc_ray.flash.index import Index
from hifc_ray.flash.log import SegmentLog
from hifc_ray.flash.reclaim import (
    CarryCredit,
    Ranks,
    SegmentView,
    choose_carried,
    choose_segment,
    ranks,
    segment_worth,
)
from hifc_ray.flash.record import EncodedBlock, again
from hifc_ray.flash.segment import Segment
from hifc_ray.flash.verify import check_whole
from hifc_ray.policy import Features, Valuing
from hifc_ray.stats import Stats
from hifc_ray.types import AnyArray, IntArray, Tier

log = logging.getLogger(__name__)

_CHUNK_ROWS = 1 << 14  # copied while the lock is held
_CARRY_BYTES = 4 << 20  # read and written again in one go

Rewrite = Callable[[list[EncodedBlock]], None]


class Reclaimer:
    """For the holder of the volume's pen, but for `next_to_leave`. What may be carried over is `credit`."""

    def __init__(
        self,
        number: int,
        segments: SegmentLog,
        index: Index,
        stats: Stats,
        lock: threading.Lock,
        carry_share: float,
        policy: Valuing,
    ) -> None:
        self.credit = CarryCredit(carry_share, segments.segment_bytes)
        self._number = number
        self._log = segments
        self._index = index
        self._stats = stats
        self._lock = lock
        self._policy = policy
        self._dice = np.random.default_rng(0)
        self._next: tuple[int, Features] | None = None  # as of this many segments

    def make_room(self, needed_bytes: int, rewrite: Rewrite | None = None) -> bool:
        """Reclaim segments until so many bytes fit into the limit; False if those that are idle do not suffice.

        Also as long as there are too many of them: restarts and purges leave short ones, which hold the least worth.

        With `rewrite` the blocks that are worth it are carried over, and published at their new place before their old
        one goes; a kill in between leaves both, and the newer counts.
        """
        while not self._log.has_room(needed_bytes) or (self._log.crowded and (rewrite is not None or not needed_bytes)):
            idle = self._log.idle()
            if not idle:
                return False
            victim, rows, rank = self._choose(idle)
            points.reach("flash.reclaim.before")
            if rewrite is not None:
                self._carry(victim, rows, rank, rewrite)
                points.reach("flash.reclaim.carried")
            dropped = self._log.drop(victim, keep=needed_bytes > 0)
            if dropped is not None:
                self._stats.add("dropped_segments", tier=Tier.FLASH)
                self._stats.add("dropped_blocks", dropped, tier=Tier.FLASH)
        return True

    def next_to_leave(self, count: int) -> Features:
        """History of a sample of the blocks of the segment that would go next; of none while there is room."""
        next_bytes = 2 * self._log.cost_bytes  # the next segment, and the one that is kept free
        full = not self._log.has_room(next_bytes)
        known, so_far = self._next, self._log.last_sequence
        if known is not None and known[0] == so_far:
            return known[1]
        idle = self._log.idle()
        rows: IntArray = self._choose(idle)[1] if full and idle else np.zeros(0, np.int64)
        with self._lock:
            rows = rows[self._index.used(rows)]
            some = rows if len(rows) <= count else self._dice.choice(rows, count, replace=False)
            features = self._index.features(some)
        self._next = so_far, features
        return features

    def read(self, victim: Segment, entries: EntryArray) -> list[EncodedBlock]:
        """The records that still hold, ready to be written elsewhere; one that does not is lost with its segment."""
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

    def _choose(self, idle: Sequence[Segment]) -> tuple[Segment, IntArray, Ranks]:
        """The segment to give up, its rows in the order in which they lie, and the rank of each."""
        rows, features, sizes, numbers = self._snapshot()
        rank = ranks(self._policy, features)
        order = sorted(range(len(idle)), key=lambda position: idle[position].number)
        known = np.array([idle[position].number for position in order], np.int64)
        place = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        of_idle = known[place] == numbers
        views = self._views(
            [idle[p] for p in order], place[of_idle], rank[of_idle], features.take(of_idle), sizes[of_idle]
        )
        victim = idle[order[choose_segment(views)]]
        its = np.flatnonzero(numbers == victim.number)
        with self._lock:
            its = its[np.argsort(self._index.places(rows[its]))]
        return victim, rows[its], rank[its]

    def _snapshot(self) -> tuple[IntArray, Features, IntArray, IntArray]:
        """Rows of all blocks of the volume, their history, bytes of their records, numbers of their segments.

        Copied in chunks, so that nobody waits long for the lock; a row may get another block in between, which the
        holder of the pen looks at again before anything is done with it.
        """
        with self._lock:
            rows = self._index.on_volume(self._number)
        features, sizes, numbers = [], [], []
        for begin in range(0, max(1, len(rows)), _CHUNK_ROWS):
            part = rows[begin : begin + _CHUNK_ROWS]
            with self._lock:
                features.append(self._index.features(part))
                sizes.append(self._index.record_bytes(part))
                numbers.append(self._index.segments(part))
        return rows, Features.join(features), np.concatenate(sizes), np.concatenate(numbers)

    def _views(
        self, idle: list[Segment], segment: IntArray, rank: Ranks, features: Features, sizes: IntArray
    ) -> list[SegmentView]:
        count, foreign = len(idle), features.foreign
        worth = segment_worth(rank, foreign, sizes, segment, count, self._log.segment_bytes)
        live = np.bincount(segment, weights=sizes, minlength=count)
        of_others: AnyArray = np.bincount(segment, weights=sizes * foreign, minlength=count)
        return [
            SegmentView(s.sequence, s.size_bytes, int(live[row]), int(of_others[row]), float(worth[row]))
            for row, s in enumerate(idle)
        ]

    def _carry(self, victim: Segment, rows: IntArray, rank: Ranks, rewrite: Rewrite) -> None:
        room = self._log.open.room_bytes if self._log.open is not None else 0
        with self._lock:
            still = self._index.used(rows) & (self._index.segments(rows) == victim.number)
            rows, rank = rows[still], rank[still]
            sizes, foreign = self._index.record_bytes(rows), self._index.hotness.foreign[rows]
            chosen = choose_carried(rank, foreign, sizes, min(self.credit.available_bytes, room))
            entries, sizes = self._index.entries(rows[chosen]), sizes[chosen]
        begun = 0
        for after in range(1, len(entries) + 1):
            if after == len(entries) or sizes[begun : after + 1].sum() > _CARRY_BYTES:
                records = self.read(victim, entries[begun:after])
                rewrite(records)
                self._stats.add("carried_blocks", len(records), tier=Tier.FLASH)
                self._stats.add("carried_bytes", sum(r.record_bytes for r in records), tier=Tier.FLASH)
                begun = after

"""The log: which segments there are, who reads them, what they occupy, which one goes when room is needed."""

from __future__ import annotations

import errno
import threading
from collections.abc import Set

from hifc_ray import points
from hifc_ray.errors import FlashFull, StaleAddress
from hifc_ray.flash import hint
from hifc_ray.flash.device import METADATA_BYTES, Device
from hifc_ray.flash.format import hint_name, segment_name
from hifc_ray.flash.index import Index
from hifc_ray.flash.segment import Segment, begin
from hifc_ray.flash.sizing import BASE_BYTES, segment_cost
from hifc_ray.stats import Stats
from hifc_ray.types import Namespace, Tier

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class SegmentLog:
    """Segments in the order of their sequence numbers. Takes the store's lock itself, and never holds it during I/O.

    `with_room`, `seal` and `make_room` are for the holder of the store's pen, one thread at a time.
    """

    def __init__(
        self, device: Device, index: Index, stats: Stats, lock: threading.Lock, limit_bytes: int, segment_bytes: int
    ) -> None:
        self.limit_bytes = limit_bytes
        self.segment_bytes = segment_bytes
        self._device = device
        self._index = index
        self._stats = stats
        self._lock = lock
        self._segments: dict[int, Segment] = {}  # by sequence, which rises
        self._charges: dict[int, int] = {}  # bytes of the limit that each occupies, at most
        self._open: Segment | None = None
        self._next_sequence = 1

    def adopt(self, segments: list[Segment], sizes: dict[str, int]) -> None:
        """Take over what recovery found; `sizes` is what lies on the device now."""
        for segment in segments:
            names = (segment_name(segment.sequence), hint_name(segment.sequence))
            self._segments[segment.sequence] = segment
            self._charges[segment.sequence] = sum(sizes.get(name, 0) for name in names) + METADATA_BYTES
            self._next_sequence = segment.sequence + 1

    @property
    def used_bytes(self) -> int:
        """Bytes that everything in the directory occupies, at most."""
        with self._lock:
            return self._used()

    @property
    def num_segments(self) -> int:
        return len(self._segments)

    def acquire(self, sequence: int) -> Segment:
        """The segment, kept until `release`. Raises `StaleAddress` if it is gone."""
        with self._lock:
            segment = self._segments.get(sequence)
            if segment is None:
                raise StaleAddress(f"segment {sequence} has been dropped")
            segment.readers += 1
            return segment

    def release(self, segment: Segment) -> None:
        with self._lock:
            segment.readers -= 1
            last = segment.gone and not segment.readers
        if last:
            segment.extent.close()

    def with_room(self, record_bytes: int, live: Set[Namespace]) -> Segment:
        """The open segment if this record fits, else a new one. Raises `FlashFull` or OSError; may be tried again."""
        if self._open is not None and self._open.room_bytes >= record_bytes:
            return self._open
        self.seal()
        self._open = self._begin(live)
        return self._open

    def seal(self) -> None:
        """Seal the open segment. If its hint cannot be written, it serves on, and a restart scans it."""
        segment, self._open = self._open, None
        if segment is None:
            return
        with self._lock:
            entries = self._index.entries(segment.sequence)
        if not entries:
            self._discard(segment)
            return
        try:
            hint_bytes = hint.seal(self._device, segment, entries)
        except OSError:
            segment.sealed = True
            self._stats.add("write_refused", tier=Tier.FLASH, reason="hint")
            return
        with self._lock:
            self._charges[segment.sequence] = segment.end + hint_bytes + 2 * METADATA_BYTES
        self._stats.add("device_written_bytes", hint_bytes, tier=Tier.FLASH)

    def make_room(self, needed_bytes: int, live: Set[Namespace]) -> None:
        """Drop segments until so many bytes fit into the limit: those without a live namespace first, then the oldest.

        A segment that is being read is passed over, since its bytes stay on the device until the read ends.
        """
        while self.used_bytes + needed_bytes > self.limit_bytes:
            points.reach("flash.drop.before")
            with self._lock:
                segment = self._victim(live)
                if segment is None:
                    raise FlashFull(f"{needed_bytes} bytes do not fit: {self._used()} of {self.limit_bytes} in use")
                del self._segments[segment.sequence]
                dropped = self._index.drop_segment(segment.sequence)
            points.reach("flash.drop.index")
            self._delete(segment)
            self._stats.add("dropped_segments", tier=Tier.FLASH)
            self._stats.add("dropped_blocks", dropped, tier=Tier.FLASH)

    def close(self) -> None:
        """Let go of every segment; those that are being read close with their last reader."""
        with self._lock:
            segments = list(self._segments.values())
            self._segments.clear()
            for segment in segments:
                segment.gone = True
            idle = [segment for segment in segments if not segment.readers]
        for segment in idle:
            segment.extent.close()

    def _used(self) -> int:
        return BASE_BYTES + sum(self._charges.values())

    def _victim(self, live: Set[Namespace]) -> Segment | None:
        idle = [s for s in self._segments.values() if s.sealed and not s.readers]
        foreign = (s for s in idle if self._index.all_foreign(s.sequence, live))
        return next(foreign, idle[0] if idle else None)

    def _begin(self, live: Set[Namespace]) -> Segment:
        cost = segment_cost(self.segment_bytes)
        self.make_room(cost, live)
        sequence = self._next_sequence
        name = segment_name(sequence)
        with self._lock:
            self._charges[sequence] = cost
        try:
            extent = self._device.create(name, self.segment_bytes)
        except OSError as error:
            self._forget(sequence)
            if error.errno in _NO_ROOM:
                raise FlashFull(f"{self._device.path}: no room for a segment of {self.segment_bytes} bytes") from error
            raise
        self._next_sequence += 1
        try:
            segment = begin(sequence, extent)
        except OSError:
            extent.close()
            self._device.delete(name)
            self._forget(sequence)
            raise
        with self._lock:
            self._segments[sequence] = segment
        self._stats.add("device_written_bytes", segment.end, tier=Tier.FLASH)
        return segment

    def _discard(self, segment: Segment) -> None:
        with self._lock:
            del self._segments[segment.sequence]
            self._index.drop_segment(segment.sequence)
            segment.gone = True
            idle = not segment.readers
        self._delete(segment, close=idle)

    def _delete(self, segment: Segment, *, close: bool = True) -> None:
        self._device.delete(hint_name(segment.sequence))
        self._device.delete(segment_name(segment.sequence))
        if close:
            segment.extent.close()
        self._forget(segment.sequence)

    def _forget(self, sequence: int) -> None:
        with self._lock:
            self._charges.pop(sequence, None)

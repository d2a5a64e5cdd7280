"""The log of one volume: which segments there are, who reads and writes them, what they occupy."""

from __future__ import annotations

import errno
import threading

from hifc_ray import points
from hifc_ray.errors import FlashFull, StaleAddress
from hifc_ray.flash import filters, hint
from hifc_ray.flash.address import MAX_SEQUENCE
from hifc_ray.flash.device import METADATA_BYTES, Device, Extent, pages
from hifc_ray.flash.format import hint_name, segment_name
from hifc_ray.flash.index import Index
from hifc_ray.flash.segment import Segment, begin
from hifc_ray.flash.sizing import BASE_BYTES, segment_cost
from hifc_ray.stats import Stats
from hifc_ray.types import Fate, Tier

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class SegmentLog:
    """Segments in the order of their sequence numbers. Takes the store's lock itself, and never holds it during I/O.

    `begin`, `reserve` and `finish` are for the holder of the volume's pen, one thread at a time.
    """

    def __init__(
        self,
        number: int,
        device: Device,
        index: Index,
        stats: Stats,
        lock: threading.Lock,
        limit_bytes: int,
        segment_bytes: int,
        filter_fpr: float,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.segment_bytes = segment_bytes
        self.cost_bytes = segment_cost(segment_bytes)
        self.open: Segment | None = None
        self._number = number
        self._device = device
        self._index = index
        self._stats = stats
        self._lock = lock
        self._filter_fpr = filter_fpr
        self._changed = threading.Condition(lock)
        self._segments: dict[int, Segment] = {}  # by number, which rises
        self._charges: dict[int, int] = {}  # by number: bytes of the limit that each occupies, at most
        self._small_bytes = 0  # of small files beside the segments
        self._next_sequence = 1

    def adopt(self, segments: list[Segment], sizes: dict[str, int]) -> None:
        """Take over what recovery found; `sizes` is what lies on the device now."""
        for segment in segments:
            names = (segment_name(segment.sequence), hint_name(segment.sequence))
            self._segments[segment.number] = segment
            self._charges[segment.number] = sum(sizes.get(name, 0) for name in names) + METADATA_BYTES
            self._next_sequence = segment.sequence + 1

    def set_aside(self, num_bytes: int) -> None:
        """Bytes of the limit for small files that are none of the log's, so that it never takes them."""
        self._small_bytes = num_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that everything in the directory occupies, at most."""
        with self._lock:
            return BASE_BYTES + self._small_bytes + sum(self._charges.values())

    @property
    def last_sequence(self) -> int:
        """Of the newest segment that was begun here."""
        return self._next_sequence - 1

    @property
    def segments(self) -> list[Segment]:
        """All segments, the oldest first."""
        with self._lock:
            return list(self._segments.values())

    def idle(self) -> list[Segment]:
        """Sealed segments that nobody reads, the oldest first. The bytes of others cannot be given back now."""
        with self._lock:
            return [s for s in self._segments.values() if s.sealed and not s.readers]

    def acquire(self, number: int) -> Segment:
        """The segment, kept until `release`. Raises `StaleAddress` if it is gone."""
        with self._lock:
            segment = self._segments.get(number)
            if segment is None:
                raise StaleAddress(f"segment {number} has been dropped")
            segment.readers += 1
            return segment

    def release(self, segment: Segment) -> None:
        with self._lock:
            segment.readers -= 1
            last = segment.gone and not segment.readers
        if last:
            segment.extent.close()

    def begin(self) -> Segment:
        """A new open segment. Raises `FlashFull` if the limit or the device has no room for one, or OSError."""
        if self.used_bytes + self.cost_bytes > self.limit_bytes:
            raise FlashFull(f"{self.cost_bytes} bytes do not fit: {self.used_bytes} of {self.limit_bytes} in use")
        sequence = self._next_sequence
        if sequence > MAX_SEQUENCE:
            raise FlashFull(f"{self._device.path}: {sequence} segments were written; allowed: {MAX_SEQUENCE}")
        extent = self._create(sequence)
        try:
            segment = begin(sequence, extent, self._number)
        except OSError:
            extent.close()
            self._device.delete(segment_name(sequence))
            raise
        with self._lock:
            self._segments[segment.number] = segment
            self._charges[segment.number] = self.cost_bytes
        self._stats.add("device_written_bytes", segment.end, tier=Tier.FLASH, reason="segments")
        self.open = segment
        return segment

    def reserve(self, segment: Segment, num_bytes: int) -> int:
        """Room at the end of the open segment for one write; `written` must follow. Returns its offset."""
        with self._lock:
            offset = segment.end
            segment.end += num_bytes
            segment.writers += 1
            return offset

    def written(self, segment: Segment) -> None:
        """A write has returned, well or not. The last one of a full segment seals it."""
        with self._lock:
            segment.writers -= 1
            last = segment.full and not segment.writers
        if last:
            self._seal(segment)

    def finish(self) -> None:
        """The open segment takes no more records; it is sealed when what is being written to it has returned."""
        segment, self.open = self.open, None
        if segment is None:
            return
        with self._lock:
            segment.full = True
            idle = not segment.writers
        if idle:
            self._seal(segment)

    def wait_until_sealed(self, timeout_s: float) -> bool:
        """True once every segment but the open one is sealed."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(s.sealed for s in self._segments.values() if s is not self.open), timeout_s
            )

    def drop(self, segment: Segment) -> int:
        """Take a segment and its blocks out, then delete it; returns how many blocks there were."""
        points.reach("flash.drop.before")
        with self._lock:
            self._segments.pop(segment.number, None)
            rows = self._index.rows_of(segment.number)
            self._index.remove(rows, Fate.DROPPED)
            segment.gone = True
            idle = not segment.readers
        points.reach("flash.drop.index")
        self._device.delete(hint_name(segment.sequence))
        self._device.delete(segment_name(segment.sequence))
        if idle:
            segment.extent.close()
        with self._lock:
            self._charges.pop(segment.number, None)
        return len(rows)

    def rewrite_hint(self, segment: Segment) -> None:
        """Make a sealed segment's hint say what the index says now. Raises OSError."""
        with self._lock:
            entries = self._index.entries(self._index.rows_of(segment.number))
        data = hint.encode(segment, entries)
        self._device.put(hint_name(segment.sequence), data)
        self._stats.add("device_written_bytes", len(data), tier=Tier.FLASH, reason="hints")

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

    def seal_recovered(self, segment: Segment) -> None:
        """Seal what a scan has read, so that the next start need not."""
        segment.full = True
        self._seal(segment)

    def _create(self, sequence: int) -> Extent:
        try:
            return self._device.create(segment_name(sequence), self.segment_bytes)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise FlashFull(f"{self._device.path}: no room for a segment of {self.segment_bytes} bytes") from error
            raise
        finally:
            self._next_sequence += 1

    def _seal(self, segment: Segment) -> None:
        """Filter and data made durable, then the hint. Without a hint it serves on, and a restart scans it.

        The order is the promise: a hint that survives a power loss speaks of data that has survived it too.
        """
        with self._lock:
            rows = self._index.rows_of(segment.number)
            entries = self._index.entries(rows)
        if not len(rows):
            self._discard(segment)
            return
        points.reach("flash.seal.before")
        try:
            data = filters.segment_filter(entries["key"], self._filter_fpr, segment.uuid, segment.sequence)
            footer = pages(len(data))
            footer[:] = data
            segment.write([footer], segment.end)
            points.reach("flash.seal.footer")
            segment.trim(segment.end + len(footer))
            segment.extent.sync()
            points.reach("flash.seal.synced")
            data = hint.encode(segment, entries)
            self._device.put(hint_name(segment.sequence), data)
        except OSError:
            self._stats.add("write_refused", tier=Tier.FLASH, reason="hint")
            self._sealed(segment)
            return
        self._stats.add("device_written_bytes", len(data), tier=Tier.FLASH, reason="hints")
        self._stats.add("device_written_bytes", len(footer), tier=Tier.FLASH, reason="filters")
        self._sealed(segment, segment.size_bytes + len(data) + 2 * METADATA_BYTES)

    def _sealed(self, segment: Segment, charge_bytes: int | None = None) -> None:
        with self._changed:
            segment.sealed = True
            if segment.number in self._segments and charge_bytes is not None:
                self._charges[segment.number] = charge_bytes
            self._changed.notify_all()

    def _discard(self, segment: Segment) -> None:
        with self._changed:
            segment.sealed = True
            self._changed.notify_all()
        self.drop(segment)

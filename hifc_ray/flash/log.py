"""The log of one volume: which segments there are, who reads and writes them, what they occupy."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable

from hifc_ray import points
from hifc_ray.errors import FlashFull, StaleAddress
from hifc_ray.flash import filters, hint
from hifc_ray.flash.address import MAX_SEQUENCE, segment_number, sequence_of
from hifc_ray.flash.device import METADATA_BYTES, Device, pages
from hifc_ray.flash.format import hint_name, segment_name
from hifc_ray.flash.index import Index
from hifc_ray.flash.segment import Segment, begin
from hifc_ray.flash.sizing import BASE_BYTES, segment_cost
from hifc_ray.flash.spare import Spare
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.stats import Stats
from hifc_ray.types import Fate, Tier

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

SHORT_SEGMENTS = 64  # that restarts and purges have sealed early, besides as many as fit twice into the limit


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
        on_written: Callable[[str, int], None],
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
        self._on_written = on_written  # what, and how many bytes: of all that is written beside records
        self._changed = threading.Condition(lock)
        self._segments: dict[int, Segment] = {}  # by number, which rises
        self._charges: dict[int, int] = {}  # by number: bytes of the limit that each occupies, at most
        self._small_bytes = 0  # of small files beside the segments
        self.keeps_files = True  # of dropped segments; not while a purge is under way: what they held lies in them
        self._spare: Spare | None = None  # a dropped segment whose file the next one takes over
        self._spare_bytes = 0  # of the limit that it occupies
        self._next_sequence = 1

    def adopt(self, segments: list[Segment], sizes: dict[str, int]) -> None:
        """Take over what recovery found; `sizes` is what lies on the device now."""
        for segment in segments:
            names = (segment_name(segment.sequence), hint_name(segment.sequence))
            self._segments[segment.number] = segment
            self._charges[segment.number] = sum(sizes.get(name, 0) for name in names) + METADATA_BYTES
            self.number_after(segment.sequence)

    def number_after(self, sequence: int) -> None:
        """New segments have higher numbers than this one."""
        self._next_sequence = max(self._next_sequence, sequence + 1)

    def set_aside(self, num_bytes: int, *, found: bool = False) -> bool:
        """Bytes of the limit for small files that are none of the log's, so that it never takes them.

        False, and nothing changes, if the limit has no room for them, unless they were `found` there.
        """
        while True:
            with self._lock:
                more = num_bytes - self._small_bytes
                if found or more <= 0 or self._used_bytes() + more <= self.limit_bytes:
                    self._small_bytes = num_bytes
                    return True
            if not self.give_up_spare():
                return False

    @property
    def used_bytes(self) -> int:
        """Bytes that everything in the directory occupies, at most."""
        with self._lock:
            return self._used_bytes()

    def has_room(self, num_bytes: int) -> bool:
        """Has the limit room for so many bytes of new segments, which take over the spare?"""
        with self._lock:
            return self._used_bytes() - min(self._spare_bytes, num_bytes) + num_bytes <= self.limit_bytes

    @property
    def oldest_sequence(self) -> int:
        """Of the segments that are still on the device."""
        with self._lock:
            sequences = [sequence_of(number) for number in self._charges]
        return min(sequences, default=self._next_sequence)

    @property
    def last_sequence(self) -> int:
        """Of the newest segment that was begun here."""
        return self._next_sequence - 1

    @property
    def position(self) -> tuple[int, int]:
        """The newest segment, and where its next record goes."""
        with self._lock:
            newest = self._segments.get(segment_number(self._number, self.last_sequence))
            return self.last_sequence, newest.end if newest is not None else 0

    def bytes_since(self, sequence: int, offset: int) -> int:
        """At most how much has been written behind a former `position`, filters and hints included."""
        with self._lock:
            newer = [charge for number, charge in self._charges.items() if sequence_of(number) > sequence]
            gone = self.last_sequence - sequence - len(newer)
            its = self._charges.get(segment_number(self._number, sequence), self.cost_bytes if sequence else 0)
        return sum(newer) + gone * self.cost_bytes + max(0, its - offset)

    @property
    def crowded(self) -> bool:
        """Are there more segments than short ones explain? Each has a descriptor open."""
        return len(self._segments) > 2 * (self.limit_bytes // self.segment_bytes) + SHORT_SEGMENTS

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
        sequence, spare = self._claim()
        try:
            segment = self._create(sequence, spare)
        except BaseException:
            self._device.delete(segment_name(sequence))  # if it cannot, it stays counted
            with self._lock:
                del self._charges[segment_number(self._number, sequence)]
            raise
        with self._lock:
            self._segments[segment.number] = segment
        self._on_written("segments", segment.end)
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

    def wait_until_sealed(self, timeout_s: float, last_sequence: int = MAX_SEQUENCE) -> bool:
        """True once every segment up to this one, but for the open one, is sealed."""

        def sealed() -> bool:
            segments = (s for s in self._segments.values() if s.sequence <= last_sequence)
            return all(segment.sealed for segment in segments if segment is not self.open)

        with self._changed:
            return self._changed.wait_for(sealed, timeout_s)

    def drop(self, segment: Segment, *, keep: bool = False) -> int | None:
        """Drop an idle segment, and forget its blocks; how many there were. None if it is being read: then it stays.

        Its bytes would stay on the device until the read ends, and the limit would not hold. OSError: it stays as well,
        so that a device which deletes nothing costs no block. Its file is deleted or, with `keep`, may stay, blank, for
        the next segment.
        """
        points.reach("flash.drop.before")
        with self._lock:
            if segment.readers or self._segments.pop(segment.number, None) is None:
                return None
        try:
            self._device.delete(hint_name(segment.sequence))
            points.reach("flash.drop.hint")
            spare = self._blank(segment) if keep and self.keeps_files else None
            if spare is None:
                self._device.delete(segment_name(segment.sequence))
        except OSError:
            with self._lock:
                self._segments = dict(sorted({**self._segments, segment.number: segment}.items()))
            raise
        if spare is None:
            segment.extent.close()
        with self._lock:
            rows = self._index.rows_of(segment.number)
            self._index.remove(rows, Fate.DROPPED)
            charge = self._charges.pop(segment.number)
            if spare is not None:
                self._spare, self._spare_bytes = spare, charge
        points.reach("flash.drop.index")
        return len(rows)

    def give_up_spare(self) -> bool:
        """Delete the file that is kept for the next segment; False if there is none. Raises OSError: then it stays."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is None:
            return False
        try:
            self._device.delete(spare.name)
        except OSError:
            with self._lock:
                self._spare = spare
            raise
        spare.close()
        with self._lock:
            self._spare_bytes = 0
        return True

    def settle_spare(self) -> None:
        """Spare the holder of the pen the wait for a flush, which waits for all that is being written."""
        spare = self._spare
        if spare is not None:
            with contextlib.suppress(OSError):  # then the holder of the pen is told
                spare.settle(wait=False)

    def rewrite_hint(self, segment: Segment) -> None:
        """Make a sealed segment's hint say what the index says now. Raises OSError; then a restart scans it."""
        with self._lock:
            entries = self._index.entries(self._index.rows_of(segment.number))
        data = hint.encode(segment, entries)
        self._device.delete(hint_name(segment.sequence))  # the limit has no room for two
        self._device.put(hint_name(segment.sequence), data)
        self._on_written("hints", len(data))

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
        if self._spare is not None:
            self._spare.close()

    def seal_recovered(self, segment: Segment) -> None:
        """Seal what a scan has read, so that the next start need not."""
        segment.full = True
        self._seal(segment)

    def _used_bytes(self) -> int:
        return BASE_BYTES + self._small_bytes + self._spare_bytes + sum(self._charges.values())

    def _claim(self) -> tuple[int, Spare | None]:
        """Sequence number of a new segment, for which the limit has room that is now taken; the spare, if any."""
        sequence = self._next_sequence
        if sequence > MAX_SEQUENCE:
            raise FlashFull(f"{self._device.path}: {sequence} segments were written; allowed: {MAX_SEQUENCE}")
        with self._lock:
            used = self._used_bytes() - self._spare_bytes
            if used + self.cost_bytes > self.limit_bytes:
                raise FlashFull(f"{self.cost_bytes} bytes do not fit: {used} of {self.limit_bytes} in use")
            self._charges[segment_number(self._number, sequence)] = self.cost_bytes
            spare, self._spare, self._spare_bytes = self._spare, None, 0
        self._next_sequence += 1
        return sequence, spare

    def _create(self, sequence: int, spare: Spare | None) -> Segment:
        name = segment_name(sequence)
        try:
            if spare is not None:
                spare.settle()
                extent = self._device.reuse(spare.name, name, self.segment_bytes)
            else:
                extent = self._device.create(name, self.segment_bytes)
        except OSError as error:
            if spare is not None:
                self._device.delete(spare.name)
            if error.errno in _NO_ROOM:
                raise FlashFull(f"{self._device.path}: no room for a segment of {self.segment_bytes} bytes") from error
            raise
        finally:
            if spare is not None:
                spare.close()
        try:
            segment = begin(sequence, extent, self._number)
        except OSError:
            extent.close()
            raise
        segment.reused = spare is not None
        return segment

    def _blank(self, segment: Segment) -> Spare | None:
        """A dropped segment's file, to be kept; None if it is not wanted."""
        if self._spare is not None or not self.segment_bytes // 2 <= segment.size_bytes <= self.cost_bytes:
            return None
        try:
            spare = Spare(segment)
        except OSError:
            return None
        self._on_written("segments", PAGE_BYTES)
        points.reach("flash.drop.blank")
        return spare

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
            self._on_written("filters", len(footer))
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
        self._on_written("hints", len(data))
        self._sealed(segment, segment.size_bytes + len(data) + 2 * METADATA_BYTES)

    def _sealed(self, segment: Segment, charge_bytes: int | None = None) -> None:
        with self._changed:
            segment.sealed = True
            segment.owners.clear()
            if segment.number in self._segments and charge_bytes is not None:
                self._charges[segment.number] = charge_bytes
            self._changed.notify_all()

    def _discard(self, segment: Segment) -> None:
        """Delete a segment that holds nothing that counts; one that is being read, or cannot be deleted, goes later."""
        with self._changed:
            segment.sealed = True
            self._changed.notify_all()
        try:
            self.drop(segment)
        except OSError:
            self._stats.add("write_refused", tier=Tier.FLASH, reason="delete")

"""Reading a segment that has no believable hint: every record in it that holds, wherever holes lie between them.

Records name their segment and offset, so what begins on a page and passes its checks is a record of this segment. What
does not (a write that was torn, failed or erased, or what the file held before) is passed over, page by page.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hifc_ray.errors import CorruptRecord
from hifc_ray.flash.address import Place
from hifc_ray.flash.device import pages
from hifc_ray.flash.entries import EntryArray, entry, join_rows
from hifc_ray.flash.record import MAGIC, RecordHeader, length_of_header, read_header
from hifc_ray.flash.segment import Segment
from hifc_ray.flash.verify import belongs, check_stripes
from hifc_ray.layout import PAGE_BYTES

_WINDOW_BYTES = 1 << 20


class _OfOthers(CorruptRecord):
    """What the file held before, or what lay elsewhere."""


@dataclass
class Found:
    """The blocks of a segment, where the last of them ends, and how much of torn records was passed over."""

    rows: list[EntryArray] = field(default_factory=list)
    end: int = PAGE_BYTES
    cut_bytes: int = 0

    @property
    def entries(self) -> EntryArray:
        return join_rows(self.rows)


def scan(segment: Segment) -> Found:
    """The records of a segment whose headers and payloads hold. Writes nothing."""
    found, heads = Found(), _Heads(segment)
    payload = pages(PAGE_BYTES)
    at = heads.next(PAGE_BYTES)
    while at is not None:
        try:
            header = _header(segment, at)
            if not belongs(header, segment, at) or len(header.keys) != 1:
                raise _OfOthers
            if len(payload) < header.payload_bytes:
                payload = pages(header.payload_bytes)
            body = payload[: header.payload_bytes]
            segment.read([body], at + header.header_bytes)
            wrong = check_stripes(header, body)
            if wrong is not None:
                raise CorruptRecord(f"record at {at}: {wrong.detail}")
        except (CorruptRecord, OSError) as error:
            found.cut_bytes += 0 if isinstance(error, _OfOthers) else PAGE_BYTES
            at = heads.next(at + PAGE_BYTES)
            continue
        place = Place(segment.number, at, header.header_bytes, header.payload_bytes)
        found.rows.append(entry(header.keys[0], header.namespace, header.owner, header.positions[0], place))
        found.end = place.end
        at = heads.next(place.end)
    return found


class _Heads:
    """Where records may begin: the pages with their magic, looked for a window at a time."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._window = pages(_WINDOW_BYTES)
        self._begin = self._end = 0

    def next(self, offset: int) -> int | None:
        """The first such page at or behind `offset`. One that cannot be read is none."""
        while offset < self._segment.size_bytes:
            if not self._begin <= offset < self._end:
                self._load(offset)
            view = np.frombuffer(self._window, "S8")[:: PAGE_BYTES // 8]
            first, last = (offset - self._begin) // PAGE_BYTES, (self._end - self._begin) // PAGE_BYTES
            hits = np.flatnonzero(view[first:last] == MAGIC)
            if len(hits):
                return offset + int(hits[0]) * PAGE_BYTES
            offset = self._end
        return None

    def _load(self, offset: int) -> None:
        self._begin = offset
        self._end = min(offset + _WINDOW_BYTES, self._segment.size_bytes)
        window = self._window[: self._end - offset]
        try:
            self._segment.read([window], offset)
        except OSError:
            for at in range(0, len(window), PAGE_BYTES):
                self._load_page(window[at : at + PAGE_BYTES], offset + at)

    def _load_page(self, page: memoryview, offset: int) -> None:
        try:
            self._segment.read([page], offset)
        except OSError:
            page[:] = bytes(len(page))


def _header(segment: Segment, offset: int) -> RecordHeader:
    first_page = pages(PAGE_BYTES)
    segment.read([first_page], offset)
    length = length_of_header(first_page)
    head = first_page
    if length > PAGE_BYTES:
        head = pages(length)
        segment.read([head], offset)
    return read_header(head)

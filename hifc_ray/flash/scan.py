"""Reading a segment that has no believable hint: record after record, until the first that does not hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from hifc_ray.errors import CorruptRecord
from hifc_ray.flash.address import Place, pack
from hifc_ray.flash.device import pages
from hifc_ray.flash.index import Entry
from hifc_ray.flash.record import RecordHeader, length_of_header, read_header
from hifc_ray.flash.segment import Segment
from hifc_ray.flash.verify import belongs, check_stripes
from hifc_ray.layout import PAGE_BYTES


@dataclass
class Found:
    """What a segment holds up to `end`, and how much of a torn record came after that."""

    entries: list[Entry] = field(default_factory=list)
    end: int = PAGE_BYTES
    cut_bytes: int = 0


def scan(segment: Segment) -> Found:
    """The records of a segment whose headers and payloads hold; the first that does not ends it. Writes nothing."""
    found = Found()
    first_page, payload = pages(PAGE_BYTES), pages(PAGE_BYTES)
    ordinal = -1
    while found.end < segment.size_bytes:
        torn = PAGE_BYTES
        try:
            segment.read([first_page], found.end)
            if not any(first_page):
                break
            header = _header(segment, first_page, found.end, ordinal)
            place = Place(segment.sequence, found.end, header.header_bytes, header.payload_bytes)
            torn = min(place.end, segment.size_bytes) - place.offset
            if len(payload) < header.payload_bytes:
                payload = pages(header.payload_bytes)
            body = payload[: header.payload_bytes]
            segment.read([body], place.offset + place.header_bytes)
            if check_stripes(header, body) is not None:
                raise CorruptRecord(f"record at {found.end} is torn")
        except (CorruptRecord, OSError):
            found.cut_bytes = torn
            break
        found.entries.append(Entry(header.keys[0], header.namespace, pack(place)))
        ordinal, found.end = header.ordinal, place.end
    return found


def _header(segment: Segment, first_page: memoryview, offset: int, last_ordinal: int) -> RecordHeader:
    length = length_of_header(first_page)
    head = first_page
    if length > PAGE_BYTES:
        head = pages(length)
        segment.read([head], offset)
    header = read_header(head)
    if not belongs(header, segment, offset) or header.ordinal <= last_ordinal or len(header.keys) != 1:
        raise CorruptRecord(f"record at {offset} is not the next one of segment {segment.sequence}")
    return header

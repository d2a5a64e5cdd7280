"""The guards between flash and everybody else: nothing is served that does not pass every one of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hifc_ray.codecs import by_code
from hifc_ray.errors import CorruptRecord
from hifc_ray.flash.address import Place
from hifc_ray.flash.format import checksum
from hifc_ray.flash.record import RecordHeader, read_header
from hifc_ray.flash.segment import Segment
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.types import Key, Namespace


@dataclass(frozen=True)
class Mismatch:
    """Which guard a record failed (header, key, namespace, segment or stripe), and how."""

    reason: str
    detail: str
    at: int = 0  # where in the payload the stripe begins
    head: bytes = b""  # the first page of the header, as it was read


def check_record(
    head: memoryview, payload: memoryview, key: Key, namespace: Namespace, segment: Segment, place: Place
) -> Mismatch | None:
    """None if these bytes are the whole block that was stored under this key at this place."""
    header = _header(head, key, namespace, segment, place)
    wrong = header if isinstance(header, Mismatch) else check_stripes(header, payload)
    return wrong and replace(wrong, head=bytes(head[:PAGE_BYTES]))


def check_header(head: memoryview, key: Key, namespace: Namespace, segment: Segment, place: Place) -> RecordHeader:
    """The header of the block that was stored under this key at this place. Raises `CorruptRecord` for any other."""
    header = _header(head, key, namespace, segment, place)
    if isinstance(header, Mismatch):
        raise CorruptRecord(f"segment {segment.sequence} at {place.offset}: {header.reason}: {header.detail}")
    return header


def _header(
    head: memoryview, key: Key, namespace: Namespace, segment: Segment, place: Place
) -> RecordHeader | Mismatch:
    try:
        header = read_header(head)
        codec = by_code(header.codec)
    except CorruptRecord as error:
        return Mismatch("header", str(error))
    if header.keys != (key,):
        return Mismatch("key", f"record of {', '.join(k.hex()[:16] for k in header.keys)}, asked for {key.hex()[:16]}")
    if header.namespace != namespace:
        return Mismatch("namespace", f"record of {header.namespace.hex()[:16]}, asked for {namespace.hex()[:16]}")
    if not belongs(header, segment, place.offset):
        return Mismatch("segment", f"record of segment {header.segment} at {header.offset}")
    if not codec.verbatim or header.payload_bytes != place.payload_bytes:
        return Mismatch("header", f"codec {codec.name} with {header.payload_bytes} bytes in {place.payload_bytes}")
    return header


def belongs(header: RecordHeader, segment: Segment, offset: int) -> bool:
    """Was this header written into this very segment, at this offset?"""
    found = (header.segment, header.segment_uuid, header.offset)
    return found == (segment.sequence, segment.uuid, offset)


def check_stripes(
    header: RecordHeader, payload: memoryview, first: int = 0, count: int | None = None
) -> Mismatch | None:
    """None if every stripe, or `count` of them from `first` on, has its checksum; `payload` begins with the first."""
    rows = header.stripes if count is None else header.stripes[first : first + count]
    at = 0
    for stripe, (length, digest) in enumerate(zip(rows["length"].tolist(), rows["encoded"].tolist(), strict=True)):
        if checksum(payload[at : at + length]) != digest:
            return Mismatch("stripe", f"stripe {first + stripe} of {len(header.stripes)}", at)
        at += length
    return None


def check_whole(data: memoryview, segment: Segment, place: Place) -> RecordHeader:
    """The header of a record that was read whole. Raises `CorruptRecord` unless all of it holds at this place."""
    header = read_header(data[: place.header_bytes])
    if not belongs(header, segment, place.offset) or header.payload_bytes != place.payload_bytes:
        raise CorruptRecord(f"record at {place.offset} of segment {segment.sequence} is that of another place")
    wrong = check_stripes(header, data[place.header_bytes :])
    if wrong is not None:
        raise CorruptRecord(f"record at {place.offset} of segment {segment.sequence}: {wrong.detail}")
    return header

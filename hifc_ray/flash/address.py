"""Where a record lies. An address is one packed integer, of which the index keeps the two parts in arrays."""

from __future__ import annotations

from typing import NamedTuple, NewType, TypeVar

from hifc_ray.layout import PAGE_BYTES
from hifc_ray.types import IntArray

Address = NewType("Address", int)  # volume | segment of the volume | first page || pages of header | pages of payload

_VOLUME_BITS, _SEQUENCE_BITS, OFFSET_BITS = 6, 26, 32
_HEADER_BITS, PAYLOAD_BITS = 4, 28
EXTENT_BITS = _HEADER_BITS + PAYLOAD_BITS
MAX_VOLUMES = 1 << _VOLUME_BITS
MAX_SEQUENCE = (1 << _SEQUENCE_BITS) - 1
MAX_HEADER_BYTES = ((1 << _HEADER_BITS) - 1) * PAGE_BYTES
MAX_PAYLOAD_BYTES = ((1 << PAYLOAD_BITS) - 1) * PAGE_BYTES
MAX_SEGMENT_BYTES = ((1 << OFFSET_BITS) - 1) * PAGE_BYTES
S = TypeVar("S", int, IntArray)


class Place(NamedTuple):
    """An address, unpacked. `offset` is that of the header; the payload follows it."""

    segment: int  # number of the segment, with that of its volume
    offset: int
    header_bytes: int
    payload_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.header_bytes + self.payload_bytes


def segment_number(volume: int, sequence: int) -> int:
    """One number for a segment of a volume."""
    return volume << _SEQUENCE_BITS | sequence


def sequence_of(segment: int) -> int:
    """The sequence number on its volume of a segment."""
    return segment & MAX_SEQUENCE


def volume_of_segment(segment: S) -> S:
    """Which volume a segment, or each of an array of them, is on."""
    return segment >> _SEQUENCE_BITS


def pack_where(segment: int, offset: int) -> int:
    """Segment and first page in 64 bits."""
    return segment << OFFSET_BITS | offset // PAGE_BYTES


def pack_extent(header_bytes: int, payload_bytes: int) -> int:
    """Pages of header and of payload in 32 bits."""
    return header_bytes // PAGE_BYTES << PAYLOAD_BITS | payload_bytes // PAGE_BYTES


def join(where: int, extent: int) -> Address:
    """The address of the two parts that the index keeps."""
    return Address(where << EXTENT_BITS | extent)


def pack(place: Place) -> Address:
    """The address of a place; all byte counts are whole pages within the limits above."""
    return join(pack_where(place.segment, place.offset), pack_extent(place.header_bytes, place.payload_bytes))


def unpack(address: Address) -> Place:
    """The place of an address."""
    payload = address & ((1 << PAYLOAD_BITS) - 1)
    header = address >> PAYLOAD_BITS & ((1 << _HEADER_BITS) - 1)
    offset = address >> EXTENT_BITS & ((1 << OFFSET_BITS) - 1)
    return Place(segment_of(address), offset * PAGE_BYTES, header * PAGE_BYTES, payload * PAGE_BYTES)


def segment_of(address: Address) -> int:
    """Number of the segment that holds it."""
    return address >> (OFFSET_BITS + EXTENT_BITS)


def volume_of(address: Address) -> int:
    """Number of the volume that holds it."""
    return volume_of_segment(segment_of(address))

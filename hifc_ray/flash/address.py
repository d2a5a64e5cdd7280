"""Where a record lies. An address is one packed integer, so that the index spends 36 bytes on it."""

from __future__ import annotations

from typing import NamedTuple, NewType

from hifc_ray.layout import PAGE_BYTES

Address = NewType("Address", int)  # segment | first page | pages of payload | pages of header

_HEADER_BITS, _PAYLOAD_BITS, _OFFSET_BITS = 4, 20, 28
MAX_HEADER_BYTES = ((1 << _HEADER_BITS) - 1) * PAGE_BYTES
MAX_PAYLOAD_BYTES = ((1 << _PAYLOAD_BITS) - 1) * PAGE_BYTES  # 4 GiB
MAX_SEGMENT_BYTES = ((1 << _OFFSET_BITS) - 1) * PAGE_BYTES  # 1 TiB
_SEGMENT_SHIFT = _HEADER_BITS + _PAYLOAD_BITS + _OFFSET_BITS


class Place(NamedTuple):
    """An address, unpacked. `offset` is that of the header; the payload follows it."""

    segment: int
    offset: int
    header_bytes: int
    payload_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.header_bytes + self.payload_bytes


def pack(place: Place) -> Address:
    """The address of a place; all byte counts are whole pages within the limits above."""
    packed = place.segment << _OFFSET_BITS | place.offset // PAGE_BYTES
    packed = packed << _PAYLOAD_BITS | place.payload_bytes // PAGE_BYTES
    return Address(packed << _HEADER_BITS | place.header_bytes // PAGE_BYTES)


def unpack(address: Address) -> Place:
    """The place of an address."""
    header = address & ((1 << _HEADER_BITS) - 1)
    payload = address >> _HEADER_BITS & ((1 << _PAYLOAD_BITS) - 1)
    offset = address >> (_HEADER_BITS + _PAYLOAD_BITS) & ((1 << _OFFSET_BITS) - 1)
    return Place(address >> _SEGMENT_SHIFT, offset * PAGE_BYTES, header * PAGE_BYTES, payload * PAGE_BYTES)


def segment_of(address: Address) -> int:
    """Sequence number of the segment that holds it."""
    return address >> _SEGMENT_SHIFT

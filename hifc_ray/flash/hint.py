"""Hint files: what a sealed segment holds, so that a restart need not read it.

Stamp, segment uuid and sequence, end of its records, number of blocks; a row for each block (see `entries.ENTRY`) in
the order in which they lie; XXH3-64 of all of it.
"""

from __future__ import annotations

import struct

import numpy as np

from hifc_ray.errors import CorruptRecord
from hifc_ray.flash import entries as columns
from hifc_ray.flash.address import OFFSET_BITS
from hifc_ray.flash.entries import ENTRY, EntryArray
from hifc_ray.flash.format import CHECKSUM_BYTES, STAMP, check_checksum, check_stamp, put_checksum, stamp
from hifc_ray.flash.segment import Segment
from hifc_ray.layout import PAGE_BYTES

MAGIC = b"HIFC-HNT"

_FIXED = struct.Struct("<16sQQQ")
_OFFSET_MASK = np.uint64((1 << OFFSET_BITS) - 1)


def encode(segment: Segment, entries: EntryArray) -> bytes:
    """The hint of a segment whose blocks are these, in the order in which they lie."""
    rows = entries.copy()
    rows["where"] &= _OFFSET_MASK
    fixed = _FIXED.pack(segment.uuid, segment.sequence, segment.end, len(rows))
    data = bytearray(stamp(MAGIC) + fixed + rows.tobytes() + bytes(CHECKSUM_BYTES))
    put_checksum(memoryview(data))
    return bytes(data)


def decode(data: bytes, segment: Segment) -> tuple[int, EntryArray]:
    """(end, blocks) of a segment. Raises `CorruptRecord` unless all of it fits this very segment, or `NewerFormat`."""
    what = f"hint of segment {segment.sequence}"
    check_stamp(data, MAGIC, what)
    check_checksum(data, what)
    at = STAMP.size + _FIXED.size
    if len(data) < at + CHECKSUM_BYTES:
        raise CorruptRecord(f"{what}: only {len(data)} bytes")
    uuid, sequence, end, num_entries = _FIXED.unpack_from(data, STAMP.size)
    if (uuid, sequence) != (segment.uuid, segment.sequence):
        raise CorruptRecord(f"{what}: it is that of segment {sequence}, {uuid.hex()}")
    if len(data) != at + num_entries * ENTRY.itemsize + CHECKSUM_BYTES:
        raise CorruptRecord(f"{what}: {len(data)} bytes for {num_entries} blocks")
    entries = np.frombuffer(data, ENTRY, num_entries, at).copy()
    _check_places(entries, end, segment, what)
    entries["where"] |= np.uint64(segment.number << OFFSET_BITS)
    return end, entries


def _check_places(entries: EntryArray, end: int, segment: Segment, what: str) -> None:
    begins = columns.offsets(entries["where"])
    heads, wholes = columns.header_bytes(entries["extent"]), columns.record_bytes(entries["extent"])
    ends = begins + wholes
    before = np.concatenate(([PAGE_BYTES], ends[:-1]))
    wrong = (begins < before) | (heads == 0) | (wholes == heads) | (ends > end) | (entries["where"] > _OFFSET_MASK)
    if wrong.any():
        row = int(wrong.argmax())
        raise CorruptRecord(f"{what}: a record at {begins[row]} to {ends[row]} of {end}")
    if not PAGE_BYTES <= end <= segment.size_bytes:
        raise CorruptRecord(f"{what}: ends at {end} of {segment.size_bytes}")

"""Sealing, and the hint files that it leaves: what a sealed segment holds, so that a restart need not read it.

Stamp, segment uuid and sequence, end of the segment, number of namespaces and of entries; the namespaces; an entry for
each block (key, namespace row, offset, header and payload bytes in pages); XXH3-64 of all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from hifc_ray import points
from hifc_ray.errors import CorruptRecord
from hifc_ray.flash.address import Place, pack, unpack
from hifc_ray.flash.device import Device
from hifc_ray.flash.format import CHECKSUM_BYTES, STAMP, check_checksum, check_stamp, hint_name, put_checksum, stamp
from hifc_ray.flash.index import Entry
from hifc_ray.flash.segment import Segment
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.types import KEY_BYTES, Key, Namespace

MAGIC = b"HIFC-HNT"

_FIXED = struct.Struct("<16sQQII")
_ENTRY = np.dtype(
    [("key", "u1", KEY_BYTES), ("namespace", "<u4"), ("offset", "<u8"), ("header", "<u4"), ("payload", "<u8")]
)


def encode(segment: Segment, entries: Sequence[Entry]) -> bytes:
    """The hint of a segment whose blocks are these, in the order of their addresses."""
    namespaces = {namespace: row for row, namespace in enumerate(sorted({entry.namespace for entry in entries}))}
    rows = np.zeros(len(entries), _ENTRY)
    for row, entry in enumerate(entries):
        place = unpack(entry.address)
        key = np.frombuffer(entry.key, np.uint8)
        rows[row] = (key, namespaces[entry.namespace], place.offset, place.header_bytes, place.payload_bytes)
    fixed = _FIXED.pack(segment.uuid, segment.sequence, segment.end, len(namespaces), len(entries))
    data = bytearray(stamp(MAGIC) + fixed + b"".join(namespaces) + rows.tobytes() + bytes(CHECKSUM_BYTES))
    put_checksum(memoryview(data))
    return bytes(data)


def seal(device: Device, segment: Segment, entries: Sequence[Entry]) -> int:
    """Close a segment for writing: give back its rest, make its data durable, then its hint. Returns the hint's bytes.

    The order is the promise: a hint that survives a power loss speaks of data that has survived it too.
    """
    points.reach("flash.seal.before")
    segment.sealed = True
    segment.trim()
    segment.extent.sync()
    data = encode(segment, entries)
    device.put(hint_name(segment.sequence), data)
    return len(data)


def decode(data: bytes, segment: Segment) -> tuple[int, list[Entry]]:
    """(end, blocks) of a segment. Raises `CorruptRecord` unless all of it fits this very segment, or `NewerFormat`."""
    what = f"hint of segment {segment.sequence}"
    check_stamp(data, MAGIC, what)
    check_checksum(data, what)
    at = STAMP.size + _FIXED.size
    if len(data) < at + CHECKSUM_BYTES:
        raise CorruptRecord(f"{what}: only {len(data)} bytes")
    uuid, sequence, end, num_namespaces, num_entries = _FIXED.unpack_from(data, STAMP.size)
    if (uuid, sequence) != (segment.uuid, segment.sequence):
        raise CorruptRecord(f"{what}: it is that of segment {sequence}, {uuid.hex()}")
    entries_at = at + num_namespaces * KEY_BYTES
    if len(data) != entries_at + num_entries * _ENTRY.itemsize + CHECKSUM_BYTES:
        raise CorruptRecord(f"{what}: {len(data)} bytes for {num_entries} blocks")
    namespaces = [Namespace(data[i : i + KEY_BYTES]) for i in range(at, entries_at, KEY_BYTES)]
    rows = np.frombuffer(data, _ENTRY, num_entries, entries_at)
    entries = [_entry(row, namespaces, segment.sequence, what) for row in rows]
    _check_places(entries, end, segment, what)
    return end, entries


def _entry(row: np.void, namespaces: list[Namespace], sequence: int, what: str) -> Entry:
    name = int(row["namespace"])
    if name >= len(namespaces):
        raise CorruptRecord(f"{what}: namespace {name} of {len(namespaces)}")
    place = Place(sequence, int(row["offset"]), int(row["header"]), int(row["payload"]))
    address = pack(place)
    if unpack(address) != place:
        raise CorruptRecord(f"{what}: no record can lie at {tuple(place)}")
    return Entry(Key(row["key"].tobytes()), namespaces[name], address)


def _check_places(entries: list[Entry], end: int, segment: Segment, what: str) -> None:
    at = PAGE_BYTES
    for entry in entries:
        place = unpack(entry.address)
        if place.offset < at or not place.header_bytes or not place.payload_bytes or place.end > end:
            raise CorruptRecord(f"{what}: a record at {place.offset} to {place.end} of {end}")
        at = place.end
    if not at <= end <= segment.size_bytes:
        raise CorruptRecord(f"{what}: ends at {end} of {segment.size_bytes}")

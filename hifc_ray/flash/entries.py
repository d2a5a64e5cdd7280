"""What is known of blocks on flash besides their bytes, a row each: the currency of index, hints, scans and writers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from hifc_ray.flash.address import (
    OFFSET_BITS,
    PAYLOAD_BITS,
    Address,
    Place,
    join,
    pack_extent,
    pack_where,
    volume_of_segment,
)
from hifc_ray.flash.key_table import KeyArray
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.types import AnyArray, IntArray, Key, Namespace, Owner

# Also the rows of a hint file, so its layout is part of the format. `where` is without the volume there.
ENTRY = np.dtype(
    [
        ("key", "<u8", 4),
        ("namespace", "<u8", 4),
        ("tenant", "<u8"),
        ("session", "<u8"),
        ("where", "<u8"),  # segment and first page
        ("extent", "<u4"),  # pages of header and payload
        ("position", "<u4"),  # index of the block in its sequence
    ]
)
EntryArray = npt.NDArray[np.void]

_ROW, _WORDS = struct.Struct("<32s32sQQQII"), struct.Struct("<4Q4QQQQII")  # the same row, its keys as bytes or as words


def entry(key: Key, namespace: Namespace, owner: Owner, position: int, place: Place) -> EntryArray:
    """One row."""
    where, extent = pack_where(place.segment, place.offset), pack_extent(place.header_bytes, place.payload_bytes)
    return np.frombuffer(_ROW.pack(key, namespace, *owner, where, extent, position), ENTRY)


def numbers(row: EntryArray) -> tuple[list[int], int, int, int, int, int]:
    """Key, tenant, session, where, extent and position of one row as plain numbers."""
    found = _WORDS.unpack(row.tobytes())
    tenant, session, where, extent, position = found[8:]
    return list(found[:4]), tenant, session, where, extent, position


def join_rows(rows: Sequence[EntryArray]) -> EntryArray:
    """All rows in one array."""
    if len(rows) == 1:
        return rows[0]
    return np.concatenate(rows) if rows else np.zeros(0, ENTRY)


def keys_as_words(keys: Iterable[Key]) -> KeyArray:
    """[n, 4], the keys as numbers."""
    return np.frombuffer(b"".join(keys), "<u8").reshape(-1, 4)


def key_of(words: AnyArray) -> Key:
    return Key(words.tobytes())


def addresses(rows: AnyArray) -> list[Address]:
    """The address of each row."""
    return [join(where, extent) for where, extent in zip(rows["where"].tolist(), rows["extent"].tolist(), strict=True)]


def segments(where: AnyArray) -> IntArray:
    """[n] number of the segment."""
    return (where >> np.uint64(OFFSET_BITS)).astype(np.int64)


def volumes(where: AnyArray) -> IntArray:
    """[n] number of the volume."""
    return volume_of_segment(segments(where))


def offsets(where: AnyArray) -> IntArray:
    """[n] bytes from the head of the segment to the header."""
    return (where & np.uint64((1 << OFFSET_BITS) - 1)).astype(np.int64) * PAGE_BYTES


def header_bytes(extent: AnyArray) -> IntArray:
    """[n] bytes of the header."""
    return (extent >> np.uint32(PAYLOAD_BITS)).astype(np.int64) * PAGE_BYTES


def record_bytes(extent: AnyArray) -> IntArray:
    """[n] bytes of header and payload."""
    return header_bytes(extent) + (extent & np.uint32((1 << PAYLOAD_BITS) - 1)).astype(np.int64) * PAGE_BYTES

from __future__ import annotations

import struct

import numpy as np
import pytest

from hifc_ray.errors import CorruptRecord, NewerFormat
from hifc_ray.flash import MemoryDevice, hint
from hifc_ray.flash.address import Place, segment_number
from hifc_ray.flash.entries import EntryArray, addresses, entry, join_rows
from hifc_ray.flash.format import put_checksum
from hifc_ray.flash.segment import Segment, begin
from hifc_ray.types import Owner
from tests.fakes.flash import BLOCK_BYTES, OURS, RECORD_BYTES, SEGMENT_BYTES, THEIRS, key

VOLUME = 2
SEGMENT = segment_number(VOLUME, 3)


def row(number: int, place: Place) -> EntryArray:
    return entry(key(number), THEIRS if number % 2 else OURS, Owner(number, 2**64 - 1), 7 * number, place)


def segment_with(num_blocks: int, volume: int = VOLUME) -> tuple[Segment, EntryArray]:
    segment = begin(3, MemoryDevice().create("x", SEGMENT_BYTES), volume)
    rows = []
    for number in range(num_blocks):
        place = Place(segment.number, segment.end, 4096, BLOCK_BYTES)
        rows.append(row(number, place))
        segment.end = place.end
    return segment, join_rows(rows)


def test_a_hint_says_what_its_segment_holds() -> None:
    segment, entries = segment_with(5)
    end, found = hint.decode(hint.encode(segment, entries), segment)
    assert end == 4096 + 5 * RECORD_BYTES
    assert np.array_equal(found, entries)


def test_a_hint_says_nothing_of_the_volume_so_a_directory_may_become_another_one() -> None:
    segment, entries = segment_with(2)
    moved = Segment(3, segment.uuid, segment.extent, volume=0)
    moved.end = segment.end
    _, found = hint.decode(hint.encode(segment, entries), moved)
    _, there = segment_with(2, volume=0)
    assert addresses(found) == addresses(there)


def test_every_flipped_bit_is_noticed() -> None:
    segment, entries = segment_with(2)
    data = bytearray(hint.encode(segment, entries))
    for bit in range(0, len(data) * 8, 7):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            hint.decode(bytes(data), segment)
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("length", [0, 10, 60, -1, -96])
def test_a_cut_hint_is_not_believed(length: int) -> None:
    segment, entries = segment_with(2)
    with pytest.raises(CorruptRecord):
        hint.decode(hint.encode(segment, entries)[:length], segment)


def test_a_hint_of_another_segment_is_not_believed() -> None:
    segment, entries = segment_with(2)
    twin, _ = segment_with(2)
    with pytest.raises(CorruptRecord, match="it is that of segment 3"):
        hint.decode(hint.encode(segment, entries), twin)
    renumbered = Segment(4, segment.uuid, segment.extent)
    with pytest.raises(CorruptRecord, match="it is that of segment 3"):
        hint.decode(hint.encode(segment, entries), renumbered)


@pytest.mark.parametrize(
    "place",
    [
        Place(SEGMENT, 0, 4096, BLOCK_BYTES),  # over the segment's header
        Place(SEGMENT, SEGMENT_BYTES - 4096, 4096, BLOCK_BYTES),  # over its end
        Place(SEGMENT, 4096, 0, BLOCK_BYTES),
        Place(SEGMENT, 4096, 4096, 0),
        Place(SEGMENT, 4096, 4096, BLOCK_BYTES + 4096),  # over its neighbour
    ],
)
def test_an_address_that_does_not_fit_spoils_the_hint(place: Place) -> None:
    segment, entries = segment_with(2)
    entries[0] = row(0, place)[0]
    with pytest.raises(CorruptRecord):
        hint.decode(hint.encode(segment, entries), segment)


def test_holes_between_records_do_not() -> None:
    segment, entries = segment_with(3)
    _, found = hint.decode(hint.encode(segment, entries[::2]), segment)
    assert np.array_equal(found, entries[::2])


def test_a_hint_beyond_its_segment_is_not_believed() -> None:
    segment, entries = segment_with(2)
    data = hint.encode(segment, entries)
    segment.size_bytes = segment.end - 4096
    with pytest.raises(CorruptRecord):
        hint.decode(data, segment)


def test_a_hint_of_a_newer_release_is_told_from_a_broken_one() -> None:
    segment, entries = segment_with(1)
    data = bytearray(hint.encode(segment, entries))
    data[8:16] = struct.pack("<II", 9, 9 ^ 0xFFFFFFFF)
    put_checksum(memoryview(data))
    with pytest.raises(NewerFormat, match="format 9"):
        hint.decode(bytes(data), segment)

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hifc_ray.flash.address import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_SEGMENT_BYTES,
    MAX_SEQUENCE,
    MAX_VOLUMES,
    Place,
    pack,
    segment_number,
    segment_of,
    sequence_of,
    unpack,
    volume_of,
    volume_of_segment,
)
from hifc_ray.layout import PAGE_BYTES


def page_count(most_bytes: int) -> st.SearchStrategy[int]:
    return st.integers(0, most_bytes // PAGE_BYTES).map(lambda count: count * PAGE_BYTES)


OFFSETS, HEADERS, PAYLOADS = map(page_count, (MAX_SEGMENT_BYTES, MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES))


@given(st.integers(0, MAX_VOLUMES - 1), st.integers(0, MAX_SEQUENCE), OFFSETS, HEADERS, PAYLOADS)
def test_a_place_survives_packing(
    volume: int, sequence: int, offset: int, header_bytes: int, payload_bytes: int
) -> None:
    segment = segment_number(volume, sequence)
    address = pack(Place(segment, offset, header_bytes, payload_bytes))
    assert unpack(address) == Place(segment, offset, header_bytes, payload_bytes)
    assert (segment_of(address), sequence_of(segment), volume_of_segment(segment)) == (segment, sequence, volume)
    assert volume_of(address) == volume
    assert address < 2**96

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from hifc_ray.flash.address import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_SEGMENT_BYTES,
    Place,
    pack,
    segment_of,
    unpack,
)
from hifc_ray.layout import PAGE_BYTES


def page_count(most_bytes: int) -> st.SearchStrategy[int]:
    return st.integers(0, most_bytes // PAGE_BYTES).map(lambda count: count * PAGE_BYTES)


OFFSETS, HEADERS, PAYLOADS = map(page_count, (MAX_SEGMENT_BYTES, MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES))


@given(st.integers(0, 2**32), OFFSETS, HEADERS, PAYLOADS)
def test_a_place_survives_packing(segment: int, offset: int, header_bytes: int, payload_bytes: int) -> None:
    place = Place(segment, offset, header_bytes, payload_bytes)
    assert unpack(pack(place)) == place
    assert segment_of(pack(place)) == segment


def test_an_address_costs_36_bytes() -> None:
    assert sys.getsizeof(pack(Place(2**32, MAX_SEGMENT_BYTES, MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES))) <= 36

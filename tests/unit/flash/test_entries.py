from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hifc_ray.flash import entries as columns
from hifc_ray.flash.address import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_SEGMENT_BYTES,
    MAX_SEQUENCE,
    MAX_VOLUMES,
    Place,
    pack,
    segment_number,
)
from hifc_ray.flash.entries import ENTRY, addresses, entry, join_rows, key_of, keys_as_words
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.types import NOBODY, Owner
from tests.fakes.flash import OURS, THEIRS, key


def bytes_up_to(most: int) -> st.SearchStrategy[int]:
    return st.integers(0, most // PAGE_BYTES).map(lambda pages: pages * PAGE_BYTES)


PLACES = st.builds(
    Place,
    st.builds(segment_number, st.integers(0, MAX_VOLUMES - 1), st.integers(0, MAX_SEQUENCE)),
    bytes_up_to(MAX_SEGMENT_BYTES),
    bytes_up_to(MAX_HEADER_BYTES),
    bytes_up_to(MAX_PAYLOAD_BYTES),
)


@given(st.lists(PLACES, min_size=1, max_size=5))
def test_the_columns_of_places_say_what_their_addresses_say(places: list[Place]) -> None:
    rows = join_rows([entry(key(1), OURS, NOBODY, 0, place) for place in places])
    assert addresses(rows) == [pack(place) for place in places]
    assert columns.segments(rows["where"]).tolist() == [place.segment for place in places]
    assert columns.offsets(rows["where"]).tolist() == [place.offset for place in places]
    assert columns.header_bytes(rows["extent"]).tolist() == [place.header_bytes for place in places]
    assert columns.record_bytes(rows["extent"]).tolist() == [place.end - place.offset for place in places]
    assert columns.volumes(rows["where"]).tolist() == [place.segment >> 26 for place in places]


def test_a_row_keeps_all_of_a_block() -> None:
    owner = Owner(2**64 - 1, 2**63)
    (row,) = entry(key(1), THEIRS, owner, 2**32 - 1, Place(3, 4096, 4096, 8192))
    assert key_of(row["key"]) == key(1)
    assert row["namespace"].tobytes() == THEIRS
    assert (int(row["tenant"]), int(row["session"]), int(row["position"])) == (*owner, 2**32 - 1)


def test_keys_as_words_are_their_bytes() -> None:
    found = keys_as_words([key(1), key(2)])
    assert found.shape == (2, 4)
    assert [key_of(words) for words in found] == [key(1), key(2)]
    assert keys_as_words([]).shape == (0, 4)


def test_no_rows_are_rows_too() -> None:
    assert len(join_rows([])) == 0
    assert join_rows([]).dtype == ENTRY
    assert addresses(np.zeros(0, ENTRY)) == []


def test_a_row_of_a_hint_has_96_bytes_in_a_fixed_order() -> None:
    assert ENTRY.itemsize == 96
    assert [ENTRY.fields[name][1] for name in ENTRY.names or ()] == [0, 32, 64, 72, 80, 88, 92]  # type: ignore[index]

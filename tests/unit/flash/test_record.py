from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from hifc_ray import codecs
from hifc_ray.errors import CorruptRecord
from hifc_ray.flash.address import MAX_HEADER_BYTES
from hifc_ray.flash.device import pages
from hifc_ray.flash.format import checksum
from hifc_ray.flash.record import STRIPE_DTYPE, FlashBlock, RecordHeader, encode, read_header, write_header
from hifc_ray.types import Owner
from tests.fakes.flash import BLOCK_BYTES, LAYOUT, NUM_STRIPES, OURS, STRIPE_BYTES, block, key

RAW = codecs.by_name("raw")


def header_of(num_blocks: int, num_stripes: int = NUM_STRIPES) -> RecordHeader:
    rows = num_blocks * num_stripes
    stripes = np.zeros(rows, STRIPE_DTYPE)
    stripes["length"], stripes["encoded"], stripes["raw"] = STRIPE_BYTES, np.arange(rows), np.arange(rows) * 7
    return RecordHeader(
        codec=0,
        keys=tuple(key(number) for number in range(num_blocks)),
        namespace=OURS,
        layout_text=LAYOUT,
        num_stripes=num_stripes,
        stripe_bytes=STRIPE_BYTES,
        num_tokens=256,
        positions=tuple(range(5, 5 + num_blocks)),
        stripes=stripes,
        segment=77,
        segment_uuid=b"u" * 16,
        offset=8192,
        payload_bytes=rows * STRIPE_BYTES,
        owner=Owner(2**64 - 1, 12),
    )


def written(header: RecordHeader) -> memoryview:
    data = pages(header.header_bytes)
    write_header(header, data)
    return data


@pytest.mark.parametrize("num_blocks", [1, 2, 4])
@pytest.mark.parametrize("num_stripes", [1, 30, 126])
def test_a_header_of_a_run_survives_writing(num_blocks: int, num_stripes: int) -> None:
    header = header_of(num_blocks, num_stripes)
    data = written(header)
    assert len(data) % 4096 == 0
    found = read_header(data)
    assert np.array_equal(found.stripes, header.stripes)
    assert dataclasses.replace(found, stripes=header.stripes) == header


def test_a_run_of_three_is_none() -> None:
    with pytest.raises(CorruptRecord, match="3 blocks"):
        read_header(written(header_of(3)))


def test_every_flipped_bit_of_a_header_is_noticed() -> None:
    data = written(header_of(1))
    for bit in range(0, len(data) * 8, 61):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            read_header(data)
        data[bit // 8] ^= 1 << bit % 8
    read_header(data)


def test_encoding_checksums_each_stripe_and_copies_none() -> None:
    stored = block(1)
    encoded = encode(stored, RAW)
    (piece,) = encoded.pieces
    for row in range(NUM_STRIPES):
        stripe = stored.buffer[row * STRIPE_BYTES :][:STRIPE_BYTES]
        assert int(encoded.stripes["encoded"][row]) == int(encoded.stripes["raw"][row]) == checksum(stripe)
        before = stripe[0]
        stripe[0] = before ^ 1
        assert piece[row * STRIPE_BYTES] == before ^ 1
    assert encoded.payload_bytes == len(piece) == BLOCK_BYTES


def changed(**what: Any) -> FlashBlock:
    return dataclasses.replace(block(1), **what)


@pytest.mark.parametrize(
    "wrong",
    [
        changed(stripe_bytes=1000),
        changed(num_stripes=0),
        changed(buffer=pages(BLOCK_BYTES)[:-1]),
        changed(buffer=pages(2 * BLOCK_BYTES)[512:]),
        changed(key=b"short"),
        changed(namespace=b"short"),
        changed(stripe_bytes=4096, num_stripes=1 + MAX_HEADER_BYTES // 20, buffer=pages(16 << 20)),
    ],
    ids=["stripe", "none", "short", "unaligned", "key", "namespace", "header"],
)
def test_a_block_of_an_impossible_shape_is_refused(wrong: FlashBlock) -> None:
    with pytest.raises(ValueError):
        encode(wrong, RAW)

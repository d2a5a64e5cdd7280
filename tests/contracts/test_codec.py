"""What every codec promises."""

from __future__ import annotations

import pytest

from hifc_ray.codecs import Codec, by_code, by_name, names
from hifc_ray.errors import CorruptRecord
from tests.fakes.flash import payload

STRIPES = [bytes(4096), bytes(range(256)) * 16, payload(1)]


@pytest.fixture(params=names())
def codec(request: pytest.FixtureRequest) -> Codec:
    return by_name(request.param)


def test_it_is_found_by_its_name_and_by_its_one_byte_code(codec: Codec) -> None:
    assert 0 <= codec.code <= 255
    assert by_code(codec.code) is codec
    assert by_name(codec.name) is codec
    assert isinstance(codec, Codec)


@pytest.mark.parametrize("stripe", STRIPES)
def test_what_is_decoded_is_what_was_encoded(codec: Codec, stripe: bytes) -> None:
    encoded = bytes(codec.encode(memoryview(stripe)))
    out = bytearray(len(stripe))
    codec.decode(memoryview(encoded), memoryview(out))
    assert out == stripe


def test_encoding_leaves_the_stripe_alone(codec: Codec) -> None:
    stripe = bytearray(STRIPES[2])
    codec.encode(memoryview(stripe))
    assert stripe == STRIPES[2]


def test_a_verbatim_codec_copies_nothing(codec: Codec) -> None:
    stripe = bytearray(STRIPES[1])
    encoded = codec.encode(memoryview(stripe))
    stripe[0] ^= 1
    assert (bytes(encoded) == bytes(stripe)) == codec.verbatim


def test_encoded_bytes_of_another_length_are_refused(codec: Codec) -> None:
    encoded = bytes(codec.encode(memoryview(STRIPES[2])))
    with pytest.raises(CorruptRecord):
        codec.decode(memoryview(encoded[:-1]), memoryview(bytearray(len(STRIPES[2]))))

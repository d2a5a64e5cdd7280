from __future__ import annotations

import pytest

from hifc_ray.config import FlashConfig
from hifc_ray.errors import ConfigError
from hifc_ray.flash.sizing import BASE_BYTES, MIN_SEGMENTS, choose_segment_bytes, segment_cost

BLOCK = 11_796_480  # of the default model in float32


def test_usually_a_segment_has_room_for_16_blocks_and_16_to_64_mib() -> None:
    assert 16 * BLOCK <= choose_segment_bytes(FlashConfig(limit_bytes=2 << 30), BLOCK) < 17 * BLOCK
    for limit_bytes, size in ((1 << 30, 16 << 20), (4 << 30, 32 << 20), (8 << 30, 64 << 20), (16 << 30, 64 << 20)):
        assert size <= choose_segment_bytes(FlashConfig(limit_bytes=limit_bytes), 4096) < size + 3 * 4096


def test_a_small_limit_makes_smaller_segments_and_five_of_them_fit() -> None:
    limit = 50 << 20
    size = choose_segment_bytes(FlashConfig(limit_bytes=limit), 4096)
    assert size < 16 << 20
    assert MIN_SEGMENTS * segment_cost(size) + BASE_BYTES <= limit
    assert MIN_SEGMENTS * segment_cost(size + 65536) + BASE_BYTES > limit


def test_a_large_limit_makes_larger_segments_so_that_open_files_stay_few() -> None:
    size = choose_segment_bytes(FlashConfig(limit_bytes=1 << 40), BLOCK)
    assert 4 << 30 <= size < (4 << 30) + BLOCK + 8192


@pytest.mark.parametrize("limit_bytes", [8 << 30, 1 << 40])
def test_a_segment_has_no_room_at_its_end_that_no_block_fits_in(limit_bytes: int) -> None:
    size = choose_segment_bytes(FlashConfig(limit_bytes=limit_bytes), BLOCK)
    assert (size - 4096) % (BLOCK + 8192) == 0


def test_too_small_a_limit_names_itself_and_the_least_that_does() -> None:
    with pytest.raises(ConfigError, match=r"flash.limit_bytes is 1048576; allowed: at least (\d+)") as caught:
        choose_segment_bytes(FlashConfig(limit_bytes=1 << 20), BLOCK)
    needed = int(str(caught.value).split("at least ")[1].split()[0])
    choose_segment_bytes(FlashConfig(limit_bytes=needed), BLOCK)
    with pytest.raises(ConfigError):
        choose_segment_bytes(FlashConfig(limit_bytes=needed - 5 * 8192), BLOCK)


@pytest.mark.parametrize("segment_bytes", [4096, 3 << 30])
def test_a_segment_size_that_does_not_do_names_what_does(segment_bytes: int) -> None:
    with pytest.raises(ConfigError, match=rf"flash.segment_bytes is {segment_bytes}; allowed: 0 .* from \d+ .* to \d+"):
        choose_segment_bytes(FlashConfig(limit_bytes=4 << 30, segment_bytes=segment_bytes), BLOCK)


def test_a_segment_size_that_does_is_taken() -> None:
    assert choose_segment_bytes(FlashConfig(limit_bytes=4 << 30, segment_bytes=300 << 20), BLOCK) == 300 << 20

"""What a person asks of the flash bench is checked before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hifc_ray.bench import flash_plan
from hifc_ray.bench.flash_plan import Plan, parse
from hifc_ray.errors import ConfigError
from hifc_ray.flash.sizing import choose_segment_bytes
from hifc_ray.layout import PAGE_BYTES


def test_the_default_plan_is_what_is_wanted() -> None:
    plan = parse(flash_plan.SIZES, flash_plan.IN_FLIGHT, flash_plan.NUM_PAIRS)
    assert plan.sizes == (262144, 1048576, 4194304, 16777216)
    assert plan.depths == (1, 2, 4, 8, 16)
    assert plan.num_pairs == 30


@pytest.mark.parametrize("sizes", ["0", "5000", "1MiB,", "128MiB", "1.5", "-4096", "big"])
def test_sizes_that_no_block_has_are_named(sizes: str) -> None:
    with pytest.raises(ConfigError, match="--sizes"):
        parse(sizes, "1", 1)


@pytest.mark.parametrize("in_flight", ["0", "65", "1,", "two", "-1", "1.0"])
def test_depths_out_of_range_are_named(in_flight: str) -> None:
    with pytest.raises(ConfigError, match=r"--in-flight .*; allowed: whole numbers from 1 to 64"):
        parse("1MiB", in_flight, 1)


@pytest.mark.parametrize("pairs", [0, -1, 1001])
def test_pairs_out_of_range_are_named(pairs: int) -> None:
    with pytest.raises(ConfigError, match=f"--pairs is {pairs}; allowed: 1 to 1000"):
        parse("1MiB", "1", pairs)


def test_a_sample_has_a_block_for_each_in_flight() -> None:
    plan = Plan((4096,), (1,))
    assert plan.num_ops(1 << 20, 1) == plan.num_ops(1 << 20, 8) == 16
    assert plan.num_ops(1 << 20, 32) == plan.num_ops(1 << 20, 16) == 32
    assert plan.num_ops(16 << 20, 1) == 2
    assert plan.num_ops(16 << 20, 8) == 8
    assert plan.num_ops(64 << 20, 1) == 1


@pytest.mark.parametrize("size", [PAGE_BYTES, 7 * PAGE_BYTES, 256 << 10, 33 * PAGE_BYTES, 16 << 20])
def test_stripes_are_whole_pages_and_make_up_the_block(size: int) -> None:
    stripe = Plan((size,), (1,)).stripe_bytes(size)
    assert stripe % PAGE_BYTES == 0 == size % stripe
    assert stripe <= 128 << 10


@pytest.mark.parametrize("size", [PAGE_BYTES, 1 << 20, 16 << 20, 64 << 20])
def test_the_store_has_segments_of_the_usual_size_and_no_write_budget(size: int) -> None:
    config = Plan((size,), (1,)).config(size, Path("/somewhere"))
    assert config.segment_bytes == choose_segment_bytes(config, size)
    assert config.segment_bytes >= 64 << 20
    assert config.drive_writes_per_day == config.write_bytes_per_day == 0

from __future__ import annotations

from typing import Any

import pytest

from hifc_ray.errors import ConfigError
from hifc_ray.layout import BlockLayout, round_up

SMOLLM2 = BlockLayout(layers=30, kv_heads=3, head_dim=64)


def test_the_demo_model_in_float32() -> None:
    assert SMOLLM2.stripe_shape == (2, 3, 256, 64)
    assert SMOLLM2.stripe_bytes == SMOLLM2.stripe_payload_bytes == 393_216
    assert SMOLLM2.block_bytes == 30 * 393_216 == 11_796_480
    assert SMOLLM2.token_bytes == 46_080


def test_two_byte_types_halve_it() -> None:
    assert BlockLayout(30, 3, 64, dtype="bfloat16").block_bytes * 2 == SMOLLM2.block_bytes


def test_a_70b_shard() -> None:
    layout = BlockLayout(layers=80, kv_heads=8, head_dim=128, dtype="bfloat16")
    assert layout.stripe_bytes == 1 << 20
    assert layout.block_bytes == 80 << 20


def test_small_stripes_are_padded_to_pages() -> None:
    tiny = BlockLayout(layers=2, kv_heads=1, head_dim=8, block_tokens=4)
    assert tiny.stripe_payload_bytes == 256
    assert tiny.stripe_bytes == 4096
    assert tiny.block_bytes == 8192
    assert tiny.token_bytes == 128


@pytest.mark.parametrize(("value", "rounded"), [(0, 0), (1, 4096), (4096, 4096), (4097, 8192)])
def test_round_up(value: int, rounded: int) -> None:
    assert round_up(value, 4096) == rounded


def test_the_description_tells_layouts_apart() -> None:
    others = [
        BlockLayout(29, 3, 64),
        BlockLayout(30, 4, 64),
        BlockLayout(30, 3, 65),
        BlockLayout(30, 3, 64, 128),
        BlockLayout(30, 3, 64, dtype="float16"),
    ]
    assert SMOLLM2.describe() == "30x2x3x256x64:float32"
    assert len({layout.describe() for layout in [SMOLLM2, *others]}) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layout.layers is 0"),
        ({"block_tokens": -1}, "layout.block_tokens is -1"),
        ({"dtype": "int3"}, "layout.dtype is 'int3'; allowed: float32"),
    ],
)
def test_impossible_layouts_name_the_value(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BlockLayout(**{"layers": 1, "kv_heads": 1, "head_dim": 8} | change)

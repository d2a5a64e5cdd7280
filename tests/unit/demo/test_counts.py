"""Hits and misses of the tiers: defined once, and the sums hold or it says so."""

from __future__ import annotations

import numpy as np
import pytest

from hifc_ray.demo.counts import count
from hifc_ray.engine.sequence import Result
from hifc_ray.errors import ConservationBroken

BLOCK = 16  # tokens


def result(prompt_tokens: int, **blocks: int) -> Result:
    return Result(
        tokens=[1],
        text="",
        finish_reason="length",
        num_prompt_tokens=prompt_tokens,
        ttft_s=0.5,
        blocks=blocks,
        loaded_bytes={tier: number * 100 for tier, number in blocks.items() if tier in ("host", "flash")},
        loaded_s={tier: 0.25 for tier in blocks if tier in ("host", "flash")},
        missed=None,
        min_margin=1.0,
        logits=[],
        attention=np.empty(0, np.float32),
    )


RESULTS = [result(80, computed=4), result(96, gpu=5), result(96, host=3, computed=2), result(97, gpu=1, flash=5)]
ENGINE = {
    "looked_up_blocks": 20.0,
    "computed_blocks": 6.0,
    "hits_blocks{gpu}": 6.0,
    "hits_blocks{host}": 3.0,
    "hits_blocks{flash}": 5.0,
    "computed_tokens": float(80 + 96 + 96 + 97 - 14 * BLOCK),
    "saved_tokens": float(14 * BLOCK),
    "published_blocks{gpu}": 6.0,
    "published_bytes{gpu}": 600.0,
}
TIER = {
    "stored_blocks{host}": 6.0,
    "stored_bytes{host}": 600.0,
    "blocks_stored{flash}": 5.0,
    "stored_bytes{flash}": 500.0,
    "corrupt{flash,header}": 1.0,
    "corrupt{flash,stripe}": 2.0,
}


def test_what_one_tier_misses_the_next_is_asked_for() -> None:
    counts = count(RESULTS, ENGINE, TIER)
    assert {name: (tier.hits, tier.misses) for name, tier in counts.tiers.items()} == {
        "gpu": (6, 14),
        "host": (3, 11),
        "flash": (5, 6),
    }
    gpu, host, flash = counts.tiers.values()
    assert host.hits + host.misses == gpu.misses
    assert flash.hits + flash.misses == host.misses
    assert flash.misses == sum(each.blocks.get("computed", 0) for each in RESULTS)
    assert (gpu.loaded_bytes, host.loaded_bytes, flash.loaded_bytes, flash.loaded_s) == (0, 300, 500, 0.25)
    assert (gpu.stored_bytes, host.stored_bytes, flash.stored_bytes, flash.stored_blocks) == (600, 600, 500, 5)
    assert (counts.saved_tokens, counts.checksum_faults) == (14 * BLOCK, 3)


@pytest.mark.parametrize(
    "counter",
    ["looked_up_blocks", "computed_blocks", "hits_blocks{gpu}", "hits_blocks{host}", "hits_blocks{flash}",
     "computed_tokens", "saved_tokens"],
)  # fmt: skip
def test_a_count_that_does_not_add_up_is_told(counter: str) -> None:
    with pytest.raises(ConservationBroken, match="= "):
        count(RESULTS, {**ENGINE, counter: ENGINE[counter] + 1}, TIER)

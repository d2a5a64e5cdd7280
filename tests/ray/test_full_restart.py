"""Everything ends, Ray with it, and starts again: what was cached comes from flash, and says the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.fakes.whole_life import live_elsewhere

NUM_BLOCKS = 8


@pytest.mark.long
@pytest.mark.timeout(280)
def test_the_second_life_of_everything_is_warm(
    model: str, tmp_path: Path, short_dir: Path, shm_dir_of_the_session: Path
) -> None:
    shm = shm_dir_of_the_session
    before = set(shm.iterdir())
    prompts = [np.random.default_rng(seed).integers(1, 200, NUM_BLOCKS * 16 + 5).tolist() for seed in (1, 2)]
    first = live_elsewhere(model, tmp_path, short_dir, prompts)
    assert [blocks["computed"] for blocks in first["blocks"]] == [NUM_BLOCKS] * 2
    assert set(shm.iterdir()) <= before
    second = live_elsewhere(model, tmp_path, short_dir, prompts)
    assert second["tokens"] == first["tokens"]
    assert [blocks.get("flash") for blocks in second["blocks"]] == [NUM_BLOCKS] * 2
    assert [blocks.get("computed", 0) for blocks in second["blocks"]] == [0] * 2
    assert set(shm.iterdir()) <= before

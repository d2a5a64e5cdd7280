"""Everything ends, Ray with it, and starts again: what was cached comes from flash, and says the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.stage import Stage
from tests.fakes.whole_life import NUM_BLOCKS, live_here

ROOT = Path(__file__).parents[2]


def live(model: str, flash: Path, short: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.fakes.whole_life", model, str(flash), str(short)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def check_second(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert [blocks["computed"] for blocks in first["blocks"]] == [NUM_BLOCKS] * 2
    assert second["tokens"] == first["tokens"]
    assert [blocks.get("flash") for blocks in second["blocks"]] == [NUM_BLOCKS] * 2
    assert [blocks.get("computed", 0) for blocks in second["blocks"]] == [0] * 2


@pytest.mark.timeout(180)
def test_a_life_in_another_ray_is_warm(stage: Stage, tmp_path: Path, short_dir: Path, shm: Path) -> None:
    flash = tmp_path / "of-both"
    flash.mkdir()
    first = live_here(stage.model, flash, stage.namespace)
    assert not list(shm.iterdir())
    check_second(first, live(stage.model, flash, short_dir))
    assert not list(shm.iterdir())


@pytest.mark.long
@pytest.mark.timeout(280)
def test_the_second_life_of_everything_is_warm(model: str, tmp_path: Path, short_dir: Path, shm: Path) -> None:
    first = live(model, tmp_path, short_dir)
    assert not list(shm.iterdir())
    check_second(first, live(model, tmp_path, short_dir))
    assert not list(shm.iterdir())


@pytest.fixture
def shm(shm_dir_of_the_session: Path) -> Path:
    """Arenas lie here; nothing does before and after."""
    assert not list(shm_dir_of_the_session.iterdir())
    return shm_dir_of_the_session

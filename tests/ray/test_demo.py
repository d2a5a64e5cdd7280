"""The main job over a real Ray, with a tiny model: one run for all tests here; what takes longer is marked so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hifc_ray.actors import connection
from tests.fakes.demo_model import SIZES, save_demo_model

pytestmark = pytest.mark.timeout(280)
HIFC = (sys.executable, "-c", "from hifc_ray.cli.main import main; main()")


@dataclass
class Ran:
    """A command that has ended, and what lay in shared memory then."""

    code: int
    out: str
    err: str
    left: list[str]

    @property
    def answer(self) -> dict[str, Any]:
        return json.loads(self.out)  # type: ignore[no-any-return]


def environment(shm: Path) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "HIFC_FLASH_DIR")}
    return {**plain, "HIFC_SHM_DIR": str(shm), "RAY_AUTH_MODE": "disabled"}


def hifc(shm: Path, *arguments: str) -> Ran:
    ended = subprocess.run(
        [*HIFC, *arguments], capture_output=True, text=True, check=False, timeout=270, env=environment(shm)
    )
    return Ran(ended.returncode, ended.stdout, ended.stderr, sorted(path.name for path in shm.iterdir()))


@pytest.fixture
def shm() -> Iterator[Path]:
    yield from shared_memory()


@pytest.fixture(scope="module")
def shm_of_the_run() -> Iterator[Path]:
    yield from shared_memory()


def shared_memory() -> Iterator[Path]:
    """A directory of its own in shared memory, below the session's, removed with everything that a failure left."""
    directory = Path(os.environ["HIFC_SHM_DIR"]) / f"demo-{os.urandom(4).hex()}"
    directory.mkdir()
    yield directory
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_demo_model(tmp_path_factory.mktemp("demo") / "model")


@pytest.fixture(scope="module")
def flash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flash")


@pytest.fixture(scope="module")
def ran(model: str, flash: Path, shm_of_the_run: Path) -> Ran:
    """`hifc demo` with its default conversations, in a Ray of its own, on a flash directory that is given."""
    return hifc(shm_of_the_run, "demo", "--model", model, *SIZES, "--flash-dir", str(flash), "--json")


def test_outputs_are_those_without_a_cache(ran: Ran) -> None:
    assert ran.code == 0, ran.err
    answer = ran.answer
    assert (answer["identical_outputs"], answer["max_logit_diff"], answer["checksum_faults"]) == (True, 0.0, 0)
    assert answer["min_margin"] > 0
    assert [turn["first_difference"] for turn in answer["turns"]] == [None] * 12
    assert all(turn["generated_tokens"] > 0 for turn in answer["turns"])


def test_every_tier_serves_and_half_of_the_tokens_are_saved(ran: Ran) -> None:
    tiers, tokens = ran.answer["tiers"], ran.answer["tokens"]
    assert all(tier["hits"] > 0 for tier in tiers.values())
    assert all(tier["stored_bytes"] > 0 for tier in tiers.values())
    assert tiers["host"]["loaded_bytes"] > 0
    assert tiers["flash"]["loaded_bytes"] > 0
    assert tokens["saved"] >= tokens["computed"]
    assert tokens["saved"] + tokens["computed"] == sum(turn["prompt_tokens"] for turn in ran.answer["turns"])


def test_users_return_while_in_the_pool_from_host_and_from_flash(ran: Ran) -> None:
    returning = [turn["blocks"] for turn in ran.answer["turns"] if turn["turn"] > 1]
    for tier in ("gpu", "host", "flash"):
        assert any(blocks.get(tier, 0) >= 4 for blocks in returning), (tier, returning)


def test_what_a_tier_misses_the_next_is_asked_for(ran: Ran) -> None:
    gpu, host, flash = (ran.answer["tiers"][name] for name in ("gpu", "host", "flash"))
    assert host["hits"] + host["misses"] == gpu["misses"]
    assert flash["hits"] + flash["misses"] == host["misses"]
    assert flash["misses"] == sum(turn["blocks"].get("computed", 0) for turn in ran.answer["turns"])


def test_times_are_of_the_same_turns(ran: Ran) -> None:
    hit, cold = ran.answer["ttft_s"]["hit"], ran.answer["ttft_s"]["cold"]
    with_hits = [t for t in ran.answer["turns"] if any(n for source, n in t["blocks"].items() if source != "computed")]
    assert hit["n"] == cold["n"] == len(with_hits) >= 8
    assert hit["max"] == max(turn["ttft_s"] for turn in with_hits)
    assert cold["max"] == max(turn["ttft_cold_s"] for turn in with_hits)


def test_nothing_stays_but_the_given_flash_directory(ran: Ran, flash: Path) -> None:
    assert ran.left == []
    assert "started here" in ran.answer["places"]["Ray"]
    assert list(flash.glob("*"))
    assert not Path(ran.answer["places"]["arena"]).exists()
    assert ran.out.count("\n") == 1
    assert "12/12" in ran.err


@pytest.mark.long
def test_a_second_run_on_the_same_flash_directory_is_warm(ran: Ran, model: str, flash: Path, shm: Path) -> None:
    again = hifc(shm, "demo", "--model", model, *SIZES, "--flash-dir", str(flash), "--json")
    assert again.code == 0, again.err
    first = again.answer["turns"][0]["blocks"]
    assert first["flash"] == 4
    assert again.answer["tokens"]["computed"] < ran.answer["tokens"]["computed"]
    assert again.answer["identical_outputs"] is True


@pytest.mark.long
@pytest.mark.parametrize("line", ["starting Ray", "starting policy", "starting the engine", "3/12"])
def test_ctrl_c_leaves_nothing(line: str, model: str, shm: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*HIFC, "demo", "--model", model, *SIZES],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(shm), "TMPDIR": str(tmp_path)},
        start_new_session=True,
    ) as running:
        assert running.stderr is not None
        for said in running.stderr:
            if line in said:
                break
        os.killpg(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=120)
    assert running.returncode == 130
    assert "Traceback" not in err
    assert list(shm.iterdir()) == list(tmp_path.glob("hifc-*")) == []


@pytest.mark.long
def test_a_kept_demo_is_seen_used_and_taken_down(model: str, shm: Path) -> None:
    small = ("--conversations", "1", "--turns", "1")
    kept = hifc(shm, "demo", "--model", model, *SIZES, *small, "--keep")
    assert kept.code == 0, kept.err
    where = next(line for line in kept.err.splitlines() if line.startswith("still running: ")).split()[4:]
    flash = Path(next(line for line in kept.err.splitlines() if line.startswith("to stop it")).split()[-1]) / "flash"
    try:
        status = hifc(shm, "status", *where, "--json")
        assert (status.code, status.answer["ok"]) == (0, True)
        assert status.answer["tiers"][0]["host"]["slots"]["resident"] == 4
        assert status.answer["engines"][0]["has_tier"] is True
        again = hifc(shm, "up", *where, "--model", model, *SIZES, "--flash-dir", str(flash), "--json")
        assert (again.code, len(again.answer["tiers"]), len(again.answer["engines"])) == (0, 1, 1), again.err
        other = hifc(shm, "up", *where, "--model", model, *SIZES[:2], "--host-bytes", "3MB", "--flash-dir", str(flash))
        assert other.code == 2
        assert "another configuration is up" in other.err.splitlines()[-1]
        assert "Traceback" not in other.err
        down = hifc(shm, "down", *where, "--json")
        assert (down.code, len(down.answer["stopped"]), down.left) == (0, 4, [])
        assert hifc(shm, "down", *where).code == 1
        nothing = hifc(shm, "status", *where)
        assert nothing.code == 1
        assert "nothing is up" in nothing.err
        # What stands in the way of a tier is known to its actor only, and comes out as one line all the same.
        broken = hifc(shm, "up", *where, "--model", model, *SIZES, "--flash-dir", str(flash / "none"))
        assert broken.code == 2
        assert "does not exist; create it" in broken.err.splitlines()[-1]
        assert "Traceback" not in broken.err
        assert broken.left == []
    finally:
        shutil.rmtree(flash.parent)
        for address in Path("/tmp").glob("hifc-ray-*/ray_current_cluster"):
            if address.read_text().strip() == where[1]:
                connection.stop_lasting(address.parent)
                shutil.rmtree(address.parent)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_real_model(shm: Path) -> None:
    ended = subprocess.run(
        [*HIFC, "demo", "--json"], capture_output=True, text=True, check=False, timeout=880, env=environment(shm)
    )
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert (answer["identical_outputs"], answer["max_logit_diff"], answer["checksum_faults"]) == (True, 0.0, 0)
    assert all(tier["hits"] > 0 for tier in answer["tiers"].values())
    assert answer["tokens"]["saved"] >= answer["tokens"]["computed"]
    assert list(shm.iterdir()) == []

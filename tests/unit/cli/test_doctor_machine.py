"""`hifc doctor` over the real machine: it answers, in the agreed shape, whatever the flash directories are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hifc_ray import env
from hifc_ray.cli import main


def doctor(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main.run(["doctor", "--json", "--host-bytes", "16MiB", *arguments])
    return code, json.loads(capfd.readouterr().out)


def test_the_shape_of_its_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o700)
    code, answer = doctor(capfd, "--flash-dir", str(tmp_path))
    assert set(answer) == {"ok", "verdicts"}
    assert all(set(verdict) == {"level", "name", "what", "advice"} for verdict in answer["verdicts"])
    assert {verdict["level"] for verdict in answer["verdicts"]} <= {"ok", "warn", "fail"}
    failures = [verdict for verdict in answer["verdicts"] if verdict["level"] == "fail"]
    assert (answer["ok"], code) == (not failures, 1 if failures else 0)
    assert [verdict for verdict in failures if str(tmp_path) in verdict["what"]] == []
    about = {verdict["name"] for verdict in answer["verdicts"]}
    assert {"flash", "permissions", "direct I/O", "device", "file system", "endurance", "memory monitor"} <= about


def test_each_directory_has_its_verdicts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir(mode=0o700)
    other.mkdir(mode=0o755)
    other.chmod(0o755)
    _, answer = doctor(capfd, "--flash-dir", str(one), "--flash-dir", str(other))
    levels = {verdict["name"]: verdict["level"] for verdict in answer["verdicts"]}
    assert (levels[f"permissions {one}"], levels[f"permissions {other}"]) == ("ok", "warn")
    assert f"flash {one}" in levels


def test_odd_directories_are_verdicts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name in ("file", "loop", "none"):
        code, answer = doctor(capfd, "--flash-dir", str(tmp_path / name))
        assert code == 1
        assert "fail" in [verdict["level"] for verdict in answer["verdicts"] if verdict["name"] == "flash"]


def test_memory_as_a_directory(capfd: pytest.CaptureFixture[str]) -> None:
    directory = Path(f"/dev/shm/doctor-{os.getpid()}")
    directory.mkdir(mode=0o700)
    try:
        _, answer = doctor(capfd, "--flash-dir", str(directory))
    finally:
        directory.rmdir()
    levels = {verdict["name"]: (verdict["level"], verdict["what"]) for verdict in answer["verdicts"]}
    assert levels["device"][0] == "warn"
    assert "tmpfs" in levels["device"][1]
    assert levels["file system"][0] == "warn"


@pytest.mark.parametrize(
    ("text", "share"), [("", 0.95), ("0.8", 0.8), ("none", 0.95), ("0", 0.95), ("1.5", 0.95), ("nan", 0.95)]
)
def test_the_threshold_of_ray(monkeypatch: pytest.MonkeyPatch, text: str, share: float) -> None:
    monkeypatch.setenv("RAY_memory_usage_threshold", text)
    assert env.ray_memory_share() == share

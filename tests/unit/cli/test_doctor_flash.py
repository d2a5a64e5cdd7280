"""`hifc doctor` and a flash directory that exists, and is not to be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hifc_ray.cli import main
from hifc_ray.flash.format import LOCK_NAME
from hifc_ray.locks import FileLock


def verdict(directory: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = main.run(["doctor", "--json", "--flash-dir", str(directory), "--host-bytes", "16MiB"])
    found = json.loads(capfd.readouterr().out)["verdicts"]
    return code, [one["what"] for one in found if one["level"] == "fail"]


def test_an_empty_directory_is_fine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, failures = verdict(tmp_path, capfd)
    assert not [what for what in failures if str(tmp_path) in what], (code, failures)


def test_foreign_files_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    code, failures = verdict(tmp_path, capfd)
    assert code == 1
    assert any("thesis.txt" in what for what in failures)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_live_owner_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lock = FileLock(tmp_path / LOCK_NAME)
    assert lock.acquire()
    try:
        code, failures = verdict(tmp_path, capfd)
    finally:
        lock.release()
    assert code == 1
    assert any("live process" in what for what in failures)


def test_a_name_that_no_directory_can_have_is_a_missing_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, failures = verdict(tmp_path / ("x" * 300), capfd)
    assert code == 1
    assert any("does not exist" in what for what in failures)

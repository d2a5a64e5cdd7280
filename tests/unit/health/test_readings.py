"""Readings of this machine, and of machines made up of files."""

from __future__ import annotations

import os
from pathlib import Path

import pynvml
import pytest

from hifc_ray.config import Config, FlashConfig, TierConfig
from hifc_ray.health import gpus, readings
from hifc_ray.health.directory import read_directory
from hifc_ray.health.examine import examine
from hifc_ray.health.verdict import Level


def fake_proc(tmp_path: Path) -> Path:
    (tmp_path / "meminfo").write_text("MemTotal:       16000 kB\nMemAvailable:    8000 kB\nHugePages_Total:       0\n")
    return tmp_path


def test_available_memory_of_the_machine(tmp_path: Path) -> None:
    assert readings.available_bytes(fake_proc(tmp_path), tmp_path / "no-cgroup") == 8000 * 1024


@pytest.mark.parametrize(
    ("limit", "used", "available"),
    [
        ("3000000", "1000000", 2_000_000),
        ("max", "1000000", 8000 * 1024),
        ("1000", "2000", 0),
        ("99999999", "0", 8192000),
    ],
)
def test_available_memory_within_a_container(tmp_path: Path, limit: str, used: str, available: int) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    assert readings.available_bytes(fake_proc(tmp_path), tmp_path) == available


def test_memory_in_all(tmp_path: Path) -> None:
    assert readings.total_bytes(fake_proc(tmp_path), tmp_path) == 16000 * 1024
    (tmp_path / "memory.max").write_text("1000000\n")
    assert readings.total_bytes(tmp_path, tmp_path) == 1_000_000


@pytest.mark.parametrize("content", ["", "MemAvailable\n", "MemAvailable: lots kB\n", "\x00" * 100, "MemAvailable:\n"])
def test_memory_that_makes_no_sense_is_none_at_all(tmp_path: Path, content: str) -> None:
    (tmp_path / "meminfo").write_text(content)
    assert readings.available_bytes(tmp_path, tmp_path) == 0


def test_cores_within_a_container(tmp_path: Path) -> None:
    mine = len(os.sched_getaffinity(0))
    assert readings.num_cores(tmp_path) == mine
    for quota, cores in (("max 100000", mine), ("50000 100000", 1), ("9900000 100000", mine)):
        (tmp_path / "cpu.max").write_text(quota)
        assert readings.num_cores(tmp_path) == cores


def test_memory_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "hifc-arena").write_bytes(b"x" * 8192)
    (tmp_path / "other").write_bytes(b"x" * 8192)
    reading = readings.memory(tmp_path)
    assert reading.arenas_bytes == 8192
    assert 0 < reading.shm_free_bytes <= reading.shm_total_bytes
    assert 0 < reading.available_bytes <= reading.total_bytes


def test_versions() -> None:
    assert readings.package_version("numpy")
    assert readings.package_version("no-such-package-here") is None


def test_limits_are_numbers_or_none() -> None:
    assert all(limit is None or limit > 0 for limit in (readings.limits().open_files, readings.limits().locked_bytes))


def test_a_directory_is_read_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(b"x" * 4096)
    reading = read_directory(tmp_path)
    assert (reading.exists, reading.is_directory, reading.writable, reading.used_bytes) == (True, True, True, 4096)
    assert reading.free_bytes > 0
    assert [path.name for path in tmp_path.iterdir()] == ["segment"]


def test_a_file_system_without_nameless_files_or_direct_io(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_open = os.open

    def refuse(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE or flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return plain_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    reading = read_directory(tmp_path)
    assert (reading.writable, reading.direct) == (True, False)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    reading = read_directory(tmp_path)
    assert (reading.writable, reading.readable) == (False, False)


def test_what_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not read_directory(tmp_path / "file").is_directory
    assert not read_directory(tmp_path / "none").exists


def test_a_machine_without_a_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library() -> None:
        raise pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(pynvml, "nvmlInit", no_library)
    assert gpus.read_gpus() == gpus.GpuReading()


def test_a_broken_driver_is_a_problem_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def mismatch() -> None:
        raise pynvml.NVMLError_LibRmVersionMismatch

    monkeypatch.setattr(pynvml, "nvmlInit", mismatch)
    assert gpus.read_gpus().gpus == ()
    assert "mismatch" in gpus.read_gpus().problem.lower()


def test_examining_this_machine_names_each_thing_once(tmp_path: Path) -> None:
    verdicts = examine(Config(TierConfig(flash=FlashConfig(directories=(tmp_path,)))))
    names = [verdict.name for verdict in verdicts]
    assert len(set(names)) == len(names)
    assert {"python", "ray", "shared memory", "memory", "memory monitor", "cores", "gpu", "open files"} <= set(names)
    assert {"flash", "permissions", "direct I/O", "device", "file system", "endurance"} <= set(names)


def test_a_shared_memory_directory_that_is_missing_is_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIFC_SHM_DIR", str(tmp_path / "none"))
    (verdict,) = [verdict for verdict in examine(Config()) if verdict.name == "shared memory"]
    assert verdict.level == Level.FAIL
    assert "HIFC_SHM_DIR" in verdict.advice


def test_a_directory_tells_its_mode_and_file_system(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    reading = read_directory(tmp_path)
    assert (reading.mode, reading.device, reading.readable) == (0o750, tmp_path.stat().st_dev, True)


def test_several_directories_are_named_apart(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir(mode=0o700)
    verdicts = examine(Config(TierConfig(flash=FlashConfig(directories=(one, other)))))
    names = [verdict.name for verdict in verdicts]
    assert len(set(names)) == len(names)
    assert f"direct I/O {one}" in names
    (missing,) = [verdict for verdict in verdicts if verdict.name == f"flash {other}"]
    assert missing.level == Level.FAIL

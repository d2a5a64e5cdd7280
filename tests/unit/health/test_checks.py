"""Readings to verdicts: each level, and an advice for everything that is not well."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from hifc_ray.config import FlashConfig
from hifc_ray.flash import sizing
from hifc_ray.health import checks
from hifc_ray.health.gpus import Gpu, GpuReading
from hifc_ray.health.readings import Limits, MemoryReading
from hifc_ray.health.verdict import Level, Verdict, ok, warn, worst

ROOT = Path(__file__).parents[3]
GB = 10**9
MEMORY = MemoryReading(Path("/dev/shm"), 4 * GB, 3 * GB, arenas_bytes=0, available_bytes=8 * GB)
ONE_GPU = GpuReading((Gpu(0, "H200", 140 * GB, 100 * GB),))


def assert_verdict(verdict: Verdict, level: Level, *words: str) -> None:
    assert verdict.level == level, verdict
    assert (verdict.advice != "") == (level != Level.OK)
    text = f"{verdict.what} -> {verdict.advice}"
    assert "\n" not in text
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("version", "level"), [((3, 10, 9), Level.FAIL), ((3, 11, 0), Level.OK), ((3, 13, 1), Level.OK)]
)
def test_python(version: tuple[int, int, int], level: Level) -> None:
    assert_verdict(checks.check_python(version), level, ".".join(map(str, version)))


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("2.60.0", Level.OK),
        ("2.60.3+cpu", Level.OK),
        ("2.6.0", Level.WARN),
        ("3.60.0", Level.WARN),
        (None, Level.FAIL),
    ],
)
def test_package(version: str | None, level: Level) -> None:
    words = [] if level == Level.OK else ["pip install 'ray==2.60.*'"]
    assert_verdict(checks.check_package("ray", version), level, *words)


def test_tested_versions_are_those_of_the_pins() -> None:
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    assert {name: ".".join(pins[name].split(".")[:2]) for name in checks.TESTED} == checks.TESTED


def test_oldest_python_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">={}.{}".format(*checks.OLDEST_PYTHON)


def test_shared_memory() -> None:
    assert_verdict(checks.check_shared_memory(MEMORY, 3 * GB), Level.OK, "4.0 GB", "3.0 GB")
    full = checks.check_shared_memory(MEMORY, 3 * GB + 1)
    assert_verdict(full, Level.FAIL, "at most 3000000000", "remove what fills /dev/shm")
    small = checks.check_shared_memory(MEMORY, 8 * GB)
    assert_verdict(small, Level.FAIL, "at most 3000000000", "mount -o remount,size=10000000000 /dev/shm", "--shm-size")


def test_an_arena_that_is_there_counts_as_room() -> None:
    running = replace(MEMORY, shm_free_bytes=GB, arenas_bytes=3 * GB, available_bytes=GB)
    assert_verdict(checks.check_shared_memory(running, 3 * GB), Level.OK)
    assert_verdict(checks.check_memory(running, 3 * GB), Level.OK)


def test_memory_behind_the_arena() -> None:
    assert_verdict(checks.check_memory(MEMORY, 6 * GB), Level.OK)
    assert_verdict(checks.check_memory(MEMORY, 7 * GB), Level.WARN, "little for the model", "at most 6400000000")
    assert_verdict(checks.check_memory(MEMORY, 9 * GB), Level.FAIL, "8.0 GB available", "at most 6400000000")


@pytest.mark.parametrize(
    ("open_files", "level"), [(None, Level.OK), (65536, Level.OK), (2304, Level.OK), (2303, Level.WARN)]
)
def test_open_files(open_files: int | None, level: Level) -> None:
    flash = FlashConfig(directories=(Path("/flash"),))
    assert_verdict(checks.check_open_files(Limits(open_files, None), flash), level)


def test_open_files_of_as_many_segments_as_flash_makes() -> None:
    assert checks.SEGMENTS == sizing.MAX_SEGMENTS


def test_open_files_for_many_small_segments() -> None:
    flash = FlashConfig(directories=(Path("/flash"),), limit_bytes=10**12, segment_bytes=10**7)
    verdict = checks.check_open_files(Limits(65536, None), flash)
    assert_verdict(verdict, Level.WARN, "100000 segments", "ulimit -n 102048")


def test_memory_monitor_counts_the_arena() -> None:
    memory = replace(MEMORY, total_bytes=10 * GB)  # 2 of it used
    assert_verdict(checks.check_memory_monitor(memory, 6 * GB, 0.95), Level.OK, "80% of 10.0 GB", "95%")
    assert_verdict(checks.check_memory_monitor(memory, 7 * GB, 0.95), Level.WARN, "at most 7000000000")
    assert_verdict(checks.check_memory_monitor(memory, 75 * GB // 10, 0.95), Level.FAIL, "95%")
    assert_verdict(checks.check_memory_monitor(memory, 6 * GB, 0.5), Level.FAIL, "at most 2500000000")


def test_memory_monitor_counts_an_arena_that_is_there_once() -> None:
    running = replace(MEMORY, total_bytes=10 * GB, arenas_bytes=2 * GB)
    assert_verdict(checks.check_memory_monitor(running, 2 * GB, 0.95), Level.OK, "20%")


def test_memory_monitor_without_a_figure() -> None:
    assert_verdict(checks.check_memory_monitor(MEMORY, GB, 0.95), Level.OK)


def test_locked_memory_matters_with_a_gpu_only() -> None:
    little = Limits(None, locked_bytes=64 << 10)
    assert_verdict(checks.check_locked_memory(little, GpuReading(), GB), Level.OK)
    assert_verdict(checks.check_locked_memory(little, ONE_GPU, GB), Level.WARN, "ulimit -l unlimited")
    assert_verdict(checks.check_locked_memory(Limits(None, None), ONE_GPU, GB), Level.OK)
    assert_verdict(checks.check_locked_memory(Limits(None, 2 * GB), ONE_GPU, GB), Level.OK)


def test_threads() -> None:
    assert_verdict(checks.check_threads(cores=4, threads=0), Level.OK, "4 cores, 4 threads")
    assert_verdict(checks.check_threads(cores=4, threads=5), Level.WARN, "engine.threads to at most 4")


def test_gpus() -> None:
    assert_verdict(checks.check_gpus(GpuReading(), "auto", GB), Level.OK, "ordinary memory")
    assert_verdict(checks.check_gpus(GpuReading(), "cuda:0", GB), Level.FAIL, "engine.device to cpu")
    assert_verdict(checks.check_gpus(ONE_GPU, "auto", 50 * GB), Level.OK, "H200", "100.0 GB free")
    assert_verdict(checks.check_gpus(ONE_GPU, "auto", 101 * GB), Level.FAIL, "below 100000000000")
    assert_verdict(checks.check_gpus(ONE_GPU, "cpu", 101 * GB), Level.OK)
    assert_verdict(checks.check_gpus(GpuReading(problem="driver mismatch"), "auto", GB), Level.WARN, "driver mismatch")


def test_the_worst_counts() -> None:
    assert worst([]) == Level.OK
    assert worst([ok("a", "x"), warn("b", "y", "z"), ok("c", "x")]) == Level.WARN

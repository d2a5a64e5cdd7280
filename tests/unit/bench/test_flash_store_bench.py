"""The flash bench measures what it says, and its JSON has what is asked of it; the values are not judged here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hifc_ray.bench import contender, flash_report, flash_store, places
from hifc_ray.bench.contender import Buffers
from hifc_ray.bench.crew import Sample
from hifc_ray.bench.flash_plan import Plan
from hifc_ray.bench.flash_reference import Bare, FilePerBlock
from hifc_ray.bench.flash_shipped import Shipped
from hifc_ray.bench.flash_store import Beside, Cell, Mixed, Outcome
from hifc_ray.cli.main import run
from hifc_ray.cli.output import to_json
from hifc_ray.errors import TierUnavailable

SIZE = 64 << 10
PLAN = Plan((SIZE,), (1, 4), 2, sample_bytes=1 << 20, segment_bytes=2 << 20, read_bytes=SIZE, num_reads=5)

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contender, "_LEAST_BYTES", 4 << 20)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A directory on a disk that takes O_DIRECT."""
    if places._why_not(tmp_path, 0):
        pytest.skip(f"{tmp_path}: {places._why_not(tmp_path, 0)}")
    return tmp_path


def seconds(*each: float) -> list[Sample]:
    return [Sample(took, took / 2, np.full(4, took / 4)) for took in each]


def outcome() -> Outcome:
    """Of made-up times: the store takes 2 s, bare 1 s, files 4 s."""
    samples = {"shipped": seconds(2.0, 2.0), "bare": seconds(1.0, 1.0), "file": seconds(4.0, 4.0)}
    slow = {"shipped": np.full(100, 0.08), "bare": np.full(100, 0.02)}
    fast = {way: np.full(100, 0.02) for way in slow}
    return Outcome(
        PLAN,
        [Cell(1 << 20, depth, 4, samples, samples) for depth in (1, 2, 4)] + [Cell(SIZE, 4, 4, samples, samples)],
        [Mixed(SIZE, 4, np.array([True, True, False, True]), samples)],
        Beside(1 << 20, 4, fast, slow, {"shipped": 1e9, "bare": 2e9}),
    )


def test_all_of_it_runs_and_leaves_nothing_behind(disk: Path) -> None:
    answer = flash_report.to_json(flash_store.measure(PLAN, disk, lambda text: None), {})
    assert [(row["bytes"], row["in_flight"]) for row in answer["rows"]] == [(SIZE, 1), (SIZE, 4)]
    for row in answer["rows"]:
        assert all(row[name] > 0 for name in ("get_ratio", "put_ratio", "put_vs_file", "get_vs_file"))
        assert all(row[op][way]["bytes_per_s"] > 0 for op in ("get", "put") for way in ("shipped", "bare", "file"))
    assert [(row["bytes"], row["in_flight"]) for row in answer["mixed"]] == [(SIZE, 4)]
    assert answer["read_p99_under_write_ratio"] > 0
    assert answer["read_under_write"]["written_bytes_per_s"]["shipped"] > 0
    assert list(disk.iterdir()) == []
    assert json.loads(to_json(answer))["pairs"] == 2


def test_ratios_are_of_throughputs() -> None:
    row = flash_report.to_json(outcome(), {})["rows"][0]
    assert (row["get_ratio"], row["put_ratio"], row["get_vs_file"], row["put_vs_file"]) == (0.5, 0.5, 2.0, 2.0)
    assert row["put_ratio_quartiles"] == [0.5, 0.5]
    assert row["put_ratio_total"] == 0.5
    assert row["put"]["shipped"]["bytes_per_s"] == 4 * (1 << 20) / 2.0
    assert row["put"]["shipped"]["cpu_s_per_gib"] == pytest.approx(1.0 / (4 / 1024))
    assert row["put"]["shipped"]["p50_s"] == row["put"]["shipped"]["p99_s"] == 0.5


def test_bounds_are_those_of_a_mebibyte_and_more() -> None:
    judged = {each["name"]: (each["met"], each["wanted"]) for each in flash_report.to_json(outcome(), {})["wanted"]}
    assert judged == {
        "get_ratio 1 MiB × 1": (False, "≥ 0.7"),
        "put_ratio 1 MiB × 1": (False, "≥ 0.7"),
        "put_vs_file 1 MiB × 1": (True, "≥ 1.5"),
        "put_vs_file 1 MiB × 2": (True, "≥ 1.5"),
        "get_ratio 1 MiB × 4": (False, "≥ 0.95"),
        "put_ratio 1 MiB × 4": (False, "≥ 0.9"),
        "put_vs_file 1 MiB × 4": (True, "≥ 1.5"),
        "read_p99_under_write_ratio": (False, "≤ 3"),
    }


def test_people_are_told_what_is_short() -> None:
    answer = flash_report.to_json(outcome(), {"cores": 2})
    told = "\n".join(flash_report.remarks(answer))
    assert "wanted: 3 of 8 met" in told
    assert "short: get_ratio 1 MiB × 4 is 0.50, wanted ≥ 0.95" in told
    assert "p99 80.00 ms ÷ 20.00 ms alone = 4.00" in told
    assert "only 2 pairs" in told
    assert all(len(row) == len(flash_report.COLUMNS) for row in flash_report.table(answer))
    assert all(len(row) == len(flash_report.MIXED_COLUMNS) for row in flash_report.mixed_table(answer))


@pytest.mark.parametrize("way", ["shipped", "bare", "file"])
def test_a_contender_stores_and_reads_what_it_was_given(disk: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[memoryview] = []
    give = Buffers.target

    def given(buffers: Buffers, lane: int) -> memoryview:
        read.append(give(buffers, lane))
        return read[-1]

    monkeypatch.setattr(Buffers, "target", given)
    with flash_store.contenders(PLAN, SIZE, disk) as (ways, buffers):
        read.clear()
        for op in [*ways[way].puts(3), *ways[way].gets(2)]:
            op(0)
        assert len(read) == 2
        stored = {buffers.source(number).tobytes() for number in range(1000)}
        assert all(target.tobytes() in stored for target in read)


def test_lanes_never_share_a_target() -> None:
    buffers = Buffers(SIZE, 4)
    for num_lanes in (1, 3, 4):
        buffers.share_out(num_lanes)
        given = [{place(buffers.target(lane)) for _ in range(10)} for lane in range(num_lanes)]
        assert all(len(places) > 1 for places in given)
        assert len(set.union(*given)) == sum(map(len, given))


def place(target: memoryview) -> int:
    return int(np.frombuffer(target, np.uint8).ctypes.data)


def test_files_are_synced_with_their_directory_at_each_segments_worth(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers = Buffers(SIZE, 1)
    files = FilePerBlock(disk, 4 * SIZE, 8, buffers)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    counts = []
    for op in files.puts(8):
        op(0)
        counts.append(len(synced))
    assert counts == [0, 0, 0, 5, 5, 5, 5, 10]
    files.close()


def test_old_files_go_so_that_the_disk_does_not_fill(disk: Path) -> None:
    files = FilePerBlock(disk, 4 * SIZE, 8, Buffers(SIZE, 1))
    for _ in range(5):
        for op in files.puts(4):
            op(0)
    assert len(list(disk.iterdir())) <= 12
    files.close()


def test_bare_files_keep_their_size(disk: Path) -> None:
    bare = Bare(disk, 4 * SIZE, 2, Buffers(SIZE, 1))
    for op in bare.puts(11):
        op(0)
    bare.close()
    assert [path.stat().st_size for path in disk.iterdir()] == [4 * SIZE] * 2


def test_a_store_that_returns_other_bytes_is_noticed(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = Buffers(SIZE, 1)
    shipped = Shipped(disk, PLAN, buffers)
    monkeypatch.setattr(shipped._store, "read", lambda key, namespace, address, out: len(out))
    with pytest.raises(TierUnavailable, match="other bytes"):
        shipped.check()
    shipped.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sizes", "5000"], "--sizes"),
        (["--in-flight", "0"], "--in-flight"),
        (["--pairs", "0"], "--pairs"),
        (["--flash-dir", "/dev/shm"], "in memory"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "flash", *arguments]) == 2
    told: Any = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1

"""`hifc simulate` as people and programs call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hifc_ray.cli.main import run
from tests.fakes.traces import conversations


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    numbers: dict[str, int] = {}
    lines = [
        {"timestamp": 1000 * i, "hash_ids": [numbers.setdefault(name, len(numbers)) for name in r.blocks]}
        for i, r in enumerate(conversations(1, 150))
    ]
    path = tmp_path / "talk.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


OPTIONS = ("--flash-share", "0.3", "--host-share", "0.05", "--block-bytes", "1MiB")


def test_json_is_one_object_on_stdout_and_progress_is_on_stderr(trace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["simulate", str(trace), *OPTIONS, "--eviction", "lru,retention", "--admission", "always", "--json"]) == 0
    )
    out, err = capfd.readouterr()
    answer = json.loads(out)
    assert [(row["eviction"], row["admission"]) for row in answer["rows"]] == [
        ("lru", "always"),
        ("retention", "always"),
    ]
    assert {"trace", "hit_ratio", "ideal_hit_ratio", "write_amplification", "in_place_pages"} <= set(answer["rows"][0])
    assert answer["settings"]["flash_shares"] == [0.3]
    assert "talk, flash 30%: lru, always" in err


def test_the_table_says_what_its_columns_are(trace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(trace), *OPTIONS]) == 0
    out, _ = capfd.readouterr()
    assert all(name in out for name in ("always", "budgeted", "second-sight", "tinylfu"))
    assert "write amp.: bytes written to the device" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--flash-share", "much"], "--flash-share is 'much'; allowed: shares above 0, with commas between"),
        (["--flash-share", "2"], "share is 2.0; allowed: above 0, at most 1"),
        (["--flash-share", "0.001"], "flash of 0.001 of trace talk: flash has 0 blocks"),
        (["--eviction", "belady"], "policy.eviction is 'belady'; allowed: lru, retention"),
        (["--admission", "never"], "policy.admission is 'never'"),
        (["--block-bytes", "huge"], "--block-bytes"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    trace: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert run(["simulate", str(trace), *OPTIONS, *arguments]) == 2
    out, err = capfd.readouterr()
    assert not out
    assert says in err.splitlines()[-1]


def test_a_missing_trace_is_bad_input(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl cannot be read" in capfd.readouterr().err

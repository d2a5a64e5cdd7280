"""Reading traces: what is accepted, how blocks are named, and what a bad line says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from hifc_ray.errors import ConfigError
from hifc_ray.sim.traces import Request, load, make


def line(timestamp: float, hashes: list[int], **more: object) -> str:
    return json.dumps({"timestamp": timestamp, "input_length": 1, "output_length": 1, "hash_ids": hashes, **more})


def write(path: Path, *lines: str) -> Path:
    text = "".join(one + "\n" for one in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["load.jsonl", "load.jsonl.gz"])
def test_requests_are_read_in_order_of_time(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, line(3000, [1, 3], session_id=7, turn=2), "", line(1000, [1, 2]))
    trace = load(path)
    assert trace.name == "load"
    assert [trace.chain(request).tolist() for request in range(2)] == [[0, 1], [0, 2]]
    assert trace.times_s.tolist() == [0.0, 2.0]
    assert trace.turns.tolist() == [0, 2]
    assert (trace.num_blocks, trace.num_accesses, len(trace)) == (3, 4, 2)


def test_a_block_is_its_hash_and_all_before_it() -> None:
    trace = make("content", [Request(0, [1, 2, 9]), Request(1, [3, 2, 9]), Request(2, ["1", 1])])
    assert trace.num_blocks == 8
    assert make("chained", [Request(0, [1, 2]), Request(1, [1, 2, 3])]).num_blocks == 3


def test_a_request_without_blocks_is_one() -> None:
    trace = make("some", [Request(0, []), Request(1, [4])])
    assert [len(trace.chain(request)) for request in range(2)] == [0, 1]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{", "Expecting property name"),
        ("[1]", "is a JSON list, not an object"),
        (json.dumps({"timestamp": 1}), "hash_ids is missing"),
        (json.dumps({"hash_ids": [1]}), "timestamp is missing"),
        (json.dumps({"timestamp": -1, "hash_ids": [1]}), "timestamp is -1, not a number from 0 up"),
        (json.dumps({"timestamp": "now", "hash_ids": [1]}), "timestamp is 'now', not a number from 0 up"),
        (json.dumps({"timestamp": True, "hash_ids": [1]}), "timestamp is True, not a number from 0 up"),
        ('{"timestamp": NaN, "hash_ids": [1]}', "timestamp is nan, not a number from 0 up"),
        (json.dumps({"timestamp": 1, "hash_ids": 5}), "hash_ids is not a list of numbers or texts"),
        (json.dumps({"timestamp": 1, "hash_ids": [[5]]}), "hash_ids is not a list of numbers or texts"),
        (json.dumps({"timestamp": 1, "hash_ids": [5], "turn": "x"}), "turn is 'x', not a number from 0 up"),
        (
            json.dumps({"timestamp": 1, "hash_ids": [5], "turn": 1e300}),
            "turn is 1e+300, not a number from 0 up to 9007",
        ),
        (json.dumps({"timestamp": 10**400, "hash_ids": [5]}), "timestamp is 1000"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, bad: str, why: str) -> None:
    path = write(tmp_path / "bad.jsonl", line(1, [1]), bad)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"trace {path}, line 2: {why}")
    assert "allowed: one JSON object a line with timestamp (ms)" in str(caught.value)


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl.gz").write_text("not gzip")
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(line(1, [1]).encode())[:-12])
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    for name in ("missing.jsonl", "plain.jsonl.gz", "torn.jsonl.gz", "binary.jsonl"):
        with pytest.raises(ConfigError, match=rf"trace .*{name} cannot be read: .*; allowed: a \.jsonl"):
            load(tmp_path / name)


@pytest.mark.parametrize("lines", [[], [line(1, [])]])
def test_a_trace_without_a_block_is_refused(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(ConfigError, match="names no block"):
        load(write(tmp_path / "empty.jsonl", *lines))

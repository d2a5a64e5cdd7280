"""The table and the JSON say what was measured, and the answer is no where it has to be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hifc_ray.cli.output import to_json
from hifc_ray.demo.compare import Compared
from hifc_ray.demo.counts import Counts, TierCounts
from hifc_ray.demo.play import Played
from hifc_ray.demo.report import TIER_COLUMNS, Report, fact_rows, tier_rows
from hifc_ray.demo.script import script
from hifc_ray.demo.texts import desks
from hifc_ray.engine.sequence import Result

SAME = Compared(True, None, 2, 0.0, 0.5)
ENGINE = {"dtype": "float32", "device": "cpu", "block_tokens": 256, "block_bytes": 11796480, "threads": 2}


def result(ttft_s: float, **blocks: int) -> Result:
    return Result([1, 2], "", "length", 600, ttft_s, blocks, {}, {}, None, 0.5, [], np.empty(0, np.float32))


def facts(report: Report) -> dict[str, str]:
    return {str(name): str(value) for name, value in fact_rows(report)}


@pytest.fixture
def report() -> Report:
    turns = script(desks(), 1, 3, 0)
    results = [result(9.0, computed=2), result(1.0, gpu=2), result(2.0, host=1, flash=1)]
    played = [Played(turn, [1], each, Path("x")) for turn, each in zip(turns, results, strict=True)]
    tier = TierCounts(2, 4, 2, 23592960, 0, 0.0)
    counts = Counts(dict.fromkeys(("gpu", "host", "flash"), tier), 776, 1024, 0)
    cold = [result(8.0), result(4.0), result(6.0)]
    return Report(played, cold, [SAME] * 3, counts, ENGINE, {"Ray": "here", "arena": "/a", "flash": "/f"}, 12.0)


def test_json_has_what_it_promises(report: Report) -> None:
    answer: dict[str, Any] = json.loads(to_json(report.to_dict()))
    assert answer["identical_outputs"] is True
    assert sorted(answer["tiers"]) == ["flash", "gpu", "host"]
    for tier in answer["tiers"].values():
        assert {"hits", "misses", "stored_bytes", "loaded_bytes"} <= tier.keys()
    assert answer["tokens"] == {"computed": 776, "saved": 1024}
    assert (answer["min_margin"], answer["max_logit_diff"], answer["checksum_faults"]) == (0.5, 0.0, 0)
    assert len(answer["turns"]) == 3


def test_only_turns_with_hits_are_compared_in_time(report: Report) -> None:
    ttft = report.to_dict()["ttft_s"]
    assert ttft == {"hit": {"p50": 1.5, "max": 2.0, "n": 2}, "cold": {"p50": 5.0, "max": 6.0, "n": 2}}
    assert "n = 2  (3.3 times)" in facts(report)["the same turns from nothing"]


def test_no_turn_with_hits_is_said_and_not_a_number(report: Report) -> None:
    alone = replace(report, played=report.played[:1], cold=report.cold[:1], compared=[SAME])
    assert alone.to_dict()["ttft_s"]["hit"] == {"p50": None, "max": None, "n": 0}
    told = facts(alone)
    assert told["first token, with hits"] == told["the same turns from nothing"] == "no such turn"


def test_the_pool_says_that_it_is_no_gpu(report: Report) -> None:
    assert [row[0] for row in tier_rows(report)] == ["gpu (on cpu)", "host", "flash"]
    assert tier_rows(replace(report, engine={**ENGINE, "device": "cuda:0"}))[0][0] == "gpu"
    assert {len(row) for row in tier_rows(report)} == {len(TIER_COLUMNS)}


def test_a_difference_or_a_fault_is_the_answer_no(report: Report) -> None:
    assert report.is_right
    differs = replace(report, compared=[SAME, Compared(False, 1, 2, 0.75, 0.125), SAME])
    assert not differs.is_right
    assert (differs.max_logit_diff, differs.min_margin) == (0.75, 0.125)
    assert "DIFFERENT in 1 of 3 turns, first for Ada, turn 2, token 1" in facts(differs)["outputs"]
    assert not replace(report, counts=replace(report.counts, checksum_faults=1)).is_right


def test_a_logit_that_is_no_number_is_not_hidden(report: Report) -> None:
    broken = replace(report, compared=[SAME, replace(SAME, max_logit_diff=float("nan"))])
    assert np.isnan(broken.max_logit_diff)

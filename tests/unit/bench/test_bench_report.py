"""Figures: what counts is the median, beside its spread and what is wanted; the JSON has the promised names."""

from __future__ import annotations

import pytest

from hifc_ray.bench.report import COLUMNS, WANTED, Figure, Wanted, notes, rows, to_json
from hifc_ray.cli.output import to_json as text_of

PROMISED = {
    "lookup_call_ratio": {"idle", "busy"},
    "lookup_keys_per_s": None,
    "host_copy_ratio": None,
    "flash_read_ratio": None,
    "ttft_speedup": {"host", "flash"},
    "engine_ratio": {"prefill", "decode_1", "decode_8"},
}


def figure(name: str, *samples: float) -> Figure:
    return Figure(name, samples, "one ÷ the other", {"one_s": 2.0})


def test_the_middle_counts_and_the_spread_is_told() -> None:
    ratio = figure("host_copy_ratio", 5.0, 1.0, 2.0, 4.0, 3.0)
    assert (ratio.median, ratio.quartiles) == (3.0, (2.0, 4.0))


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("host_copy_ratio", 0.7, "met"),
        ("host_copy_ratio", 0.69, "short"),
        ("lookup_call_ratio.idle", 2.0, "met"),  # a cost: at most
        ("lookup_call_ratio.idle", 2.01, "short"),
        ("ttft_speedup_1500.host", 0.1, ""),  # nothing is promised of it
    ],
)
def test_a_verdict_is_about_the_median(name: str, value: float, verdict: str) -> None:
    assert figure(name, value, value, 9.0 if verdict == "short" else 0.0).verdict == verdict


def test_json_has_the_promised_names_with_medians() -> None:
    answer = to_json([figure(name, 1.0, 3.0, 2.0) for name in WANTED], {"cores": 2})
    assert set(answer) == {*PROMISED, "details", "machine"}
    for name, inner in PROMISED.items():
        assert answer[name] == (2.0 if inner is None else dict.fromkeys(inner, 2.0)), name
    assert set(answer["details"]) == set(WANTED)
    assert answer["machine"] == {"cores": 2}


def test_details_carry_spread_bound_and_parts() -> None:
    answer = to_json([figure("lookup_call_ratio.busy", 1.0, 3.0, 2.5), figure("other", 1.0)], {})
    details = answer["details"]["lookup_call_ratio.busy"]
    assert (details["median"], details["lowest"], details["highest"]) == (2.5, 1.0, 3.0)
    assert details["quartiles"] == (1.75, 2.75)
    assert (details["wanted"], details["met"], details["parts"]) == ({"at_most": 2.0}, False, {"one_s": 2.0})
    assert (answer["details"]["other"]["wanted"], answer["details"]["other"]["met"]) == (None, None)
    assert text_of(answer).startswith("{")


def test_rows_name_the_bound_beside_the_figure() -> None:
    (row,) = rows([figure("lookup_keys_per_s", 150_000.0, 160_000.0, 170_000.0)])
    assert len(row) == len(COLUMNS)
    assert row == (
        "lookup_keys_per_s",
        "160,000",
        "155,000 to 165,000",
        "150,000 to 170,000",
        3,
        "≥ 200,000",
        "short",
    )
    assert notes([figure("x", 1.0), Figure("y", [1.0], "this")]) == ["x: one ÷ the other: one_s 2", "y: this"]


def test_bounds_read_as_bounds() -> None:
    assert (str(Wanted(0.95)), str(Wanted(2.0, at_most=True))) == ("≥ 0.95", "≤ 2")

"""Rows of figures: what they add up to, and what real traces say by default settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hifc_ray.errors import ConfigError
from hifc_ray.sim import report, run
from hifc_ray.sim.traces import load
from tests.fakes.traces import conversation_trace

TRACES = Path(__file__).parents[4] / "shared" / "traces"
SMALL = run.Settings(flash_shares=(0.2, 0.5), host_share=0.03, block_bytes=1 << 20)


@pytest.fixture(scope="module")
def rows() -> list[run.Row]:
    return list(run.simulate([conversation_trace(1, 400)], SMALL, lambda _: None))


def test_there_is_a_row_for_each_size_and_policy_the_free_one_first(rows: list[run.Row]) -> None:
    names = ["always", "budgeted", "second-sight", "tinylfu"]
    assert [(row.flash_share, row.admission) for row in rows] == [
        (share, name) for share in (0.2, 0.5) for name in names
    ]


def test_figures_add_up(rows: list[run.Row]) -> None:
    for row in rows:
        pages = row.device_written_bytes / 4096
        assert row.hit_loss_points == pytest.approx(100 * (row.ideal_hit_ratio - row.hit_ratio))
        assert row.write_amplification == pytest.approx(row.device_written_bytes / row.admitted_bytes)
        assert row.device_written_bytes >= row.admitted_bytes + row.carried_bytes
        assert row.in_place_pages == row.accesses * 256
        assert row.writes_reduction == pytest.approx(row.in_place_pages / pages, rel=1e-3)
        assert row.writes_reduction_once == pytest.approx(row.ideal_written_bytes / row.device_written_bytes, rel=1e-3)
        assert row.host_hit_ratio < row.hit_ratio
        assert 0 < row.useful_share < 1


def test_what_admission_saves_it_pays_for_in_hits(rows: list[run.Row]) -> None:
    always = {row.flash_share: row for row in rows if row.admission == "always"}
    for row in rows:
        free = always[row.flash_share]
        if row is not free:
            assert row.device_written_bytes < free.device_written_bytes
            assert row.writes_reduction > free.writes_reduction
            assert row.hit_loss_points > free.hit_loss_points


def test_budgeted_writes_what_its_budget_bears(rows: list[run.Row]) -> None:
    always, budgeted = (next(row for row in rows if row.admission == name) for name in ("always", "budgeted"))
    assert 0.22 <= budgeted.admitted_bytes / always.device_written_bytes <= 0.26


def test_budgeted_alone_is_budgeted_alike(rows: list[run.Row]) -> None:
    alone = replace(SMALL, flash_shares=(0.2,), admissions=("budgeted",))
    assert list(run.simulate([conversation_trace(1, 400)], alone, lambda _: None)) == [rows[1]]


def test_the_table_has_a_cell_for_each_column(rows: list[run.Row]) -> None:
    assert {len(line) for line in report.table(rows)} == {len(report.COLUMNS)}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"flash_shares": (0.0,)}, "share is 0.0; allowed: above 0, at most 1"),
        ({"flash_shares": (float("nan"),)}, "share is nan"),
        ({"flash_shares": ()}, "no share of flash"),
        ({"host_share": 1.5}, "share is 1.5"),
        ({"block_bytes": 100}, "block bytes is 100; allowed: at least 4096"),
        ({"evictions": ("belady",)}, "policy.eviction is 'belady'"),
        ({"admissions": ("never",)}, "policy.admission is 'never'"),
    ],
)
def test_settings_that_do_not_do_are_refused(changes: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        replace(SMALL, **changes)  # type: ignore[arg-type]


CELLS = [(name, share) for name in ("mooncake_conversation", "agentic_sessions") for share in (0.03, 0.1, 0.3)]
QUICK = ("mooncake_conversation", 0.3)


@pytest.mark.parametrize(
    ("name", "share"), [pytest.param(*cell, marks=[] if cell == QUICK else [pytest.mark.long]) for cell in CELLS]
)
def test_by_default_a_log_is_within_a_point_of_an_ideal_lru_store(name: str, share: float) -> None:
    path = TRACES / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    (row,) = run.simulate([load(path)], run.Settings((share,), admissions=("always",)), lambda _: None)
    assert row.write_amplification <= 1.15
    assert row.hit_loss_points <= 1.0

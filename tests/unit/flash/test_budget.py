from __future__ import annotations

import math

import pytest

from hifc_ray.clock import ManualClock
from hifc_ray.flash.budget import DAY_S, WriteBudget


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(5.0)


def test_it_starts_full_and_ends(clock: ManualClock) -> None:
    budget = WriteBudget(1000, clock)
    assert budget.level == 1.0
    assert budget.draw(600)
    assert budget.level == pytest.approx(0.4)
    assert not budget.draw(401)
    assert budget.level == pytest.approx(0.4), "a refusal takes nothing"
    assert budget.draw(400)
    assert budget.level == 0.0


def test_it_fills_by_the_day_and_no_further(clock: ManualClock) -> None:
    budget = WriteBudget(1000, clock, burst_days=0.5)
    assert budget.draw(500)
    clock.advance(DAY_S / 4)
    assert not budget.draw(251)
    assert budget.draw(249)
    clock.advance(30 * DAY_S)
    assert budget.level == 1.0
    assert not budget.draw(501)
    assert budget.draw(500)


def test_over_time_no_more_is_drawn_than_the_rate_and_one_burst(clock: ManualClock) -> None:
    budget = WriteBudget(86_400, clock)
    drawn = 0
    for _ in range(10_000):
        clock.advance(60.0)
        while budget.draw(70):
            drawn += 70
    assert drawn <= 86_400 + 600_000
    assert drawn >= 0.999 * (86_400 + 600_000) - 70


def test_what_must_be_written_may_leave_a_debt(clock: ManualClock) -> None:
    budget = WriteBudget(1000, clock)
    budget.charge(1500)
    assert budget.level == 0.0
    assert not budget.draw(1)
    clock.advance(DAY_S / 2 + 1)
    assert not budget.draw(1)
    clock.advance(DAY_S / 100)
    assert budget.draw(9)


def test_without_a_limit_all_is_drawn_and_counted(clock: ManualClock) -> None:
    budget = WriteBudget(0, clock)
    assert budget.draw(1 << 50)
    assert budget.level == 1.0
    clock.advance(DAY_S)
    assert budget.written_per_day == pytest.approx((1 << 50) * math.exp(-1) / (1 - math.exp(-1)))


@pytest.mark.parametrize("days", [0.05, 1, 10])
def test_the_rate_is_right_from_the_start(clock: ManualClock, days: float) -> None:
    budget = WriteBudget(1000, clock)
    for _ in range(1000):
        clock.advance(days * DAY_S / 1000)
        budget.charge(int(days * 50))
    assert budget.written_per_day == pytest.approx(int(days * 50) * 1000 / days, rel=0.01)


def test_the_rate_follows_and_forgets(clock: ManualClock) -> None:
    budget = WriteBudget(0, clock)
    clock.advance(10 * DAY_S)
    budget.charge(1000)
    assert budget.written_per_day == pytest.approx(1000, rel=0.01)
    clock.advance(2 * DAY_S)
    assert budget.written_per_day == pytest.approx(1000 * math.exp(-2), rel=0.01)


def test_the_first_seconds_say_little(clock: ManualClock) -> None:
    budget = WriteBudget(0, clock)
    budget.charge(60)
    assert budget.written_per_day == pytest.approx(86_400, rel=0.01)


def test_a_restart_goes_on_where_it_was(clock: ManualClock) -> None:
    before = WriteBudget(1000, clock)
    clock.advance(3 * DAY_S)
    assert before.draw(1000)
    saved, rate = before.state(), before.written_per_day
    later = WriteBudget(1000, ManualClock(0.0))
    later.restore(saved, 0.0)
    assert later.level == pytest.approx(0.0)
    assert later.written_per_day == pytest.approx(rate)
    rested = WriteBudget(1000, ManualClock(0.0))
    rested.restore(saved, DAY_S / 4)
    assert rested.level == pytest.approx(0.25)
    assert rested.written_per_day == pytest.approx(rate * math.exp(-0.25), rel=0.03)


def test_a_restart_forgives_no_debt_and_nothing_written_before_it(clock: ManualClock) -> None:
    before = WriteBudget(1000, clock)
    before.charge(1500)
    later = WriteBudget(1000, ManualClock(0.0))
    assert later.draw(250)
    later.restore(before.state(), 0.0)
    clock_later = later.state()
    assert clock_later["share"] == pytest.approx(-0.75)
    assert clock_later["recent_bytes"] == pytest.approx(1750)


def test_another_limit_starts_as_full_as_the_last(clock: ManualClock) -> None:
    unlimited = WriteBudget(0, clock)
    unlimited.charge(10**12)
    limited = WriteBudget(1000, clock)
    limited.restore(unlimited.state(), 0.0)
    assert limited.level == 1.0
    large, small = WriteBudget(10**6, clock), WriteBudget(1000, clock)
    assert large.draw(500_000)
    small.restore(large.state(), 0.0)
    assert small.level == pytest.approx(0.5)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"share": 0.0, "recent_bytes": 1.0},
        {"share": math.nan, "recent_bytes": 1.0, "seen_s": 1.0},
        {"share": 0.0, "recent_bytes": -1.0, "seen_s": 1.0},
        {"share": 0.0, "recent_bytes": 1.0, "seen_s": math.inf},
        {"share": None, "recent_bytes": 1.0, "seen_s": 1.0},
    ],
)
def test_a_state_that_is_none_changes_nothing(clock: ManualClock, state: dict[str, float]) -> None:
    budget = WriteBudget(1000, clock)
    budget.restore(state, 0.0)
    assert (budget.level, budget.written_per_day) == (1.0, 0.0)


def test_a_wall_clock_that_went_back_is_no_age(clock: ManualClock) -> None:
    budget = WriteBudget(1000, clock)
    budget.charge(1000)
    budget.restore({"share": 0.5, "recent_bytes": 100.0, "seen_s": DAY_S}, -5 * DAY_S)
    assert budget.state()["share"] == pytest.approx(-0.5)

from __future__ import annotations

import threading

import pytest

from hifc_ray.clock import ManualClock
from hifc_ray.flash.breaker import Breaker, BreakerState

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def changes() -> list[tuple[BreakerState, BreakerState]]:
    return []


@pytest.fixture
def breaker(clock: ManualClock, changes: list[tuple[BreakerState, BreakerState]]) -> Breaker:
    return Breaker(3, 60.0, 30.0, clock, lambda before, after: changes.append((before, after)))


def opened(breaker: Breaker) -> None:
    for _ in range(3):
        breaker.fault()
    assert breaker.state is OPEN


def test_it_opens_at_the_last_fault_that_it_bears(breaker: Breaker, changes: list[object]) -> None:
    for _ in range(2):
        breaker.fault()
        assert breaker.allows()
        assert not breaker.may_probe()
    breaker.fault()
    assert not breaker.allows()
    assert changes == [(CLOSED, OPEN)]


def test_faults_far_apart_are_borne(breaker: Breaker, clock: ManualClock) -> None:
    for _ in range(10):
        breaker.fault()
        clock.advance(31.0)
    assert breaker.allows()
    for _ in range(2):
        breaker.fault()
    assert not breaker.allows(), "three within 60 s"


def test_success_between_faults_does_not_hide_them(breaker: Breaker) -> None:
    for _ in range(3):
        breaker.success()
        breaker.fault()
    assert breaker.state is OPEN


def test_one_caller_probes_when_its_time_has_come(breaker: Breaker, clock: ManualClock, changes: list[object]) -> None:
    opened(breaker)
    clock.advance(29.9)
    assert not breaker.may_probe()
    clock.advance(0.2)
    assert [breaker.may_probe() for _ in range(3)] == [True, False, False]
    assert breaker.state is HALF_OPEN
    assert not breaker.allows()
    breaker.success()
    assert breaker.allows()
    assert changes == [(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED)]


def test_old_faults_are_forgotten_when_it_closes(breaker: Breaker, clock: ManualClock) -> None:
    opened(breaker)
    clock.advance(30.0)
    assert breaker.may_probe()
    breaker.success()
    breaker.fault()
    breaker.fault()
    assert breaker.allows()


def test_the_interval_doubles_up_to_sixteen_times_and_starts_anew(breaker: Breaker, clock: ManualClock) -> None:
    opened(breaker)
    for interval_s in (30, 60, 120, 240, 480, 480, 480):
        clock.advance(interval_s - 0.5)
        assert not breaker.may_probe()
        clock.advance(0.5)
        assert breaker.may_probe()
        breaker.fault()
    clock.advance(480)
    assert breaker.may_probe()
    breaker.success()
    opened(breaker)
    clock.advance(30)
    assert breaker.may_probe()


def test_late_news_of_old_calls_changes_nothing(breaker: Breaker, clock: ManualClock, changes: list[object]) -> None:
    opened(breaker)
    for _ in range(5):
        clock.advance(5)
        breaker.fault()
        breaker.success()
    assert changes == [(CLOSED, OPEN)]
    clock.advance(5)
    assert breaker.may_probe(), "neither put off"


def test_a_probe_that_never_comes_back_holds_nobody_up(
    breaker: Breaker, clock: ManualClock, changes: list[object]
) -> None:
    opened(breaker)
    clock.advance(30)
    assert breaker.may_probe()
    clock.advance(29)
    assert not breaker.may_probe()
    clock.advance(1)
    assert breaker.may_probe()
    assert changes == [(CLOSED, OPEN), (OPEN, HALF_OPEN)]


@pytest.mark.timeout(30)
def test_who_is_told_may_ask_back(clock: ManualClock) -> None:
    asked: list[bool] = []
    talkative = Breaker(1, 60.0, 30.0, clock, lambda *_: asked.append(talkative.may_probe()))
    talkative.fault()
    assert asked == [False]


@pytest.mark.timeout(30)
def test_many_threads_get_one_probe(breaker: Breaker, clock: ManualClock) -> None:
    opened(breaker)
    clock.advance(30)
    start, granted = threading.Barrier(8), []

    def ask() -> None:
        start.wait()
        granted.append(breaker.may_probe())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(granted) == [False] * 7 + [True]

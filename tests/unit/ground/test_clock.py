from __future__ import annotations

from hifc_ray.clock import Clock, ManualClock, MonotonicClock


def test_a_manual_clock_moves_only_when_told() -> None:
    clock: Clock = (manual := ManualClock(5.0))
    assert clock.now() == clock.now() == 5.0
    manual.advance(2.5)
    assert clock.now() == 7.5


def test_the_machine_clock_never_goes_back() -> None:
    clock: Clock = MonotonicClock()
    readings = [clock.now() for _ in range(1000)]
    assert readings == sorted(readings)

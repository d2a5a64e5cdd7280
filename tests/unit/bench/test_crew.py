"""Operations run as many at a time as asked, are timed one by one, and their errors are not lost."""

from __future__ import annotations

import threading
import time

import pytest

from hifc_ray.bench import crew

pytestmark = pytest.mark.timeout(30)


def test_each_operation_is_run_once_and_timed() -> None:
    done: list[int] = []

    def op(number: int) -> crew.Op:
        def act(lane: int) -> None:
            if number == 3:
                time.sleep(0.02)
            done.append(number)

        return act

    sample = crew.run([op(number) for number in range(10)], 2)
    assert sorted(done) == list(range(10))
    assert sample.latencies_s.shape == (10,)
    assert sample.latencies_s.argmax() == 3
    assert sample.seconds >= sample.latencies_s[3] >= 0.02


def test_as_many_are_in_flight_as_asked() -> None:
    together = threading.Barrier(4)
    lanes: set[int] = set()

    def act(lane: int) -> None:
        together.wait(10)
        lanes.add(lane)

    crew.run([act] * 4, 4)
    assert lanes == {0, 1, 2, 3}


def test_an_error_ends_the_run_and_is_raised() -> None:
    def fail(lane: int) -> None:
        raise OSError("the device is gone")

    with pytest.raises(OSError, match="the device is gone"):
        crew.run([fail] * 4, 2)


def test_the_background_goes_on_as_long_as_the_block_and_is_counted() -> None:
    begun = threading.Semaphore(0)
    with crew.meanwhile(lambda: lambda lane: begun.release(), 2) as background:
        for _ in range(20):
            assert begun.acquire(timeout=10)
    assert background.num_done >= 20
    assert background.seconds > 0


def test_an_error_in_the_background_is_raised_at_the_end() -> None:
    failed = threading.Event()

    def fail(lane: int) -> None:
        failed.set()
        raise OSError("the device is gone")

    with pytest.raises(OSError, match="the device is gone"), crew.meanwhile(lambda: fail, 1):
        assert failed.wait(10)

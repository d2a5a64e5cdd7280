from __future__ import annotations

import threading

import pytest

from hifc_ray import points


def test_a_point_without_a_hook_does_nothing() -> None:
    points.reach("ground.test")


def test_a_hook_runs_in_the_thread_that_reaches_its_point() -> None:
    reached: list[str] = []
    with points.at("ground.test", lambda: reached.append(threading.current_thread().name)):
        points.reach("ground.other")
        thread = threading.Thread(target=points.reach, args=("ground.test",), name="reacher")
        thread.start()
        thread.join()
    points.reach("ground.test")
    assert reached == ["reacher"]


def test_what_a_hook_raises_is_raised_at_the_point() -> None:
    def fail() -> None:
        raise OSError("disk on fire")

    with points.at("ground.test", fail), pytest.raises(OSError, match="on fire"):
        points.reach("ground.test")


def test_a_point_has_one_hook_at_a_time_and_is_free_after_a_failure() -> None:
    with (
        pytest.raises(ValueError, match=r"ground\.test"),
        points.at("ground.test", lambda: None),
        points.at("ground.test", lambda: None),
    ):
        pass
    with points.at("ground.test", lambda: None):
        points.reach("ground.test")


@pytest.mark.timeout(30)
def test_a_hook_can_hold_a_thread() -> None:
    arrived, go = threading.Event(), threading.Event()
    passed: list[bool] = []

    def hold() -> None:
        arrived.set()
        go.wait(20)

    def work() -> None:
        points.reach("ground.test")
        passed.append(go.is_set())

    with points.at("ground.test", hold):
        thread = threading.Thread(target=work)
        thread.start()
        assert arrived.wait(20)
        assert passed == []
        go.set()
        thread.join()
    assert passed == [True]

from __future__ import annotations

import threading

import pytest

from hifc_ray.tiering.errands import Errands

pytestmark = pytest.mark.timeout(20)
LONG_S = 10.0  # of real time; never waited for in a test that passes


def test_an_errand_is_done_when_it_says_so_and_its_error_is_raised() -> None:
    errands, done = Errands(LONG_S), []
    assert errands.run("a", lambda: done.append(1))
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        errands.run("a", lambda: 1 // 0)
    assert errands.wait(0.0)


def test_one_that_hangs_is_late_once_and_has_no_second_beside_it() -> None:
    errands, gate, late, done = Errands(0.02), threading.Event(), [], []
    assert not errands.run("a", gate.wait, lambda: late.append("a"))
    assert not errands.run("a", lambda: done.append("a"), lambda: late.append("again"))
    assert errands.run("b", lambda: done.append("b"))  # another name is another matter
    assert (late, done) == (["a"], ["b"])
    assert not errands.wait(0.02)
    gate.set()
    assert errands.wait(LONG_S)
    assert errands.run("a", lambda: done.append("a"))


def test_what_is_raised_too_late_is_not_heard() -> None:
    errands, gate = Errands(0.02), threading.Event()

    def fail() -> None:
        gate.wait()
        raise OSError("nobody waits any more")

    assert not errands.run("a", fail)
    gate.set()
    assert errands.wait(LONG_S)
    assert errands.run("a", lambda: None)

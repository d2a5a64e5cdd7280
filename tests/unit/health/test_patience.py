"""Questions that hang."""

from __future__ import annotations

import threading

import pytest

from hifc_ray.health.patience import Patience

pytestmark = pytest.mark.timeout(30)


def test_an_answer() -> None:
    assert Patience(lambda: 7)() == 7


def test_a_question_that_hangs_is_asked_once() -> None:
    go_on, asked = threading.Event(), []

    def hang() -> int:
        asked.append(1)
        go_on.wait(20)
        return len(asked)

    patience = Patience(hang, limit_s=0.05)
    assert patience() is None
    assert patience() is None
    assert len(asked) == 1
    go_on.set()
    assert patience._asking is not None
    patience._asking.join(20)
    assert patience() == 2


def test_an_error_is_the_callers() -> None:
    def fails() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Patience(fails)()

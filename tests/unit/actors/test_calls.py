"""What Ray raises, in our words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray import exceptions
from ray.exceptions import RayTaskError

from hifc_ray.actors.calls import CallTimedOut, ask, follow
from hifc_ray.errors import ConfigError, DirectoryLocked, HifcError, StorageError, TierUnavailable

_TRACE = "ray::Tier.f() (pid=1)\n  File 'x.py', line 3, in f\n    raise {error}\n{error}"


def _raised(cause: Exception) -> RayTaskError:
    """As `ray.get` raises what a method has raised."""
    text = _TRACE.format(error=f"{type(cause).__module__}.{type(cause).__qualname__}: {cause}")
    return RayTaskError("f", text, cause).as_instanceof_cause()  # type: ignore[no-any-return]


def _died_in_constructor(cause: Exception) -> exceptions.ActorDiedError:
    task = RayTaskError(
        "__init__", _TRACE.format(error=f"{type(cause).__module__}.{type(cause).__qualname__}: {cause}"), cause
    )
    task._actor_id = "ab"
    return exceptions.ActorDiedError(task)


@pytest.fixture
def get(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `ray.get` returns, or raises, one after the other."""
    outcomes: list[Any] = []

    def fake(reference: object, timeout: float | None = None) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(ray, "get", fake)
    return outcomes


def test_an_answer_is_an_answer(get: list[Any]) -> None:
    get.append([1, 2])
    assert ask("reference", 1.0) == [1, 2]


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ActorDiedError(),
        exceptions.ActorUnavailableError("connection reset", actor_id=None),
        exceptions.ActorUnschedulableError("its node is gone"),
        exceptions.OutOfMemoryError("killed"),
        exceptions.NodeDiedError("gone"),
        exceptions.RaySystemError("who knows"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_ray_raises_the_tier_is_unavailable(get: list[Any], error: exceptions.RayError) -> None:
    get.append(error)
    with pytest.raises(TierUnavailable, match=f"^{type(error).__name__}: [^\n]*$") as caught:
        ask("reference", 1.0)
    assert not isinstance(caught.value, CallTimedOut)


def test_a_deadline_is_told_apart(get: list[Any]) -> None:
    get.append(exceptions.GetTimeoutError("late"))
    with pytest.raises(CallTimedOut, match=r"no answer within 1\.5 s"):
        ask("reference", 1.5)


@pytest.mark.parametrize("cause", [StorageError("dir is bad"), ConfigError("x is 3; allowed: 4")])
def test_an_error_of_ours_arrives_with_its_one_line(get: list[Any], cause: HifcError) -> None:
    get.append(_raised(cause))
    with pytest.raises(type(cause)) as caught:
        ask("reference", 1.0)
    assert str(caught.value) == str(cause)
    assert not isinstance(caught.value, exceptions.RayError)


def test_an_error_of_others_is_no_answer(get: list[Any]) -> None:
    get.append(_raised(IndexError("slot 7")))
    with pytest.raises(TierUnavailable, match="IndexError"):
        ask("reference", 1.0)


def test_what_a_constructor_raised_arrives_too(get: list[Any]) -> None:
    get.append(_died_in_constructor(DirectoryLocked("flash directory /f belongs to another live process")))
    with pytest.raises(DirectoryLocked, match=r"^flash directory /f belongs to another live process$"):
        ask("reference", 1.0)


def test_what_a_constructor_of_others_raised_is_no_answer(get: list[Any]) -> None:
    get.append(_died_in_constructor(ValueError("hifc_ray is not to blame")))
    with pytest.raises(TierUnavailable, match="ActorDiedError"):
        ask("reference", 1.0)


def test_leaving_a_stream_cancels_it(get: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[Any] = []
    monkeypatch.setattr(ray, "cancel", cancelled.append)
    get.extend([1, 2, 3, 1, 2, 3])
    whole: Iterator[str] = iter("abc")
    assert list(follow(whole)) == [1, 2, 3]
    assert cancelled == []
    left: Iterator[str] = iter("abc")
    items = follow(left)
    assert next(items) == 1
    items.close()
    assert cancelled == [left]


def test_a_stream_that_fails_is_cancelled(get: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[Any] = []
    monkeypatch.setattr(ray, "cancel", cancelled.append)
    get.extend([1, exceptions.GetTimeoutError("late")])
    references = iter("ab")
    with pytest.raises(CallTimedOut):
        list(follow(references, 0.1))
    assert cancelled == [references]

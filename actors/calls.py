"""Calls to actors: one place that knows how Ray says that an actor is slow, dead, gone or out of memory."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError

from hifc_ray import errors
from hifc_ray.errors import HifcError, TierUnavailable

_RAISED = re.compile(r"^hifc_ray\.errors\.(\w+): (.*)$", re.MULTILINE)


class CallTimedOut(TierUnavailable):
    """No answer within the deadline; the call may or may not have been executed."""


def ask(reference: Any, deadline_s: float | None) -> Any:
    """The answer of an actor. Raises `CallTimedOut`, `TierUnavailable`, or the `HifcError` that the actor raised.

    All that Ray raises is a `RayError`: dead and unavailable actors, `ActorUnschedulableError` after the loss of a
    node, `OutOfMemoryError`. An error of our own arrives wrapped in one, also where a constructor raised it.
    """
    try:
        return ray.get(reference, timeout=deadline_s)
    except GetTimeoutError as error:
        raise CallTimedOut(f"no answer within {deadline_s} s") from error
    except RayError as error:
        raise translated(error) from error


def follow(references: Any, deadline_s: float | None = None) -> Generator[Any, None, None]:
    """The items of a streaming call, each waited for up to `deadline_s`. Leaving the loop early cancels the call."""
    finished = False
    try:
        for reference in references:
            yield ask(reference, deadline_s)
        finished = True
    finally:
        if not finished:
            ray.cancel(references)


def translated(error: RayError) -> HifcError:
    """The error of ours behind one of Ray's; `TierUnavailable` if there is none."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, HifcError):
        return cause
    if isinstance(error, ActorDiedError) and (raised := _RAISED.findall(str(error))):
        # Of a constructor's error Ray keeps the text alone; its last line has type and message.
        name, message = raised[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, HifcError):
            return kind(message)
    lines = str(error).splitlines()
    return TierUnavailable(f"{type(error).__name__}: {lines[0] if lines else ''}")

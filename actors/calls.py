"""Calls to actors: one place that knows how Ray says that an actor is slow, dead, gone or out of memory."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from hifc_ray.errors import HifcError, TierUnavailable


class CallTimedOut(TierUnavailable):
    """No answer within the deadline; the call may or may not have been executed."""


def ask(reference: Any, deadline_s: float) -> Any:
    """The answer of an actor. Raises `CallTimedOut`, `TierUnavailable`, or the `HifcError` that the actor raised.

    All that Ray raises is a `RayError`: dead and unavailable actors, `ActorUnschedulableError` after the loss of a
    node, `OutOfMemoryError`. An error of our own arrives wrapped in one.
    """
    try:
        return ray.get(reference, timeout=deadline_s)
    except GetTimeoutError as error:
        raise CallTimedOut(f"no answer within {deadline_s} s") from error
    except RayError as error:
        if isinstance(error, HifcError):
            raise
        cause = getattr(error, "cause", None)
        if isinstance(cause, HifcError):
            raise cause from error
        raise TierUnavailable(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error

"""Asks something that may hang, and stops waiting in time: the question goes on, on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Patience(Generic[T]):
    """A reader whose caller waits at most `limit_s`; while one question hangs, no second one is asked."""

    def __init__(self, read: Callable[[], T], limit_s: float = 5.0) -> None:
        self._read, self._limit_s = read, limit_s
        self._asking: threading.Thread | None = None

    def __call__(self) -> T | None:
        """The reading, or None if it did not come in time. Raises what `read` raised. For one thread at a time."""
        if self._asking is not None and self._asking.is_alive():
            return None
        answers: list[T] = []
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                answers.append(self._read())
            except BaseException as error:
                errors.append(error)

        self._asking = threading.Thread(target=ask, name="hifc-health", daemon=True)
        self._asking.start()
        self._asking.join(self._limit_s)
        if errors:
            raise errors[0]
        return answers[0] if answers else None

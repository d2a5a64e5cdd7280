"""A verdict: one line about one thing, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """How bad it is."""

    OK = 0
    WARN = 1  # it runs, slower or smaller than it could
    FAIL = 2  # it will not run


@dataclass(frozen=True)
class Verdict:
    """What was found (with its numbers), and what to do about it, empty if nothing."""

    name: str
    level: Level
    what: str
    advice: str = ""


def ok(name: str, what: str, advice: str = "") -> Verdict:
    return Verdict(name, Level.OK, what, advice)


def warn(name: str, what: str, advice: str) -> Verdict:
    return Verdict(name, Level.WARN, what, advice)


def fail(name: str, what: str, advice: str) -> Verdict:
    return Verdict(name, Level.FAIL, what, advice)


def worst(verdicts: Iterable[Verdict]) -> Level:
    """The worst level among them; OK if there are none."""
    return max((verdict.level for verdict in verdicts), default=Level.OK)

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


@dataclass(frozen=True)
class DeviceVerdict(Verdict):
    """About the device under a flash directory, with what a tier is to do by itself."""

    read_only: bool = False  # write nothing more to it; what is there is still served
    drain: bool = False  # move the blocks worth keeping to other devices


@dataclass(frozen=True)
class GpuVerdict(Verdict):
    """About one GPU, with what those who run actors on it are to do."""

    gpu: int = 0
    restart: bool = False  # restart this GPU's actor soon: only a reset takes the bad memory out of use


def ok(name: str, what: str, advice: str = "") -> Verdict:
    return Verdict(name, Level.OK, what, advice)


def warn(name: str, what: str, advice: str) -> Verdict:
    return Verdict(name, Level.WARN, what, advice)


def fail(name: str, what: str, advice: str) -> Verdict:
    return Verdict(name, Level.FAIL, what, advice)


def worst(verdicts: Iterable[Verdict]) -> Level:
    """The worst level among them; OK if there are none."""
    return max((verdict.level for verdict in verdicts), default=Level.OK)

"""What a measure hands back, what is wanted of it, and how it is told: as rows of a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Wanted:
    """A bound on a figure: at least `bound`, or at most."""

    bound: float
    at_most: bool = False

    def met_by(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.bound:,g}"


WANTED = {
    "lookup_call_ratio.idle": Wanted(2.0, at_most=True),
    "lookup_call_ratio.busy": Wanted(2.0, at_most=True),
    "lookup_keys_per_s": Wanted(200_000),
    "host_copy_ratio": Wanted(0.7),
    "flash_read_ratio": Wanted(0.7),
    "ttft_speedup.host": Wanted(15),
    "ttft_speedup.flash": Wanted(8),
    "engine_ratio.prefill": Wanted(0.9),
    "engine_ratio.decode_1": Wanted(0.8),
    "engine_ratio.decode_8": Wanted(0.95),
}


@dataclass(frozen=True)
class Figure:
    """One measured number: a ratio (or a rate) for each repetition; what counts is their median.

    `name` is its place in the JSON, dotted. `parts` are medians of what it was made from, for people to check.
    """

    name: str
    samples: Sequence[float]
    what: str  # what is timed against what
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return float(np.median(self.samples))

    @property
    def quartiles(self) -> tuple[float, float]:
        first, third = np.percentile(self.samples, [25, 75]).tolist()
        return first, third

    @property
    def wanted(self) -> Wanted | None:
        """The bound, for the figures that have one."""
        return WANTED.get(self.name)

    @property
    def verdict(self) -> str:
        """`met`, `short`, or nothing where nothing is wanted."""
        if self.wanted is None:
            return ""
        return "met" if self.wanted.met_by(self.median) else "short"


COLUMNS = ("figure", "median", "quartiles", "lowest to highest", "n", "wanted", "")


def rows(figures: Iterable[Figure]) -> list[tuple[object, ...]]:
    """One row of `COLUMNS` a figure."""
    return [
        (
            figure.name,
            _number(figure.median),
            f"{_number(figure.quartiles[0])} to {_number(figure.quartiles[1])}",
            f"{_number(min(figure.samples))} to {_number(max(figure.samples))}",
            len(figure.samples),
            str(figure.wanted or ""),
            figure.verdict,
        )
        for figure in figures
    ]


def notes(figures: Iterable[Figure]) -> list[str]:
    """One line a figure: what is timed, and the numbers that it was made from."""
    return [": ".join([figure.name, figure.what, *_parts(figure)]) for figure in figures]


def to_json(figures: Iterable[Figure], machine: Mapping[str, Any]) -> dict[str, Any]:
    """Medians in the places that their names say; spread, bounds and parts under `details`."""
    answer: dict[str, Any] = {}
    details: dict[str, Any] = {}
    for figure in figures:
        *groups, last = figure.name.split(".")
        place = answer
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = figure.median
        details[figure.name] = _details(figure)
    return {**answer, "details": details, "machine": dict(machine)}


def _details(figure: Figure) -> dict[str, Any]:
    wanted = figure.wanted
    bound = None if wanted is None else {"at_most" if wanted.at_most else "at_least": wanted.bound}
    return {
        "median": figure.median,
        "quartiles": figure.quartiles,
        "lowest": min(figure.samples),
        "highest": max(figure.samples),
        "samples": list(figure.samples),
        "wanted": bound,
        "met": None if wanted is None else wanted.met_by(figure.median),
        "what": figure.what,
        "parts": dict(figure.parts),
    }


def _parts(figure: Figure) -> list[str]:
    parts = ", ".join(f"{name} {value:.4g}" for name, value in figure.parts.items())
    return [parts] if parts else []


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"

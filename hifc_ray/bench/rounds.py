"""Repetition: what is compared runs in turn within each round, so that a machine that slows down slows down both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
Progress = Callable[[str], None]


def interleaved(measures: Mapping[str, Callable[[], T]], num_rounds: int) -> dict[str, list[T]]:
    """What each measure answers, round by round; every other round runs them in the reverse order."""
    samples: dict[str, list[T]] = {name: [] for name in measures}
    for number in range(num_rounds):
        order = list(measures.items())
        for name, measure in order if number % 2 == 0 else reversed(order):
            samples[name].append(measure())
    return samples


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Round by round, the first divided by the second."""
    return [above / below for above, below in zip(over, under, strict=True)]


def medians(samples: Mapping[str, Sequence[float]], unit: str = "s") -> dict[str, float]:
    """Median of each, named `<name>_<unit>`."""
    return {f"{name}_{unit}": float(np.median(values)) for name, values in samples.items()}

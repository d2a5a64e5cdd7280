"""Are the outputs with the cache those without? Measured turn by turn: tokens, logits, margins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hifc_ray.types import FloatArray


@dataclass(frozen=True)
class Compared:
    """Two runs of one prompt."""

    identical: bool  # the same tokens, all of them
    first_difference: int | None  # index of the first token that differs
    num_steps: int  # of which the logits were compared: those with the same tokens before them
    max_logit_diff: float  # over these steps; NaN where one of them is not a number in one run only
    min_margin: float  # smallest lead of a best token over the second best, in either run


def compare(
    tokens: Sequence[int],
    logits: FloatArray,
    again: Sequence[int],
    logits_again: FloatArray,
    margins: tuple[float, float],
) -> Compared:
    """Tokens, and logits [steps, vocab], of a run and of a second one; the smallest margin of each."""
    first = next((i for i, (a, b) in enumerate(zip(tokens, again, strict=False)) if a != b), None)
    if first is None and len(tokens) != len(again):
        first = min(len(tokens), len(again))
    steps = min(len(logits), len(logits_again)) if first is None else min(first + 1, len(logits), len(logits_again))
    differs = logits[:steps] != logits_again[:steps]  # not so infinite ones, whose difference is not a number
    difference = np.abs(logits[:steps][differs].astype(np.float64) - logits_again[:steps][differs])
    largest = float(difference.max(initial=0.0))
    return Compared(first is None, first, steps, largest, min(margins))

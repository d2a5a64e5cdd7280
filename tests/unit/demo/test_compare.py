"""The comparison finds what differs, and does not compare what cannot be compared."""

from __future__ import annotations

import math

import numpy as np

from hifc_ray.demo.compare import compare

LOGITS = np.arange(12, dtype=np.float32).reshape(4, 3)
MARGINS = (0.5, 0.25)


def test_equal_runs() -> None:
    found = compare([1, 2, 3, 4], LOGITS, [1, 2, 3, 4], LOGITS.copy(), MARGINS)
    assert (found.identical, found.first_difference, found.num_steps) == (True, None, 4)
    assert (found.max_logit_diff, found.min_margin) == (0.0, 0.25)


def test_the_same_tokens_from_other_logits() -> None:
    other = LOGITS.copy()
    other[2, 1] += 0.125
    found = compare([1, 2, 3, 4], LOGITS, [1, 2, 3, 4], other, MARGINS)
    assert (found.identical, found.max_logit_diff) == (True, 0.125)


def test_logits_count_up_to_the_first_token_that_differs() -> None:
    other = LOGITS.copy()
    other[1, 0] += 0.5
    other[2:] += 100.0  # of other prefixes, so that this says nothing
    found = compare([1, 2, 3, 4], LOGITS, [1, 9, 8, 7], other, MARGINS)
    assert (found.identical, found.first_difference, found.num_steps, found.max_logit_diff) == (False, 1, 2, 0.5)


def test_a_shorter_answer_differs() -> None:
    found = compare([1, 2, 3, 4], LOGITS, [1, 2, 3], LOGITS[:3], MARGINS)
    assert (found.identical, found.first_difference, found.num_steps) == (False, 3, 3)


def test_infinite_logits_are_equal_to_themselves_and_nan_is_not() -> None:
    endless = LOGITS.copy()
    endless[0, 0] = -np.inf
    assert compare([1], endless[:1], [1], endless[:1], MARGINS).max_logit_diff == 0.0
    broken = LOGITS.copy()
    broken[0, 0] = np.nan
    assert math.isnan(compare([1], LOGITS[:1], [1], broken[:1], MARGINS).max_logit_diff)

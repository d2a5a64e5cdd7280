"""Choosing tokens: greedy with its margin, top-p's smallest set, one generator per sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hifc_ray.engine.sampling import SamplingParams, greedy, sample


def test_greedy_takes_the_lowest_of_equals_and_says_its_lead() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0], [5.0, 1.0, 4.5, 0.0]])
    tokens, margins = greedy(logits)
    assert tokens == [1, 0]
    assert margins == pytest.approx([0.0, 0.5])


@pytest.mark.parametrize(
    ("top_p", "allowed"), [(0.01, {2}), (0.5, {2}), (0.6, {2, 0}), (0.99, {2, 0, 3}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_smallest_set_of_best_tokens(top_p: float, allowed: set[int]) -> None:
    logits = torch.log(torch.tensor([0.3, 0.005, 0.55, 0.145]))
    params = SamplingParams(temperature=1.0, top_p=top_p)
    generator = np.random.default_rng(0)
    drawn = [sample(logits, params, generator) for _ in range(2000)]
    assert set(drawn) == allowed


def test_draws_follow_the_probabilities_and_the_temperature() -> None:
    logits = torch.log(torch.tensor([0.1, 0.2, 0.7]))
    generator = np.random.default_rng(1)
    shares = np.bincount([sample(logits, SamplingParams(temperature=1.0), generator) for _ in range(4000)]) / 4000
    np.testing.assert_allclose(shares, [0.1, 0.2, 0.7], atol=0.03)
    cold = [sample(logits, SamplingParams(temperature=0.05), generator) for _ in range(200)]
    assert set(cold) == {2}


def test_equal_seeds_draw_equal_tokens() -> None:
    logits = torch.randn(500, generator=torch.Generator().manual_seed(0))
    params = SamplingParams(temperature=1.3, top_p=0.9)
    first, second = (np.random.default_rng(5) for _ in range(2))
    assert [sample(logits, params, first) for _ in range(50)] == [sample(logits, params, second) for _ in range(50)]

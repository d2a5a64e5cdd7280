"""The retention value: its terms, its weights, and what unknown attention does to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hifc_ray.messages import Weights
from hifc_ray.policies.retention import (
    Retention,
    attention_term,
    frequency_term,
    position_term,
    retention_value,
)
from hifc_ray.policy import Features


def rows(**columns: Any) -> Features:
    """Features with these columns; the others alike in each row."""
    n = len(next(iter(columns.values())))
    plain = {
        "last_access": np.full(n, 50),
        "previous_access": np.full(n, -1),
        "frequency": np.ones(n, np.float32),
        "attention": np.full(n, np.nan, np.float32),
        "position": np.zeros(n, np.int64),
        "turn": np.zeros(n, np.int64),
        "foreign": np.zeros(n, np.bool_),
    }
    plain |= {name: np.asarray(values, plain[name].dtype) for name, values in columns.items()}
    return Features(**plain, now=100)


ALPHA, BETA, GAMMA = Weights(1, 0, 0, 1), Weights(0, 1, 0, 1), Weights(0, 0, 1, 1)


def test_each_weight_alone_gives_its_term() -> None:
    some = rows(last_access=[10, 60, 90], attention=[0.1, 1.0, 4.0], position=[0, 64, 200])
    np.testing.assert_allclose(retention_value(some, ALPHA), frequency_term(some))
    np.testing.assert_allclose(retention_value(some, BETA), attention_term(some))
    np.testing.assert_allclose(retention_value(some, GAMMA), position_term(some))


def test_the_value_is_the_weighted_mean() -> None:
    one = rows(attention=[2.0], position=[64])
    weights = Weights(2.0, 1.0, 0.5, 1)
    expected = (2 * frequency_term(one) + attention_term(one) + 0.5 * position_term(one)) / 3.5
    np.testing.assert_allclose(retention_value(one, weights), expected)


def test_unknown_attention_leaves_the_other_weights_to_carry_the_value() -> None:
    known, unknown = rows(attention=[1.0]), rows(attention=[np.nan])
    weights = Weights(1.0, 5.0, 1.0, 1)
    without = (frequency_term(unknown) + position_term(unknown)) / 2
    np.testing.assert_allclose(retention_value(unknown, weights), without)
    assert retention_value(known, weights) != retention_value(unknown, weights)
    assert retention_value(unknown, BETA) == 0.0


def test_terms_stay_within_zero_and_one_at_the_edges() -> None:
    edges = rows(
        last_access=[0, 100, 101],
        previous_access=[-1, 99, 0],
        frequency=[0, 1e9, 1],
        attention=[0, np.inf, 1e-30],
        position=[0, 10**9, 1],
    )
    for values in (frequency_term(edges), attention_term(edges), position_term(edges)):
        assert np.isfinite(values).all()
        assert ((values >= 0) & (values <= 1)).all()


def test_recent_often_and_twice_seen_blocks_are_worth_more() -> None:
    old, new = frequency_term(rows(last_access=[40, 90]))
    assert old < new
    seldom, often = frequency_term(rows(frequency=[1, 8]))
    assert seldom < often
    once, twice = frequency_term(rows(previous_access=[-1, 20]))
    assert once < twice


def test_an_even_share_of_attention_is_worth_a_half() -> None:
    np.testing.assert_allclose(attention_term(rows(attention=[1 / 16, 0.5, 1, 2, 16])), [0, 0.375, 0.5, 0.625, 1])


def test_position_falls_from_the_start_of_the_sequence() -> None:
    np.testing.assert_allclose(position_term(rows(position=[0, 64, 128])), np.exp([0.0, -1, -2]))


def test_only_newer_weights_are_used() -> None:
    policy = Retention()
    newer = Weights(0, 0, 1, version=2)
    policy.use(newer)
    policy.use(Weights(1, 0, 0, version=1))
    assert policy.weights == newer


def test_weights_change_who_leaves() -> None:
    some = rows(last_access=[100, 10], position=[300, 0])
    policy = Retention()
    assert policy.victims(some, 1).tolist() == [1]
    policy.use(Weights(0, 0, 1, version=1))
    assert policy.victims(some, 1).tolist() == [0]


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_weights_that_cannot_be_weighed_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="beta"):
        Weights(beta=value)

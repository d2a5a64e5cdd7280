"""What each admission policy lets through, and why."""

from __future__ import annotations

import numpy as np
import pytest

from hifc_ray.messages import Weights
from hifc_ray.policies.budgeted import Budgeted
from hifc_ray.policies.lru import Lru
from hifc_ray.policies.retention import Retention
from hifc_ray.policies.second_sight import SecondSight
from hifc_ray.policies.tinylfu import NUM_ROWS, SAMPLE_PER_BLOCK, TinyLfu
from hifc_ray.policy import Features


def names(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def blocks(
    fingerprints: np.ndarray, positions: np.ndarray | None = None, previous: int = -1, now: int = 1000
) -> Features:
    n = len(fingerprints)
    return Features(
        last_access=np.full(n, now - 10),
        previous_access=np.full(n, previous),
        frequency=np.ones(n, np.float32),
        attention=np.full(n, np.nan, np.float32),
        position=np.zeros(n, np.int64) if positions is None else positions,
        turn=np.zeros(n, np.int64),
        foreign=np.zeros(n, np.bool_),
        now=now,
        fingerprint=fingerprints,
    )


NOBODY = blocks(names())


def test_second_sight_writes_a_block_that_comes_back() -> None:
    policy = SecondSight(64)
    assert policy.admit(blocks(names(1, 2)), NOBODY, 1.0).tolist() == [False, False]
    assert policy.admit(blocks(names(2, 3)), NOBODY, 1.0).tolist() == [True, False]


def test_second_sight_writes_a_block_that_was_asked_for_twice_in_host_memory() -> None:
    policy = SecondSight(64)
    assert policy.admit(blocks(names(1), previous=5), NOBODY, 1.0).tolist() == [True]
    assert policy.admit(blocks(names(1)), NOBODY, 1.0).tolist() == [False], "what was admitted is no ghost"


def test_tinylfu_counts_what_it_sees_and_halves_it_in_time() -> None:
    policy = TinyLfu(100)
    for _ in range(6):
        policy.observe(names(7))
    policy.observe(names(8))
    assert policy.count(names(7, 8, 9)).tolist() == [6, 1, 0]
    for name in range(100, 100 + SAMPLE_PER_BLOCK * 100):
        policy.observe(names(name))
    assert 3 <= policy.count(names(7))[0] <= 4
    assert policy.count(names(8))[0] <= 1


def test_tinylfu_admits_what_is_more_popular_than_the_median_of_those_that_would_leave() -> None:
    policy = TinyLfu(1000)
    for name, times in ((1, 1), (2, 2), (3, 3), (11, 1), (12, 2), (13, 9)):
        for _ in range(times):
            policy.observe(names(name))
    incumbents = blocks(names(11, 12, 13))
    assert policy.admit(blocks(names(1, 2, 3)), incumbents, 0.0).tolist() == [False, False, True]
    assert policy.admit(blocks(names(1)), NOBODY, 0.0).tolist() == [True]


def test_tinylfu_counts_no_higher_than_a_byte() -> None:
    policy = TinyLfu(1000)
    for _ in range(300):
        policy.observe(names(5))
    assert policy.count(names(5)).tolist() == [255]


def test_tinylfu_rarely_counts_too_high() -> None:
    policy, seen = TinyLfu(2000), np.arange(1, 2001, dtype=np.uint64)
    for start in range(0, 2000, 50):
        policy.observe(seen[start : start + 50])
    counts = policy.count(seen)
    assert counts.min() == 1
    assert (counts == 1).mean() > 0.95
    assert policy.count(np.arange(10_001, 12_001, dtype=np.uint64)).mean() < 0.1
    assert len(policy.state()["counts"]) == NUM_ROWS


def test_budgeted_admits_everything_until_the_bucket_is_half_empty() -> None:
    policy = Budgeted(Lru())
    for level in (1.0, 0.7, 0.5):
        assert policy.admit(blocks(names(*range(50))), NOBODY, level).all()
    assert not policy.admit(blocks(names(*range(50)), np.arange(50)), NOBODY, 0.0).any()


@pytest.mark.parametrize(("level", "share"), [(0.4, 0.8), (0.25, 0.5), (0.1, 0.2)])
def test_budgeted_admits_a_share_of_what_comes_that_falls_with_the_bucket(level: float, share: float) -> None:
    policy, dice, admitted = Budgeted(Lru()), np.random.default_rng(1), 0
    for batch in range(200):
        positions = dice.integers(0, 10_000, 8)
        admitted += int(policy.admit(blocks(names(*range(8)), positions, now=1000 + batch), NOBODY, level).sum())
    assert admitted / 1600 == pytest.approx(share, abs=0.03)


def test_budgeted_prefers_the_shallower_of_equal_worth() -> None:
    policy = Budgeted(Lru())
    admitted = policy.admit(blocks(names(*range(10)), np.arange(10)), NOBODY, 0.25)
    assert admitted.tolist() == [True] * 5 + [False] * 5


def test_budgeted_prefers_what_the_eviction_policy_would_keep() -> None:
    eviction = Retention()
    eviction.use(Weights(1.0, 0.0, 0.0, version=1))
    policy = Budgeted(eviction)
    once, twice = blocks(names(1, 2, 3, 4)), blocks(names(5, 6, 7, 8), np.full(4, 99), previous=980)
    policy.admit(once, NOBODY, 1.0)
    assert policy.admit(twice, NOBODY, 0.25).all()
    assert not policy.admit(once, NOBODY, 0.25).any()


def test_budgeted_does_not_take_recency_for_worth() -> None:
    policy = Budgeted(Lru())
    for batch in range(200):
        policy.admit(blocks(names(1, 2), np.array([0, 500]), now=1000 + 10 * batch), NOBODY, 0.25)
    later = policy.admit(blocks(names(3, 4), np.array([0, 900]), now=9000), NOBODY, 0.25)
    assert later.tolist() == [True, False]

"""The contract of every eviction and admission policy that the registry knows."""

from __future__ import annotations

import copy
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hifc_ray.errors import ConfigError
from hifc_ray.messages import Weights
from hifc_ray.policies import registry
from hifc_ray.policies.lru import Lru
from hifc_ray.policies.retention import Retention, retention_value
from hifc_ray.policy import AdmissionPolicy, EvictionPolicy, Features


def features(n: int, seed: int = 0, foreign_share: float = 0.1) -> Features:
    """Plausible histories with many ties, unknown attention and blocks seen once."""
    rng = np.random.default_rng(seed)
    now = 4 * n + 1
    last = rng.integers(1, now, n) // 8 * 8
    return Features(
        last_access=last,
        previous_access=np.where(rng.random(n) < 0.5, -1, last // 2),
        frequency=rng.integers(1, 20, n).astype(np.float32),
        attention=np.where(rng.random(n) < 0.3, np.nan, rng.lognormal(0, 2, n)).astype(np.float32),
        position=rng.integers(0, 40, n),
        turn=rng.integers(0, 6, n),
        foreign=rng.random(n) < foreign_share,
        now=now,
        fingerprint=rng.integers(1, 2**63, n).astype(np.uint64),
    )


@pytest.fixture(params=sorted(registry.EVICTION))
def policy(request: pytest.FixtureRequest) -> EvictionPolicy:
    return registry.eviction(request.param)


@pytest.mark.parametrize("name", sorted(registry.EVICTION))
@given(n=st.integers(0, 60), count=st.integers(0, 80), seed=st.integers(0, 10_000), share=st.sampled_from([0, 0.3, 1]))
@settings(max_examples=60, deadline=None)
def test_victims_are_distinct_rows_foreign_ones_first(name: str, n: int, count: int, seed: int, share: float) -> None:
    given_features = features(n, seed, share)
    victims = registry.eviction(name).victims(given_features, count)
    assert len(victims) == min(n, count) == len(set(victims.tolist()))
    assert all(0 <= row < n for row in victims.tolist())
    foreign = given_features.foreign[victims]
    num_foreign = min(int(given_features.foreign.sum()), len(victims))
    assert foreign[:num_foreign].all()
    assert not foreign[num_foreign:].any()


@pytest.mark.parametrize("name", sorted(registry.EVICTION))
@given(n=st.integers(1, 40), seed=st.integers(0, 10_000), data=st.data())
@settings(max_examples=40, deadline=None)
def test_fewer_victims_are_the_first_of_more(name: str, n: int, seed: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, n))
    policy, given_features = registry.eviction(name), features(n, seed)
    assert policy.victims(given_features, count).tolist() == policy.victims(given_features, n)[:count].tolist()


def test_features_are_left_as_they_are_and_answers_repeat(policy: EvictionPolicy) -> None:
    given_features = features(500)
    before = copy.deepcopy(given_features)
    first = policy.victims(given_features, 100)
    assert first.tolist() == policy.victims(given_features, 100).tolist()
    for field in fields(Features):
        np.testing.assert_array_equal(getattr(given_features, field.name), getattr(before, field.name))


def test_nothing_leaves_where_nothing_is(policy: EvictionPolicy) -> None:
    assert policy.victims(features(0), 10).tolist() == []
    assert policy.victims(features(10), 0).tolist() == []


def test_it_answers_to_the_protocol_under_its_own_name(policy: EvictionPolicy) -> None:
    assert isinstance(policy, EvictionPolicy)
    assert registry.EVICTION[policy.name]().name == policy.name
    policy.use(Weights(version=1))


@pytest.mark.parametrize("count", [1, 5_000, 50_000])
def test_fifty_thousand_rows_leave_in_the_order_of_a_plain_sort(policy: EvictionPolicy, count: int) -> None:
    given_features = features(50_000, seed=3, foreign_share=0.02)
    score = given_features.last_access if policy.name == "lru" else retention_value(given_features, Weights())
    columns = (~given_features.foreign, score, given_features.last_access, -given_features.position)
    rows = sorted(range(50_000), key=lambda row: (*(column[row] for column in columns), row))
    assert policy.victims(given_features, count).tolist() == rows[:count]


@pytest.mark.parametrize("name", sorted(registry.EVICTION))
@given(n=st.integers(1, 60), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_victims_leave_by_rising_value(name: str, n: int, seed: int) -> None:
    policy, given_features = registry.eviction(name), features(n, seed)
    values = policy.values(given_features)
    assert values.shape == (n,)
    assert values.dtype == np.float64
    order = policy.victims(given_features, n)
    for group in (order[given_features.foreign[order]], order[~given_features.foreign[order]]):
        assert (np.diff(values[group]) >= 0).all()


def test_values_of_a_row_ask_for_no_other_rows_order(policy: EvictionPolicy) -> None:
    given_features, shuffled = features(50), np.random.default_rng(1).permutation(50)
    np.testing.assert_array_equal(policy.values(given_features.take(shuffled)), policy.values(given_features)[shuffled])


def test_lru_eats_a_chain_from_its_end() -> None:
    one_chain = Features(
        last_access=np.array([9, 9, 9, 4]),
        previous_access=np.full(4, -1),
        frequency=np.ones(4, np.float32),
        attention=np.full(4, np.nan, np.float32),
        position=np.array([0, 1, 2, 0]),
        turn=np.zeros(4, np.int64),
        foreign=np.zeros(4, np.bool_),
        now=9,
    )
    assert Lru().victims(one_chain, 4).tolist() == [3, 2, 1, 0]


@pytest.fixture(params=sorted(registry.ADMISSION))
def admission(request: pytest.FixtureRequest) -> AdmissionPolicy:
    return registry.admission(request.param, registry.eviction("retention"), num_blocks=512)


def feed(policy: AdmissionPolicy, seed: int, level: float = 1.0) -> list[bool]:
    """Batches of accesses and candidates, some of which come back; what was admitted."""
    rng, answers = np.random.default_rng(seed), []
    for batch in range(40):
        candidates = replace(features(8, seed + batch), fingerprint=rng.integers(1, 300, 8).astype(np.uint64))
        policy.observe(rng.integers(1, 300, 20).astype(np.uint64))
        answers += policy.admit(candidates, features(16, batch), level).tolist()
    return answers


@pytest.mark.parametrize("n", [0, 1, 7, 3000])
@pytest.mark.parametrize("level", [0.0, 0.3, 1.0])
def test_admission_answers_for_every_row(admission: AdmissionPolicy, n: int, level: float) -> None:
    assert isinstance(admission, AdmissionPolicy)
    for incumbents in (features(0), features(64, seed=1)):
        given_features = features(n)
        before = copy.deepcopy(given_features)
        admitted = admission.admit(given_features, incumbents, level)
        assert admitted.shape == (n,)
        assert admitted.dtype == np.bool_
        for field in fields(Features):
            np.testing.assert_array_equal(getattr(given_features, field.name), getattr(before, field.name))


def test_admission_repeats_itself(admission: AdmissionPolicy) -> None:
    again = registry.admission(admission.name, registry.eviction("retention"), num_blocks=512)
    assert feed(admission, 3) == feed(again, 3)


def test_admission_goes_on_from_a_checkpoint(admission: AdmissionPolicy) -> None:
    feed(admission, 3)
    saved = copy.deepcopy(dict(admission.state()))
    feed(admission, 4)
    assert all(isinstance(array, np.ndarray) for array in saved.values())
    other = registry.admission(admission.name, registry.eviction("retention"), num_blocks=512)
    feed(other, 3)
    fresh = registry.admission(admission.name, registry.eviction("retention"), num_blocks=512)
    fresh.restore(saved)
    assert feed(fresh, 5) == feed(other, 5)


@pytest.mark.parametrize("state", [{}, {"ghost": np.zeros(3), "counts": np.zeros(3)}, {"other": np.zeros((2, 2))}])
def test_a_checkpoint_of_something_else_is_left_aside(admission: AdmissionPolicy, state: dict[str, np.ndarray]) -> None:
    again = registry.admission(admission.name, registry.eviction("retention"), num_blocks=512)
    again.restore(state)
    assert feed(again, 3) == feed(admission, 3)


@pytest.mark.parametrize("name", sorted(set(registry.ADMISSION) - {"second-sight"}))
def test_all_is_admitted_while_there_is_room_and_budget(name: str) -> None:
    assert registry.admission(name).admit(features(300), features(0), 1.0).all()


def test_always_keeps_nothing_off_flash() -> None:
    assert registry.admission("always").admit(features(7), features(9), 0.0).all()


def test_an_unknown_name_lists_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"policy\.eviction is 'belady'; allowed: lru, retention"):
        registry.eviction("belady")
    with pytest.raises(
        ConfigError, match=r"policy\.admission is 'never'; allowed: always, budgeted, second-sight, tinylfu"
    ):
        registry.admission("never")


def test_each_policy_is_a_new_one() -> None:
    first = registry.eviction("retention")
    assert isinstance(first, Retention)
    assert registry.eviction("retention") is not first

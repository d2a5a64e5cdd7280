from __future__ import annotations

import numpy as np
import pytest

from hifc_ray.hotness import ATTENTION_SMOOTHING, Hotness


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


@pytest.fixture
def hotness() -> Hotness:
    return Hotness(8, half_life=4.0)


def test_storing_is_the_first_access(hotness: Hotness) -> None:
    hotness.born(rows(2, 5), rows(0, 1), turn=3)
    features = hotness.features(rows(2, 5))
    assert features.now == 2
    assert features.last_access.tolist() == [2, 2]
    assert features.previous_access.tolist() == [-1, -1]
    assert features.frequency.tolist() == [1, 1]
    assert np.isnan(features.attention).all()
    assert features.position.tolist() == [0, 1]
    assert features.turn.tolist() == [3, 3]
    assert not features.foreign.any()


def test_the_last_two_accesses_are_kept(hotness: Hotness) -> None:
    hotness.born(rows(0), rows(0), turn=0)
    hotness.touch(rows(0), turn=1)
    hotness.touch(rows(0), turn=2)
    features = hotness.features(rows(0))
    assert (features.last_access[0], features.previous_access[0], features.turn[0]) == (3, 2, 2)


def test_the_count_halves_with_each_half_life(hotness: Hotness) -> None:
    hotness.born(rows(0), rows(0), turn=0)
    hotness.touch(rows(1, 2, 3), turn=0)
    hotness.touch(rows(0), turn=0)  # four accesses after the first
    assert hotness.features(rows(0)).frequency[0] == pytest.approx(1.5)


def test_blocks_asked_for_together_share_a_moment(hotness: Hotness) -> None:
    hotness.touch(rows(0, 1, 2), turn=0)
    assert set(hotness.features(rows(0, 1, 2)).last_access.tolist()) == {hotness.now}


def test_attention_is_a_running_average_and_nan_leaves_it(hotness: Hotness) -> None:
    both = rows(0, 1)
    hotness.born(both, rows(0, 1), turn=0)
    hotness.seen(both, np.array([2.0, np.nan], np.float32))
    hotness.seen(both, np.array([np.nan, np.nan], np.float32))
    assert hotness.features(both).attention[0] == 2.0
    assert np.isnan(hotness.features(both).attention[1])
    hotness.seen(both, np.array([4.0, 1.0], np.float32))
    assert hotness.features(both).attention.tolist() == [2.0 + ATTENTION_SMOOTHING * 2.0, 1.0]


def test_a_row_that_changes_owner_forgets(hotness: Hotness) -> None:
    hotness.born(rows(0), rows(0), turn=0)
    hotness.seen(rows(0), np.array([3.0], np.float32))
    hotness.foreign[0] = True
    hotness.touch(rows(0), turn=5)
    hotness.born(rows(0), rows(9), turn=1)
    features = hotness.features(rows(0))
    assert (features.previous_access[0], features.frequency[0], features.position[0]) == (-1, 1, 9)
    assert np.isnan(features.attention[0])
    assert not features.foreign[0]


def test_features_are_a_snapshot(hotness: Hotness) -> None:
    hotness.born(rows(0), rows(0), turn=0)
    features = hotness.features(rows(0))
    hotness.touch(rows(0), turn=7)
    assert (features.last_access[0], features.turn[0], features.now) == (1, 0, 1)


def test_the_count_is_the_same_however_long_ago_it_began() -> None:
    hotness = Hotness(2, half_life=1.0)
    for _ in range(2000):  # the weight of an access is rescaled every 433 of them
        hotness.touch(rows(0), turn=0)
        assert hotness.features(rows(0)).frequency[0] <= 2.0
    assert hotness.features(rows(0)).frequency[0] == pytest.approx(2.0)


def test_history_goes_on_after_growth(hotness: Hotness) -> None:
    rows = np.array([1, 3])
    hotness.born(rows, np.array([0, 1]), turn=2)
    hotness.touch(rows[:1], turn=3)
    before = hotness.features(rows)
    hotness.grow(20)
    after = hotness.features(rows)
    for name in ("last_access", "previous_access", "position", "turn", "attention"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    np.testing.assert_allclose(after.frequency, before.frequency, rtol=1e-6)
    hotness.born(np.array([19]), np.array([7]), turn=0)
    assert hotness.features(np.array([19])).frequency.tolist() == [1.0]


def test_growth_stretches_a_half_life_that_follows_the_rows() -> None:
    hotness = Hotness(1)
    hotness.born(np.array([0]), np.array([0]), turn=0)
    hotness.grow(2)
    for _ in range(16):
        hotness.born(np.array([1]), np.array([0]), turn=0)
    np.testing.assert_allclose(hotness.features(np.array([0])).frequency, [0.5], rtol=1e-6)


@pytest.mark.parametrize("num_later", [0, 3, 500])
def test_ages_and_counts_outlive_the_clock(hotness: Hotness, num_later: int) -> None:
    rows = np.array([0, 1, 2])
    hotness.born(rows, np.array([4, 5, 6]), turn=1)
    hotness.touch(rows[1:], turn=2)
    hotness.touch(rows[2:], turn=3)
    hotness.seen(rows[:1], np.array([2.0], np.float32))
    before = hotness.features(rows)

    other, there = Hotness(8, half_life=4.0), np.array([5, 6, 7])
    for _ in range(num_later):
        other.born(np.array([0]), np.array([0]), turn=0)
    kept = other.features(np.array([0]))
    other.restore(there, hotness.export(rows))

    after = other.features(there)
    np.testing.assert_array_equal(after.now - after.last_access, before.now - before.last_access)
    assert (after.previous_access >= 0).tolist() == [False, True, True]
    np.testing.assert_array_equal((after.now - after.previous_access)[1:], (before.now - before.previous_access)[1:])
    np.testing.assert_allclose(after.frequency, before.frequency, rtol=1e-6)
    np.testing.assert_array_equal(after.attention, before.attention)
    assert after.position.tolist() == [4, 5, 6]
    assert after.turn.tolist() == [1, 2, 3]
    if num_later:
        now_kept = other.features(np.array([0]))
        assert now_kept.now - now_kept.last_access[0] == kept.now - kept.last_access[0]
        np.testing.assert_allclose(now_kept.frequency, kept.frequency, rtol=1e-6)


def test_fingerprints_are_passed_on_or_zero(hotness: Hotness) -> None:
    rows = np.array([0, 1])
    names = np.array([2**63, 7], np.uint64)
    assert hotness.features(rows, names).fingerprint.tolist() == names.tolist()
    assert hotness.features(rows).fingerprint.tolist() == [0, 0]

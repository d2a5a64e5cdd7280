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

"""The choices of reclaim, by example."""

from __future__ import annotations

import numpy as np
import pytest

from hifc_ray.flash.reclaim import CarryCredit, SegmentView, choose_carried, choose_segment, ranks, segment_worth
from hifc_ray.policy import Features
from hifc_ray.types import IntArray

SIZE = 100


def view(sequence: int, live: int = SIZE, foreign: int = 0, worth: float = 0.5) -> SegmentView:
    return SegmentView(sequence, SIZE, live, foreign, worth)


@pytest.mark.parametrize(
    ("views", "chosen"),
    [
        ([view(1)], 0),
        ([view(3), view(1), view(2)], 1),  # of equal ones the oldest
        ([view(1, worth=0.6), view(2, worth=0.4), view(3, worth=0.5)], 1),  # the least worth, wherever it lies
        ([view(1, worth=0.1), view(2, live=0, worth=0.0)], 1),  # an empty one costs nobody anything
        ([view(1, live=0), view(2, live=0)], 0),
        ([view(1, worth=0.1), view(2, foreign=SIZE, worth=0.0)], 1),  # all foreign
        ([view(1, live=0, worth=0.0), view(2, foreign=SIZE, worth=0.0)], 0),
        ([view(1, worth=0.1), view(2, foreign=60, worth=0.9)], 1),  # mostly foreign
        ([view(1, worth=0.1), view(2, foreign=40, worth=0.9)], 0),
        ([view(1, live=90, foreign=46), view(2, live=10, foreign=10)], 1),
    ],
)
def test_which_segment_gives_up_its_room(views: list[SegmentView], chosen: int) -> None:
    assert choose_segment(views) == chosen


def test_of_no_segments_none_can_be_chosen() -> None:
    with pytest.raises(ValueError):
        choose_segment([])


@pytest.mark.parametrize(
    ("rank", "foreign", "budget", "carried"),
    [
        ([0.9, 0.1, 0.8, 0.5], [], 40, [0, 2, 3]),  # above a quarter
        ([0.9, 0.1, 0.8, 0.5], [], 25, [0, 2]),  # the best that fit
        ([0.9, 0.1, 0.8, 0.5], [], 9, []),
        ([0.9, 0.1, 0.8, 0.5], [0], 40, [2, 3]),  # never what is foreign
        ([0.25, 0.2, 0.0], [], 40, []),
        ([0.6, 0.6, 0.6], [], 20, [1, 2]),  # of equal ones those that were written last
        ([], [], 40, []),
    ],
)
def test_which_blocks_are_written_again(rank: list[float], foreign: list[int], budget: int, carried: list[int]) -> None:
    flags = np.zeros(len(rank), np.bool_)
    flags[foreign] = True
    sizes: IntArray = np.full(len(rank), 10)
    assert choose_carried(np.array(rank), flags, sizes, budget).tolist() == carried


class ByLastAccess:
    def values(self, features: Features) -> np.ndarray:
        return features.last_access.astype(np.float64)


def features(last_access: list[int], position: list[int]) -> Features:
    count = len(last_access)
    zeros = np.zeros(count, np.int64)
    return Features(
        last_access=np.array(last_access),
        previous_access=zeros,
        frequency=np.ones(count, np.float32),
        attention=np.zeros(count, np.float32),
        position=np.array(position),
        turn=zeros,
        foreign=np.zeros(count, np.bool_),
        now=max(last_access, default=0),
        fingerprint=np.zeros(count, np.uint64),
    )


def test_blocks_are_ranked_among_each_other_by_the_policy() -> None:
    assert ranks(ByLastAccess(), features([40, 10, 30, 20], [0, 0, 0, 0])).tolist() == [0.75, 0.0, 0.5, 0.25]
    assert ranks(ByLastAccess(), features([], [])).tolist() == []


def test_a_block_counts_as_older_the_deeper_it_lies() -> None:
    assert ranks(ByLastAccess(), features([10, 10, 10, 10], [3, 1, 0, 2])).tolist() == [0.0, 0.5, 0.75, 0.25]
    assert ranks(ByLastAccess(), features([12, 10], [1, 0])).tolist() == [0.0, 0.5]
    assert ranks(ByLastAccess(), features([14, 10], [1, 0])).tolist() == [0.5, 0.0]


def test_what_a_segment_is_worth() -> None:
    """Rank 0.25 counts half, rank 1 whole; dead room and foreign blocks are worth nothing."""
    worth = segment_worth(
        np.array([0.25, 1.0, 1.0, 0.25]),
        np.array([False, False, True, False]),
        np.array([50, 50, 50, 40]),
        np.array([0, 0, 1, 2]),
        4,
        SIZE,
    )
    assert worth.tolist() == [0.75, 0.0, 0.2, 0.0]


def test_credit_for_carrying_is_a_share_of_what_was_admitted_and_saved_up_a_while() -> None:
    credit = CarryCredit(0.1, SIZE)
    assert credit.available_bytes == 0
    credit.admitted(450)
    assert credit.available_bytes == 45
    with pytest.raises(ValueError, match="46 bytes carried over with a credit of 45"):
        credit.carried(46)
    credit.carried(45)
    assert credit.available_bytes == 0
    credit.admitted(1_000_000)
    assert credit.available_bytes == 8 * SIZE


def test_without_a_share_nothing_is_carried() -> None:
    credit = CarryCredit(0.0, SIZE)
    credit.admitted(1_000_000)
    assert credit.available_bytes == 0

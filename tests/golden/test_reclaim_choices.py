"""Exact choices of reclaim on seeded logs. A change of these numbers is a change of behaviour."""

from __future__ import annotations

import numpy as np
import pytest

from hifc_ray.flash.reclaim import SegmentView, choose_carried, choose_segment, ranks, segment_worth
from hifc_ray.hotness import Hotness
from hifc_ray.policies import registry

NUM_SEGMENTS, SEGMENT_BLOCKS = 12, 16


def log(seed: int) -> tuple[Hotness, np.ndarray, np.ndarray]:
    """A log of chains of 8 blocks, some of which were asked for again: history, bytes and segment of each block."""
    dice, count = np.random.default_rng(seed), NUM_SEGMENTS * SEGMENT_BLOCKS
    hotness = Hotness(count)
    for start in range(0, count, 8):
        hotness.born(np.arange(start, start + 8), np.arange(8), turn=0)
    for _ in range(60):
        chain = int(dice.zipf(1.3)) % (count // 8) * 8
        hotness.touch(np.arange(chain, chain + int(dice.integers(1, 9))), turn=1)
    return hotness, dice.integers(10, 30, count), np.arange(count) // SEGMENT_BLOCKS


@pytest.mark.parametrize(
    ("eviction", "seed", "chosen", "carried"),
    [
        ("lru", 1, [7, 10, 8, 1, 11, 12, 9, 6, 4, 5, 3, 2], [0, 8, 9, 10, 11, 12]),
        ("lru", 2, [7, 2, 9, 1, 3, 4, 11, 6, 10, 12, 5, 8], [0, 1, 8, 9, 10, 11]),
        ("retention", 1, [7, 10, 8, 11, 12, 1, 9, 6, 4, 5, 3, 2], [0, 8, 9, 10, 11, 12]),
        ("retention", 2, [7, 2, 9, 3, 4, 1, 11, 6, 10, 12, 5, 8], [0, 1, 8, 9, 10, 11]),
    ],
)
def test_choices(eviction: str, seed: int, chosen: list[int], carried: list[int]) -> None:
    hotness, num_bytes, segment = log(seed)
    rank = ranks(registry.eviction(eviction), hotness.features(np.arange(len(segment))))
    foreign = np.zeros(len(segment), np.bool_)
    worth = segment_worth(rank, foreign, num_bytes, segment, NUM_SEGMENTS, 30 * SEGMENT_BLOCKS)
    views = [
        SegmentView(s + 1, 30 * SEGMENT_BLOCKS, int(num_bytes[segment == s].sum()), worth=float(worth[s]))
        for s in range(NUM_SEGMENTS)
    ]
    order = []
    while views:
        order.append(views.pop(choose_segment(views)).sequence)
    assert order == chosen
    of_first = np.flatnonzero(segment == order[0] - 1)
    rows = choose_carried(rank[of_first], foreign[of_first], num_bytes[of_first], 100)
    assert rows.tolist() == carried

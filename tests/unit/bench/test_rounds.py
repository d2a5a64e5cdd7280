"""What is compared runs in turn, each first every other time."""

from __future__ import annotations

from functools import partial

import pytest

from hifc_ray.bench.rounds import interleaved, medians, ratios


def test_every_other_round_runs_backwards() -> None:
    order: list[str] = []

    def measure(name: str) -> int:
        order.append(name)
        return len(order)

    samples = interleaved({name: partial(measure, name) for name in "abc"}, 3)
    assert "".join(order) == "abccbaabc"
    assert samples == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}


def test_ratios_are_of_the_same_round() -> None:
    assert ratios([4.0, 9.0], [2.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_medians_carry_their_unit() -> None:
    assert medians({"plain": [1.0, 9.0, 2.0]}, "bytes_per_s") == {"plain_bytes_per_s": 2.0}

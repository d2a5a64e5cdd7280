from __future__ import annotations

import numpy as np

from hifc_ray.policies.ghost import WAYS, Ghost, mixed


def names(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def test_it_remembers_what_was_added_and_nothing_else() -> None:
    ghost = Ghost(1000)
    ghost.add(names(5, 6, 7))
    assert ghost.seen(names(5, 8, 7, 0)).tolist() == [True, False, True, False]


def test_zero_marks_an_empty_place() -> None:
    ghost = Ghost(8)
    ghost.add(names(0))
    assert ghost.seen(names(0)).tolist() == [False]


def test_the_oldest_of_a_set_is_forgotten_first() -> None:
    ghost = Ghost(WAYS)
    for name in range(1, WAYS + 3):
        ghost.add(names(name))
    assert ghost.seen(np.arange(1, WAYS + 3, dtype=np.uint64)).tolist() == [False, False] + [True] * WAYS


def test_what_is_remembered_is_not_added_again() -> None:
    ghost = Ghost(WAYS)
    ghost.add(names(1, 1, 2))
    ghost.add(names(1, 2))
    for name in range(3, WAYS + 1):
        ghost.add(names(name))
    assert ghost.seen(np.arange(1, WAYS + 1, dtype=np.uint64)).all()


def test_places_are_taken_in_turn_for_longer_than_a_byte_counts() -> None:
    ghost = Ghost(WAYS)
    for name in range(1, 1000):
        ghost.add(names(name))
    assert ghost.seen(np.arange(1, 1000, dtype=np.uint64)).nonzero()[0].tolist() == list(range(999 - WAYS, 999))


def test_most_of_as_many_as_it_is_made_for_stay() -> None:
    ghost, count = Ghost(4096), 4096
    ghost.add(mixed(np.arange(1, count + 1, dtype=np.uint64)))
    assert ghost.seen(mixed(np.arange(1, count + 1, dtype=np.uint64))).mean() > 0.85
    assert not ghost.seen(mixed(np.arange(count + 1, 2 * count, dtype=np.uint64))).any()

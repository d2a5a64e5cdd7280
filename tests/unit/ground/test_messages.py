"""What crosses between actors survives the crossing and cannot be changed on the way."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from hifc_ray.messages import CallHeader, Held, Report, TierInfo, Weights

MESSAGES = [
    Weights(0.5, 0.25, 0.125, version=9),
    Report("node", 1, 2, 3, 4, 5, 6),
    CallHeader(holder=3, incarnation=2**62, sequence=8),
    TierInfo(1, 2, 3, "/dev/shm/hifc-x", "/dev/shm/hifc-x.3", "node", 16),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_are_equal_after_the_wire_and_frozen(message: object) -> None:
    assert pickle.loads(pickle.dumps(message)) == message
    name = dataclasses.fields(message)[0].name  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(message, name, None)


def test_what_a_holder_holds_is_nothing_unless_said() -> None:
    nothing = Held()
    assert (len(nothing.slots), len(nothing.generations)) == (0, 0)
    held = pickle.loads(pickle.dumps(Held(np.array([1, 2], np.int32), np.array([7, 8], np.uint64))))
    assert held.slots.tolist() == [1, 2]
    assert held.generations.tolist() == [7, 8]


def test_default_weights_are_version_zero() -> None:
    assert Weights().version == 0

"""What crosses between actors survives the crossing and cannot be changed on the way."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from hifc_ray.messages import CallHeader, Held, Purge, PurgeReport, Report, TierInfo, Weights
from hifc_ray.types import NOBODY, Owner
from tests.fakes.blocks import OURS, THEIRS

MESSAGES = [
    Weights(0.5, 0.25, 0.125, version=9),
    Report("node", 1, 2, 3, 4, 5, 6),
    CallHeader(holder=3, incarnation=2**62, sequence=8),
    TierInfo(1, 2, 3, "/dev/shm/hifc-x", "/dev/shm/hifc-x.3", "node", 16),
    Purge(namespace=OURS),
    PurgeReport(1, 2, 3),
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


@pytest.mark.parametrize(
    ("what", "covered"),
    [
        (Purge(tenant=1), [True, True, False, False]),
        (Purge(tenant=0), [False, False, False, True]),
        (Purge(session=2), [True, False, True, False]),
        (Purge(namespace=OURS), [True, False, True, False]),
        (Purge(namespace=THEIRS), [False, True, False, True]),
    ],
)
def test_a_purge_covers_one_tenant_conversation_or_namespace(what: Purge, covered: list[bool]) -> None:
    blocks = [(OURS, Owner(1, 2)), (THEIRS, Owner(1, 3)), (OURS, Owner(2, 2)), (THEIRS, NOBODY)]
    assert [what.covers(*block) for block in blocks] == covered


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({}, "names nothing; allowed: tenant, session or namespace"),
        ({"tenant": 1, "session": 2}, "names tenant and session"),
        ({"tenant": -1}, "tag -1 is not a uint64"),
        ({"session": 1 << 64}, "not a uint64"),
        ({"session": 0}, "session 0 is no conversation"),
        ({"namespace": b"short"}, "32 bytes; this one has 5"),
    ],
)
def test_a_purge_of_nothing_or_of_two_things_is_refused(names: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Purge(**names)

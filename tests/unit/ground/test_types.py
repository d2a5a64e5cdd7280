"""The transition table: every edge leads where the drawing says, and every other pair is refused."""

from __future__ import annotations

import numpy as np
import pytest

from hifc_ray.errors import InvalidTransition
from hifc_ray.types import BlockState, Event, transition

S, E = BlockState, Event

EDGES = {
    (E.RESERVE, S.ABSENT): S.RESERVED,
    (E.COMMIT, S.RESERVED): S.RESIDENT,
    (E.ABORT, S.RESERVED): S.ABSENT,
    (E.ABORT, S.DOOMED): S.ABSENT,
    (E.LEASE, S.RESERVED): S.RESERVED,
    (E.LEASE, S.RESIDENT): S.LEASED,
    (E.LEASE, S.LEASED): S.LEASED,
    (E.LEASE, S.DEMOTING): S.LEASED,
    (E.RELEASE, S.LEASED): S.RESIDENT,
    (E.RELEASE, S.RESERVED): S.RESERVED,
    (E.RELEASE, S.QUARANTINED): S.QUARANTINED,
    (E.DEMOTE, S.RESIDENT): S.DEMOTING,
    (E.WRITTEN, S.DEMOTING): S.ABSENT,
    (E.EVICT, S.RESIDENT): S.ABSENT,
    (E.GIVE_UP, S.RESERVED): S.QUARANTINED,
    (E.GIVE_UP, S.DEMOTING): S.QUARANTINED,
    (E.RETURNED, S.QUARANTINED): S.ABSENT,
    (E.PURGE, S.RESERVED): S.DOOMED,
    (E.PURGE, S.RESIDENT): S.QUARANTINED,
    (E.PURGE, S.LEASED): S.QUARANTINED,
    (E.PURGE, S.DEMOTING): S.QUARANTINED,
}
NO_EDGES = [(event, state) for event in Event for state in BlockState if (event, state) not in EDGES]


@pytest.mark.parametrize(("event", "before"), EDGES)
def test_edge(event: Event, before: BlockState) -> None:
    assert transition(np.array([before], np.uint8), event).tolist() == [EDGES[event, before]]


@pytest.mark.parametrize(("event", "before"), NO_EDGES)
def test_no_edge(event: Event, before: BlockState) -> None:
    with pytest.raises(InvalidTransition, match=f"{event.name} of a block that is {before.name}"):
        transition(np.array([before], np.uint8), event)


def test_a_batch_changes_as_a_whole_or_not_at_all() -> None:
    states = np.array([S.RESIDENT, S.LEASED, S.ABSENT], np.uint8)
    with pytest.raises(InvalidTransition, match=r"ABSENT \(row 2 of 3\)"):
        transition(states, E.LEASE)
    assert states.tolist() == [S.RESIDENT, S.LEASED, S.ABSENT]
    assert transition(states[:2], E.LEASE).tolist() == [S.LEASED, S.LEASED]


def test_an_empty_batch_goes_nowhere() -> None:
    assert transition(np.empty(0, np.uint8), E.COMMIT).tolist() == []


def test_numbers_of_states_are_those_of_the_slot_table_on_disk() -> None:
    assert [state.name for state in sorted(BlockState)] == [
        "ABSENT",
        "RESERVED",
        "RESIDENT",
        "LEASED",
        "DEMOTING",
        "QUARANTINED",
        "DOOMED",
    ]

"""The words of the cache as types: keys, tiers, the states of a block, and what the tiers answer.

Life of a block in the host tier; each arrow is one `Event`, applied by `transition`:

                reserve            commit                  lease / release
      ABSENT ------------> RESERVED -------> RESIDENT <----------------------> LEASED
        ^                   |    |             |    ^                            ^
        |  abort            |    |      demote |    |                            | lease: a hit while
        |<------------------+    |             v    |                            | writing cancels it
        |                        |          DEMOTING-----------------------------+
        |  written               |             |
        |<-----------------------|-------------+
        |  evict                 |             |
        |<-- RESIDENT   give_up  v             v  give_up
        |                      QUARANTINED <---+
        |  returned                |
        +<-------------------------+

A block is invisible until it is committed. Holders may pin a RESERVED block (they wait for it); it is then LEASED
the moment that it is committed.

A purge withdraws a block from all lookups at once; its slot is free when nobody touches it any more:

      RESERVED ----------------------> DOOMED -----------> ABSENT
                       purge                     abort: its writer has committed, aborted or died
      RESIDENT, LEASED, DEMOTING ----> QUARANTINED ------> ABSENT
                       purge                     returned: its I/O is back and its holders have released
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple, NewType

import numpy as np
import numpy.typing as npt

from hifc_ray.errors import InvalidTransition

Key = NewType("Key", bytes)  # 32 bytes, chained: names a block and everything before it
Namespace = NewType("Namespace", bytes)  # 32 bytes: model weights, dtype, layout, shard, tenant salt

KEY_BYTES = 32


class Owner(NamedTuple):
    """Whose a block is, as tags of the tenant's salt and of the conversation: enough to find it, not to name them."""

    tenant: int = 0  # unsigned, 64 bits; 0: no salt
    session: int = 0  # unsigned, 64 bits; 0: no conversation


NOBODY = Owner()

BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
SlotArray = npt.NDArray[np.int64]  # the width that numpy indexes with: narrower costs a conversion at each use
GenerationArray = npt.NDArray[np.uint64]
FingerprintArray = npt.NDArray[np.uint64]  # first 8 bytes of keys, as numbers: enough for statistics, not for identity
AnyArray = npt.NDArray[Any]

NO_SLOT = -1


class Tier(IntEnum):
    """Where a block was found."""

    GPU = 0
    HOST = 1
    FLASH = 2


class BlockState(IntEnum):
    """State of a slot of the host arena, as stored in its line of the slot table."""

    ABSENT = 0  # free
    RESERVED = 1  # a writer, or a read from flash, is filling it
    RESIDENT = 2  # published, nobody holds it
    LEASED = 3  # published and held
    DEMOTING = 4  # on its way to flash
    QUARANTINED = 5  # withdrawn; I/O that touches it has not returned, or who holds it has not released
    DOOMED = 6  # purged while its writer was filling it: never published


class Event(IntEnum):
    """What can happen to a slot."""

    RESERVE = 0
    COMMIT = 1
    ABORT = 2
    LEASE = 3
    RELEASE = 4
    DEMOTE = 5
    WRITTEN = 6
    EVICT = 7
    GIVE_UP = 8
    RETURNED = 9
    PURGE = 10


_NO_EDGE = 255
_EDGES: dict[Event, dict[BlockState, BlockState]] = {
    Event.RESERVE: {BlockState.ABSENT: BlockState.RESERVED},
    Event.COMMIT: {BlockState.RESERVED: BlockState.RESIDENT},
    Event.ABORT: {BlockState.RESERVED: BlockState.ABSENT, BlockState.DOOMED: BlockState.ABSENT},
    Event.LEASE: {
        BlockState.RESERVED: BlockState.RESERVED,
        BlockState.RESIDENT: BlockState.LEASED,
        BlockState.LEASED: BlockState.LEASED,
        BlockState.DEMOTING: BlockState.LEASED,
    },
    Event.RELEASE: {
        BlockState.LEASED: BlockState.RESIDENT,
        BlockState.RESERVED: BlockState.RESERVED,
        BlockState.QUARANTINED: BlockState.QUARANTINED,
    },
    Event.DEMOTE: {BlockState.RESIDENT: BlockState.DEMOTING},
    Event.WRITTEN: {BlockState.DEMOTING: BlockState.ABSENT},
    Event.EVICT: {BlockState.RESIDENT: BlockState.ABSENT},
    Event.GIVE_UP: {
        BlockState.RESERVED: BlockState.QUARANTINED,
        BlockState.DEMOTING: BlockState.QUARANTINED,
    },
    Event.RETURNED: {BlockState.QUARANTINED: BlockState.ABSENT},
    Event.PURGE: {
        BlockState.RESERVED: BlockState.DOOMED,
        BlockState.RESIDENT: BlockState.QUARANTINED,
        BlockState.LEASED: BlockState.QUARANTINED,
        BlockState.DEMOTING: BlockState.QUARANTINED,
    },
}

# One row an event, in a list: indexing an array by an enum member costs a microsecond.
_TABLE = [np.full(len(BlockState), _NO_EDGE, dtype=np.uint8) for _ in Event]
for _event, _edges in _EDGES.items():
    for _before, _after in _edges.items():
        _TABLE[_event][_before] = _after


def transition(states: ByteArray, event: Event) -> ByteArray:
    """The states after `event`, for many slots at once. Raises `InvalidTransition` if one of them has no such edge."""
    after: ByteArray = _TABLE[event][states]
    wrong = (after == _NO_EDGE).nonzero()[0]
    if len(wrong):
        row = int(wrong[0])
        before = BlockState(int(states[row])).name
        raise InvalidTransition(f"{event.name} of a block that is {before} (row {row} of {len(states)})")
    return after


class Lookup(IntEnum):
    """The answer for one key of a lookup."""

    MISS = 0  # not here, or not to be served
    HIT = 1  # leased and usable now (slot -1: the caller said that it has the block itself)
    PENDING = 2  # pinned; being written or read from flash: `wait` resolves it
    RETRY = 3  # it is here, but there is no room just now or the window is used up: ask again


class Reserve(IntEnum):
    """The answer for one key of a reserve."""

    REFUSED = 0  # no room; may be asked again later
    GRANTED = 1  # a slot to fill, then commit
    PRESENT = 2  # stored already, or being stored by another: nothing to do


class Fate(IntEnum):
    """What last happened to a key that is not here: the answer to "why did it miss?"."""

    UNKNOWN = 0  # never stored here, purged, or stored so long ago that it is forgotten
    EVICTED = 1  # left host memory while flash was not configured
    NOT_ADMITTED = 2  # left host memory, and admission kept it off flash
    WRITE_FAILED = 3  # left host memory, and the write to flash failed
    DROPPED = 4  # left flash with its segment, for room
    CORRUPT = 5  # its bytes on flash failed verification
    READ_FAILED = 6  # flash did not return it (error)
    LATE = 7  # flash did not return it before the deadline
    STORE_REFUSED = 8  # no slot was free when it should have been stored
    UNREACHABLE = 9  # the cache tier did not answer
    OTHER_NAMESPACE = 10  # the key exists under another model, dtype or tenant

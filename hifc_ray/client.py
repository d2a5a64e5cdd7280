"""`TierClient`: what an engine may ask of a cache tier, and the values that it is answered with.

`TieredCache` in the same process and `actors/client.py` over Ray both answer to it; an engine cannot tell which it has.

Loading (walk b)                                     Storing (walk a)
    reply = client.lookup(query, deadline_s)             grant = client.reserve(request, deadline_s)
    answers = client.wait(reply, deadline_s)             fill client.slot(grant.slots[i]) for each granted block
    copy client.slot(reply.slots[i]) for each HIT        client.commit(grant, attention, deadline_s)
    client.release(reply.lease)                          (or client.abort(grant))

Nothing here raises for an expected outcome: a tier that is slow, full, dead or wrong answers MISS or REFUSED.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from hifc_ray.layout import BlockLayout
from hifc_ray.types import (
    NOBODY,
    BoolArray,
    ByteArray,
    Fate,
    FloatArray,
    GenerationArray,
    Key,
    Lookup,
    Namespace,
    Owner,
    Reserve,
    SlotArray,
)


@dataclass(frozen=True)
class ChainQuery:
    """A request's whole chain of keys, from its first block on; the unit of the access stream.

    `in_gpu` flags the blocks that the caller has in its pool: the tiers note the access but lend nothing for them.
    `continued` marks the further windows of one request, so that an access is not counted twice.
    """

    namespace: Namespace
    keys: tuple[Key, ...]
    in_gpu: BoolArray  # [keys]
    layout: BlockLayout
    owner: Owner = NOBODY
    turn: int = 0
    continued: bool = False


@dataclass(frozen=True)
class Lease:
    """A held pin on slots: none of them changes owner before `release`. Given back once, by the client that took it."""

    slots: SlotArray  # [n], distinct
    generations: GenerationArray  # [n]

    def __len__(self) -> int:
        return len(self.slots)


NO_LEASE = Lease(np.empty(0, np.int64), np.empty(0, np.uint64))


@dataclass(frozen=True)
class Missed:
    """Why a chain ends where it ends: its first key that cannot be served, and that key's last fate."""

    index: int
    key: Key
    fate: Fate


@dataclass(frozen=True)
class LookupReply:
    """One answer per key of the query, in its order. The lease covers every slot named here."""

    answers: ByteArray  # [keys], `Lookup`
    slots: SlotArray  # [keys], NO_SLOT where there is none
    generations: GenerationArray  # [keys]
    tiers: ByteArray  # [keys], `Tier` that has the block; meaningless for MISS
    lease: Lease
    missed: Missed | None

    @property
    def num_usable(self) -> int:
        """Length of the leading run of blocks that the caller has, or may use now or after `wait`."""
        usable = (self.answers == Lookup.HIT) | (self.answers == Lookup.PENDING)
        return int(usable.argmin()) if not usable.all() else len(usable)


def all_missed(query: ChainQuery, fate: Fate) -> LookupReply:
    """The reply of a tier that cannot serve: what the caller has itself is a HIT, the rest is a MISS."""
    n = len(query.keys)
    answers = np.where(query.in_gpu, Lookup.HIT, Lookup.MISS).astype(np.uint8)
    first = int(query.in_gpu.argmin()) if n and not query.in_gpu.all() else n
    missed = Missed(first, query.keys[first], fate) if first < n else None
    nothing = np.zeros(n, np.uint8)
    return LookupReply(answers, np.full(n, -1, np.int64), np.zeros(n, np.uint64), nothing, NO_LEASE, missed)


@dataclass(frozen=True)
class StoreRequest:
    """Blocks of one namespace that the caller wants to store: keys and positions (block index in the sequence)."""

    namespace: Namespace
    keys: tuple[Key, ...]
    positions: SlotArray  # [keys]
    layout: BlockLayout
    owner: Owner = NOBODY
    turn: int = 0


@dataclass(frozen=True)
class Grant:
    """Slots given by `reserve`. Only this incarnation of the tier takes its commit, once."""

    incarnation: int
    sequence: int
    request: StoreRequest
    answers: ByteArray = field(repr=False)  # [keys], `Reserve`
    slots: SlotArray = field(repr=False)  # [keys], NO_SLOT unless GRANTED
    generations: GenerationArray = field(repr=False)  # [keys]

    @property
    def granted(self) -> list[int]:
        """Indices of the keys that have a slot to fill."""
        return [int(i) for i in np.flatnonzero(self.answers == Reserve.GRANTED)]

    @property
    def refused(self) -> list[int]:
        """Indices of the keys for which there was no room."""
        return [int(i) for i in np.flatnonzero(self.answers == Reserve.REFUSED)]


def all_refused(request: StoreRequest) -> Grant:
    """The grant of a tier that cannot take anything."""
    n = len(request.keys)
    return Grant(0, 0, request, np.zeros(n, np.uint8), np.full(n, -1, np.int64), np.zeros(n, np.uint64))


@runtime_checkable
class TierClient(Protocol):
    """Host memory and flash of this node, as an engine sees them.

    Threads: lookup, wait and release from any one thread at a time; reserve, commit and abort from another.
    """

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot; blocks may be smaller."""

    @property
    def num_slots(self) -> int:
        """Slots of the arena."""

    @property
    def window(self) -> int:
        """The most slots that one lookup leases."""

    def lookup(self, query: ChainQuery, deadline_s: float) -> LookupReply:
        """Answer a chain and lease what is served, in order, until the first MISS or the end of the window.

        Blocks on flash get slots and are put into the read queue at once; they are PENDING.
        """

    def wait(self, reply: LookupReply, deadline_s: float) -> ByteArray:
        """Answers [keys] with PENDING resolved to HIT or MISS, in so far as `deadline_s` allows. 0 only looks."""

    def holds(self, lease: Lease) -> BoolArray:
        """[n] Which slots of a lease are still those that were leased. Asked after a copy; False where a block that was
        PENDING never came or that was purged meanwhile, else it is a broken invariant.
        """

    def release(self, lease: Lease) -> None:
        """Give a lease back. Cheap: over Ray it rides on the next call, or on `flush`."""

    def reserve(self, request: StoreRequest, deadline_s: float) -> Grant:
        """Slots for blocks that are not stored yet."""

    def commit(self, grant: Grant, attention: FloatArray | None, deadline_s: float) -> int:
        """Publish the filled slots of a grant; returns how many are published now. Doing it twice changes nothing.

        `attention` [keys] is each block's attention weight, if the engine has it. A commit that is unknown, aborted or
        of an old incarnation publishes nothing and is counted.
        """

    def abort(self, grant: Grant) -> None:
        """Give the slots of a grant back, unpublished. The caller no longer writes into them."""

    def slot(self, index: int) -> memoryview:
        """The bytes of a slot, writable: `slot_bytes` long, page-aligned."""

    def flush(self) -> None:
        """Tell the tier now what would ride on the next call. Never raises; waits at most one call's deadline."""

    def close(self) -> None:
        """Give everything back and let go of the arena."""

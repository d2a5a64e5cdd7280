"""`MemoryTier`: a cache tier in a dictionary, for tests and for engines without a node: the in-memory twin of a tier.

Blocks live in slots of one anonymous mapping and leave by least recent use; with `keep_evicted` they then lie in a
second dictionary that stands for flash: a lookup answers PENDING for them and `wait` brings them back.
"""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from hifc_ray.client import ChainQuery, Grant, Lease, LookupReply, Missed, StoreRequest
from hifc_ray.errors import ConservationBroken
from hifc_ray.layout import PAGE_BYTES, round_up
from hifc_ray.messages import Purge, PurgeReport
from hifc_ray.types import (
    NO_SLOT,
    NOBODY,
    BoolArray,
    ByteArray,
    Fate,
    FloatArray,
    Key,
    Lookup,
    Namespace,
    Owner,
    Reserve,
    Tier,
)

Name = tuple[Namespace, Key]
_INCARNATION = 1


@dataclass
class _Line:
    """One slot."""

    name: Name | None = None
    owner: Owner = NOBODY
    generation: int = 0
    writing: bool = False  # granted, and neither committed nor aborted
    committed: bool = False
    leases: int = 0
    purged: bool = False  # under no name any more; free when writer and holders have let go
    fill: bytes | None = None  # on its way from the second dictionary; committed when `wait` has put it in


class MemoryTier:
    """Answers to `TierClient`. Safe from any thread; only `wait` waits."""

    def __init__(
        self, slot_bytes: int, num_slots: int, window: int | None = None, *, keep_evicted: bool = False
    ) -> None:
        self._slot_bytes = round_up(slot_bytes, PAGE_BYTES)
        self._lines = [_Line() for _ in range(num_slots)]
        self._window = window or max(1, num_slots // 8)
        self._memory = memoryview(mmap.mmap(-1, self._slot_bytes * num_slots))
        self._where: OrderedDict[Name, int] = OrderedDict()  # least recently used first
        self._flash: dict[Name, tuple[bytes, Owner]] | None = {} if keep_evicted else None
        self._fates: dict[Name, Fate] = {}
        self._grants: dict[int, Grant] = {}
        self._num_grants = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # what `wait` waits for
        self.attention: dict[Name, float] = {}  # of each block, as committed
        self.num_lookups = 0

    @property
    def slot_bytes(self) -> int:
        return self._slot_bytes

    @property
    def num_slots(self) -> int:
        return len(self._lines)

    @property
    def window(self) -> int:
        return self._window

    def __contains__(self, name: Name) -> bool:
        """Is a block published here, in a slot or evicted and kept?"""
        with self._lock:
            slot = self._where.get(name)
            return (slot is not None and self._lines[slot].committed) or (
                self._flash is not None and name in self._flash
            )

    def lookup(self, query: ChainQuery, deadline_s: float) -> LookupReply:
        n = len(query.keys)
        answers, tiers = np.zeros(n, np.uint8), np.zeros(n, np.uint8)
        slots, generations = np.full(n, NO_SLOT, np.int64), np.zeros(n, np.uint64)
        missed = None
        leased = 0
        with self._lock:
            self.num_lookups += 1
            for i, key in enumerate(query.keys):
                if query.in_gpu[i]:
                    answers[i] = Lookup.HIT
                    continue
                if leased == self._window:
                    answers[i:] = np.where(query.in_gpu[i:], Lookup.HIT, Lookup.RETRY)
                    break
                answers[i], tiers[i], slot = self._lease((query.namespace, key))
                if answers[i] == Lookup.MISS:
                    missed = Missed(i, key, self._fates.get((query.namespace, key), Fate.UNKNOWN))
                    break
                if answers[i] == Lookup.RETRY:
                    break
                slots[i], generations[i] = slot, self._lines[slot].generation
                leased += 1
        held = slots != NO_SLOT
        return LookupReply(answers, slots, generations, tiers, Lease(slots[held], generations[held]), missed)

    def _lease(self, name: Name) -> tuple[Lookup, Tier, int]:
        slot = self._where.get(name)
        if slot is None and self._flash is not None and name in self._flash:
            data, owner = self._flash[name]
            slot = self._take_slot(name, owner)
            if slot is None:
                return Lookup.RETRY, Tier.FLASH, NO_SLOT
            self._lines[slot].fill = data
        if slot is None:
            return Lookup.MISS, Tier.HOST, NO_SLOT
        self._where.move_to_end(name)
        line = self._lines[slot]
        line.leases += 1
        from_flash = Tier.FLASH if line.fill is not None else Tier.HOST
        return (Lookup.HIT if line.committed else Lookup.PENDING), from_flash, slot

    def wait(self, reply: LookupReply, deadline_s: float) -> ByteArray:
        answers = reply.answers.copy()
        with self._changed:
            self._changed.wait_for(lambda: self._resolve(reply, answers), deadline_s)
        return answers

    def _resolve(self, reply: LookupReply, answers: ByteArray) -> bool:
        for i in np.flatnonzero(answers == Lookup.PENDING):
            line = self._lines[reply.slots[i]]
            if line.fill is not None:
                start = int(reply.slots[i]) * self._slot_bytes
                self._memory[start : start + len(line.fill)] = line.fill
                line.fill, line.committed = None, True
            if line.generation != reply.generations[i] or line.purged:
                answers[i] = Lookup.MISS
            elif line.committed:
                answers[i] = Lookup.HIT
        return not (answers == Lookup.PENDING).any()

    def holds(self, lease: Lease) -> BoolArray:
        with self._lock:
            pairs = zip(lease.slots, lease.generations, strict=True)
            lines = [(self._lines[slot], generation) for slot, generation in pairs]
            return np.array([line.generation == generation and not line.purged for line, generation in lines], np.bool_)

    def release(self, lease: Lease) -> None:
        with self._lock:
            for slot, generation in zip(lease.slots, lease.generations, strict=True):
                line = self._lines[slot]
                if line.generation != generation:
                    continue  # its block failed on the way
                if line.leases == 0:
                    raise ValueError(f"lease of {len(lease)} slots was given back twice")
                line.leases -= 1
                if line.purged:
                    self._end(line)
                elif line.fill is not None and not line.leases:
                    self._free(int(slot))  # nobody waits for it any more; the second dictionary still has it

    def reserve(self, request: StoreRequest, deadline_s: float) -> Grant:
        n = len(request.keys)
        answers, slots, generations = np.zeros(n, np.uint8), np.full(n, NO_SLOT, np.int64), np.zeros(n, np.uint64)
        with self._lock:
            for i, key in enumerate(request.keys):
                name = (request.namespace, key)
                if name in self._where or (self._flash is not None and name in self._flash):
                    answers[i] = Reserve.PRESENT
                    continue
                slot = self._take_slot(name, request.owner)
                if slot is None:
                    self._fates[name] = Fate.STORE_REFUSED
                    continue
                self._lines[slot].writing = True
                answers[i], slots[i], generations[i] = Reserve.GRANTED, slot, self._lines[slot].generation
            self._num_grants += 1
            grant = Grant(_INCARNATION, self._num_grants, request, answers, slots, generations)
            self._grants[grant.sequence] = grant
        return grant

    def commit(self, grant: Grant, attention: FloatArray | None, deadline_s: float) -> int:
        with self._lock:
            if grant.incarnation != _INCARNATION or grant.sequence not in self._grants:
                return 0
            published = 0
            for i in grant.granted:
                line = self._lines[grant.slots[i]]
                if line.writing and line.generation == grant.generations[i]:
                    line.writing, line.committed = False, not line.purged
                    self._end(line)
                published += line.committed and not line.purged and line.generation == grant.generations[i]
                if attention is not None:
                    self.attention[grant.request.namespace, grant.request.keys[i]] = float(attention[i])
            self._changed.notify_all()
            return published

    def abort(self, grant: Grant) -> None:
        with self._lock:
            if self._grants.pop(grant.sequence, None) is None:
                return
            for i in grant.granted:
                line = self._lines[grant.slots[i]]
                if line.generation != grant.generations[i] or not line.writing:
                    continue
                line.writing = False
                if line.purged:
                    self._end(line)
                else:
                    self._free(int(grant.slots[i]))

    def slot(self, index: int) -> memoryview:
        return self._memory[index * self._slot_bytes : (index + 1) * self._slot_bytes]

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._grants.clear()

    def evict(self, name: Name) -> bool:
        """Let go of a published block that nobody holds, as if room were needed; False if it cannot go."""
        with self._lock:
            slot = self._where.get(name)
            if slot is None or self._lines[slot].leases or not self._lines[slot].committed:
                return False
            self._evict(slot)
            return True

    def purge(self, what: Purge) -> PurgeReport:
        """See `TieredCache.purge`."""
        with self._lock:
            slots = [slot for name, slot in self._where.items() if what.covers(name[0], self._lines[slot].owner)]
            for slot in slots:
                line = self._lines[slot]
                del self._where[line.name]  # type: ignore[arg-type]
                line.name, line.fill, line.purged = None, None, True
                self._end(line)
            flash = self._flash or {}
            gone = [name for name, (_, owner) in flash.items() if what.covers(name[0], owner)]
            num_bytes = sum(len(flash.pop(name)[0]) for name in gone)
            for name in gone:
                self._fates.pop(name, None)
            self._changed.notify_all()
        return PurgeReport(len(slots), len(gone), num_bytes)

    def check(self) -> None:
        """Every used slot has one name, and every name one slot; no lease is left. Raises `ConservationBroken`."""
        with self._lock:
            used = sum(line.name is not None for line in self._lines)
            leases = sum(line.leases for line in self._lines)
            if used != len(self._where) or leases:
                raise ConservationBroken(f"{used} used slots, {len(self._where)} names, {leases} leases of nobody")

    def _take_slot(self, name: Name, owner: Owner) -> int | None:
        slot = next((i for i, line in enumerate(self._lines) if line.name is None and not line.purged), None)
        if slot is None:
            idle = (s for s in self._where.values() if self._lines[s].committed and not self._lines[s].leases)
            slot = next(idle, None)
            if slot is None:
                return None
            self._evict(slot)
        line = self._lines[slot]
        line.name, line.generation, line.committed, line.fill = name, line.generation + 1, False, None
        line.owner = owner
        self._where[name] = slot
        return slot

    def _evict(self, slot: int) -> None:
        name = self._lines[slot].name
        assert name is not None
        if self._flash is not None:
            self._flash[name] = bytes(self.slot(slot)), self._lines[slot].owner
        else:
            self._fates[name] = Fate.EVICTED
        self._free(slot)

    def _free(self, slot: int) -> None:
        line = self._lines[slot]
        del self._where[line.name]  # type: ignore[arg-type]
        line.name, line.committed, line.leases, line.fill, line.writing = None, False, 0, None, False
        line.generation += 1
        self._changed.notify_all()

    def _end(self, line: _Line) -> None:
        """Free a purged line that nobody writes or holds."""
        if line.purged and not line.writing and not line.leases:
            line.purged, line.committed = False, False
            line.generation += 1

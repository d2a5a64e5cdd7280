"""Lookup: one pass over a request's chain that answers every key, leases what is served and starts what is on flash."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hifc_ray.client import NO_LEASE, ChainQuery, Lease, LookupReply, Missed
from hifc_ray.flash import Address
from hifc_ray.host.table import TIER_WRITER, tag_of
from hifc_ray.tiering.promotion import Promoter, Promotion
from hifc_ray.tiering.shared import Shared
from hifc_ray.types import NO_SLOT, BlockState, BoolArray, Fate, Lookup, SlotArray, Tier


class Answerer:
    """Answers lookups. One call is a few dictionary reads a key and a fixed number of array operations."""

    def __init__(self, shared: Shared, promoter: Promoter | None, window: int) -> None:
        self._shared = shared
        self._promoter = promoter
        self._window = window

    def lookup(self, query: ChainQuery, holder: int) -> LookupReply:
        """Leases are taken for `holder`, in chain order, until the first miss or the end of the window.

        The first block on flash for which there is no room just now ends the run with RETRY: leasing what comes after
        it would hold slots that nobody can use yet.
        """
        shared, books = self._shared, self._shared.books
        n = len(query.keys)
        order = np.arange(n)
        with shared.lock:
            slots = books.find(query.keys)
            foreign = (slots != NO_SLOT) & (books.table.tag[slots] != tag_of(query.namespace))
            if foreign.any():
                slots[foreign] = NO_SLOT
                shared.stats.add("namespace_mismatches", int(foreign.sum()), tier=Tier.HOST)
            found = slots != NO_SLOT
            wanted = ~query.in_gpu
            addresses, on_flash = self._locate(query, wanted & ~found & ~foreign)
            known = query.in_gpu | found | on_flash
            stop = int(known.argmin()) if n and not known.all() else n

            served = wanted & (order < stop)
            served &= np.cumsum(served) <= self._window
            to_read = self._with_room(served & on_flash)
            if not to_read.all_fit:
                served &= order < to_read.end
            here, coming = served & found, served & to_read.rows
            if not query.continued:
                books.hotness.touch(slots[found], query.turn)
            books.lease(slots[here], holder)
            promotions = self._reserve(query, np.flatnonzero(coming), addresses, slots, holder)
            reply = self._reply(query, slots, here, coming, stop)
            missed = self._missed(query, stop, foreign)
        if promotions and self._promoter is not None:
            self._promoter.start(promotions)
        if books.num_free < shared.low_slots:
            shared.pressure.set()
        shared.stats.add("lookup_keys", n)
        return LookupReply(*reply, missed)

    def _locate(self, query: ChainQuery, absent: BoolArray) -> tuple[list[Address | None], BoolArray]:
        on_flash = np.zeros(len(absent), np.bool_)
        if self._shared.flash is None or not absent.any():
            return [], on_flash
        addresses = self._shared.flash.locate(query.keys)
        on_flash[:] = [address is not None for address in addresses]
        return addresses, on_flash & absent

    def _with_room(self, rows: BoolArray) -> _Reads:
        """The leading part of these reads for which there are free slots and places in the queue."""
        if not rows.any():
            return _Reads(rows, True, len(rows))
        room = min(self._shared.books.num_free, self._promoter.room if self._promoter else 0)
        fit = rows & (np.cumsum(rows) <= room)
        left = rows & ~fit
        return _Reads(fit, not left.any(), int(left.argmax()) if left.any() else len(rows))

    def _reserve(
        self,
        query: ChainQuery,
        rows: np.ndarray,
        addresses: Sequence[Address | None],
        slots: SlotArray,
        holder: int,
    ) -> list[Promotion]:
        """Slots for blocks that come from flash, pinned for the one who asked before anyone can evict them."""
        if not len(rows):
            return []
        keys = [query.keys[row] for row in rows]
        books = self._shared.books
        new = books.reserve(keys, query.namespace, query.layout, rows, TIER_WRITER, query.turn)
        books.lease(new, holder)
        slots[rows] = new
        promotions = []
        for key, row, slot in zip(keys, rows.tolist(), new.tolist(), strict=True):
            address = addresses[row]
            assert address is not None
            promotions.append(Promotion(key, query.namespace, address, slot))
        return promotions

    def _reply(
        self,
        query: ChainQuery,
        slots: SlotArray,
        here: BoolArray,
        coming: BoolArray,
        stop: int,
    ) -> tuple[np.ndarray, SlotArray, np.ndarray, np.ndarray, Lease]:
        table, n = self._shared.books.table, len(query.keys)
        leased = here | coming
        reserved = np.zeros(n, np.bool_)
        reserved[leased] = table.state[slots[leased]] == BlockState.RESERVED
        from_flash = reserved.copy()
        from_flash[leased] &= table.writer[slots[leased]] == TIER_WRITER

        answers = np.full(n, Lookup.MISS, np.uint8)
        answers[:stop] = Lookup.RETRY
        answers[leased] = np.where(reserved[leased], Lookup.PENDING, Lookup.HIT)
        answers[query.in_gpu] = Lookup.HIT
        named = np.where(leased, slots, NO_SLOT).astype(np.int32)
        generations = np.where(leased, table.generation[slots], 0).astype(np.uint64)
        tiers = np.where(query.in_gpu, Tier.GPU, np.where(from_flash, Tier.FLASH, Tier.HOST)).astype(np.uint8)
        lease = Lease(named[leased], generations[leased]) if leased.any() else NO_LEASE
        return answers, named, generations, tiers, lease

    def _missed(self, query: ChainQuery, stop: int, foreign: BoolArray) -> Missed | None:
        if stop == len(query.keys):
            return None
        key = query.keys[stop]
        return Missed(stop, key, Fate.OTHER_NAMESPACE if foreign[stop] else self._shared.fate(key))


class _Reads:
    """Reads that can start now: their rows, whether these are all, and the first row that cannot."""

    def __init__(self, rows: BoolArray, all_fit: bool, end: int) -> None:
        self.rows = rows
        self.all_fit = all_fit
        self.end = end

"""Lookup: one pass over a request's chain that answers every key, leases what is served and starts what is on flash."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hifc_ray.client import NO_LEASE, ChainQuery, Lease, LookupReply, Missed
from hifc_ray.flash import Address
from hifc_ray.host.table import TIER_WRITER, tag_of
from hifc_ray.tiering.promotion import Promoter, Promotion
from hifc_ray.tiering.shared import Shared
from hifc_ray.types import (
    NO_SLOT,
    BlockState,
    BoolArray,
    ByteArray,
    Fate,
    GenerationArray,
    IntArray,
    Lookup,
    SlotArray,
    Tier,
)

# Plain bytes: numpy spends a microsecond on each enum member that it is handed.
_MISS, _HIT, _PENDING, _RETRY = (np.uint8(a) for a in (Lookup.MISS, Lookup.HIT, Lookup.PENDING, Lookup.RETRY))
_GPU, _HOST, _FLASH = (np.uint8(tier) for tier in (Tier.GPU, Tier.HOST, Tier.FLASH))
_RESERVED = np.uint8(BlockState.RESERVED)


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
        with shared.lock:
            slots = books.find(query.keys)
            foreign = self._foreign(query, slots)
            found = slots != NO_SLOT
            addresses, on_flash = self._locate(query, found | query.in_gpu | foreign)
            known = found | query.in_gpu | on_flash
            stop = len(known) if known.all() else int(known.argmin())
            if not query.continued:
                books.hotness.touch(slots[found], query.turn)

            wanted = np.flatnonzero(~query.in_gpu[:stop])[: self._window]
            wanted = wanted[: self._fitting(on_flash[wanted])]
            promotions: list[Promotion] = []
            reading = wanted[on_flash[wanted]]
            if len(reading):
                promotions = self._reserve(query, reading, addresses, slots)
            leased = slots[wanted]
            books.lease(leased, holder)
            reply = self._reply(query, wanted, leased, stop)
            missed = self._missed(query, stop, foreign)
        if promotions and self._promoter is not None:
            self._promoter.start(promotions)
        if books.num_free < shared.low_slots:
            shared.pressure.set()
        return LookupReply(*reply, missed)

    def _foreign(self, query: ChainQuery, slots: SlotArray) -> BoolArray:
        """Keys that are here under another namespace; their slots are struck out."""
        foreign: BoolArray = (self._shared.books.table.tag[slots] != tag_of(query.namespace)) & (slots != NO_SLOT)
        if foreign.any():
            slots[foreign] = NO_SLOT
            self._shared.stats.add("namespace_mismatches", int(foreign.sum()), tier=Tier.HOST)
        return foreign

    def _locate(self, query: ChainQuery, elsewhere: BoolArray) -> tuple[list[Address | None], BoolArray]:
        if self._shared.flash is None or elsewhere.all():
            return [], np.zeros(len(elsewhere), np.bool_)
        addresses = self._shared.flash.locate(query.keys)
        on_flash = np.fromiter((address is not None for address in addresses), np.bool_, len(addresses))
        return addresses, on_flash & ~elsewhere

    def _fitting(self, reads: BoolArray) -> int:
        """How many leading blocks can be served, when those marked need a free slot and a place in the read queue."""
        rows = np.flatnonzero(reads)
        if not len(rows):
            return len(reads)
        room = min(self._shared.books.num_free, self._promoter.room if self._promoter else 0)
        return len(reads) if len(rows) <= room else int(rows[room])

    def _reserve(
        self, query: ChainQuery, rows: IntArray, addresses: Sequence[Address | None], slots: SlotArray
    ) -> list[Promotion]:
        """Slots for blocks that come from flash; the caller pins them before anyone can evict them."""
        keys = [query.keys[row] for row in rows]
        positions = rows.astype(np.int32)
        new = self._shared.books.reserve(keys, query.namespace, query.layout, positions, TIER_WRITER, query.turn)
        slots[rows] = new
        promotions = []
        for key, row, slot in zip(keys, rows.tolist(), new.tolist(), strict=True):
            address = addresses[row]
            assert address is not None
            promotions.append(Promotion(key, query.namespace, address, slot))
        return promotions

    def _reply(
        self, query: ChainQuery, rows: IntArray, leased: SlotArray, stop: int
    ) -> tuple[ByteArray, SlotArray, GenerationArray, ByteArray, Lease]:
        table, n = self._shared.books.table, len(query.keys)
        reserved = table.state[leased] == _RESERVED
        generations = table.generation[leased]
        answers = np.full(n, _MISS, np.uint8)
        answers[:stop] = _RETRY
        answers[rows] = np.where(reserved, _PENDING, _HIT)
        answers[query.in_gpu] = _HIT
        slots_of = np.full(n, NO_SLOT, np.int32)
        slots_of[rows] = leased
        generation_of = np.zeros(n, np.uint64)
        generation_of[rows] = generations
        tiers = np.where(query.in_gpu, _GPU, _HOST)
        if reserved.any():
            tiers[rows[reserved & (table.writer[leased] == TIER_WRITER)]] = _FLASH
        lease = Lease(leased, generations) if len(rows) else NO_LEASE
        return answers, slots_of, generation_of, tiers, lease

    def _missed(self, query: ChainQuery, stop: int, foreign: BoolArray) -> Missed | None:
        if stop == len(query.keys):
            return None
        key = query.keys[stop]
        return Missed(stop, key, Fate.OTHER_NAMESPACE if foreign[stop] else self._shared.fate(key))

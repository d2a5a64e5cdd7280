"""Lookup: one pass over a request's chain that answers every key, leases what is served and starts what is on flash."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hifc_ray.client import NO_LEASE, ChainQuery, Lease, LookupReply, Missed, all_missed
from hifc_ray.flash import Address
from hifc_ray.host.table import TIER_WRITER, tag_of
from hifc_ray.keys import fingerprints_of
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
    Owner,
    SlotArray,
    Tier,
)

# Plain bytes: numpy spends a microsecond on each enum member that it is handed.
# Arrays begin as zeros, which is MISS, and Tier.GPU.
_HIT, _PENDING, _RETRY = (np.uint8(answer) for answer in (Lookup.HIT, Lookup.PENDING, Lookup.RETRY))
_HOST, _FLASH = (np.uint8(tier) for tier in (Tier.HOST, Tier.FLASH))
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
        if not query.keys:
            return all_missed(query, Fate.UNKNOWN)
        shared, books = self._shared, self._shared.books
        with shared.lock:
            if shared.closed:
                return all_missed(query, Fate.UNREACHABLE)
            slots = books.find(query.keys)
            foreign = self._strike_foreign(query, slots)
            found = slots != NO_SLOT
            here = found.nonzero()[0]
            addresses, on_flash = self._locate(query, found | query.in_gpu, foreign)
            known = found | query.in_gpu | on_flash
            stop = int(known.argmin())
            stop = len(known) if known[stop] else stop
            if not query.continued:
                books.hotness.touch(slots[here], query.turn)

            wanted = (~query.in_gpu[:stop]).nonzero()[0][: self._window]
            fitting = self._fitting(wanted, on_flash, addresses)
            if fitting < len(wanted):
                shared.press()
            wanted, promotions = self._promote(query, wanted[:fitting], on_flash, addresses, slots)
            leased = slots[wanted]
            books.lease(leased, holder)
            reply = self._reply(query, wanted, leased, stop)
            missed = self._missed(query, stop, foreign)
        if promotions and self._promoter is not None:
            self._promoter.start(promotions)
        return LookupReply(*reply, missed)

    def _strike_foreign(self, query: ChainQuery, slots: SlotArray) -> IntArray:
        """Rows of keys that are here under another namespace; their slots are struck out: never served, on no tier."""
        wrong = self._shared.books.table.tag[slots] != tag_of(query.namespace)
        foreign: IntArray = (wrong & (slots != NO_SLOT)).nonzero()[0]
        if len(foreign):
            slots[foreign] = NO_SLOT
            self._shared.stats.add("namespace_mismatches", len(foreign), tier=Tier.HOST)
        return foreign

    def _locate(
        self, query: ChainQuery, elsewhere: BoolArray, foreign: IntArray
    ) -> tuple[list[Address | None], BoolArray]:
        on_flash = np.zeros(len(elsewhere), np.bool_)
        if self._shared.flash is None:
            return [], on_flash
        flash = self._shared.flash
        if query.continued:
            addresses = flash.locate(query.keys)
        else:
            addresses = flash.access(query.keys, query.turn)
            self._shared.admission.observe(fingerprints_of(query.keys))
        on_flash[:] = [address is not None for address in addresses]
        on_flash[foreign] = False
        on_flash &= ~elsewhere
        if self._shared.barred:
            self._strike_barred(query, on_flash)
        return addresses, on_flash

    def _strike_barred(self, query: ChainQuery, on_flash: BoolArray) -> None:
        """What is just being purged from flash is not there any more."""
        flash, rows = self._shared.flash, on_flash.nonzero()[0].tolist()
        assert flash is not None
        owners = flash.owners([query.keys[row] for row in rows])
        for row, owner in zip(rows, owners, strict=True):
            if any(what.covers(query.namespace, owner) for what in self._shared.barred):
                on_flash[row] = False

    def _fitting(self, wanted: IntArray, on_flash: BoolArray, addresses: Sequence[Address | None]) -> int:
        """How many leading blocks can be served, when those on flash need a free slot and a place in a read queue."""
        reads = on_flash[wanted].nonzero()[0]
        if not len(reads) or self._promoter is None:
            return len(wanted)
        places = [address for row in wanted[reads] if (address := addresses[row]) is not None]
        room = min(self._shared.books.num_free, self._promoter.fitting(places))
        return len(wanted) if len(reads) <= room else int(reads[room])

    def _promote(
        self,
        query: ChainQuery,
        wanted: IntArray,
        on_flash: BoolArray,
        addresses: Sequence[Address | None],
        slots: SlotArray,
    ) -> tuple[IntArray, list[Promotion]]:
        """Slots for those of the wanted blocks that are on flash; what is still wanted, and what is to be read."""
        reading = wanted[on_flash[wanted]]
        if not len(reading):
            return wanted, []
        owners = self._owners(query, reading, addresses)
        if len(owners) < len(reading):
            wanted, reading = wanted[wanted < reading[len(owners)]], reading[: len(owners)]
        promotions = self._reserve(query, reading, addresses, owners, slots)
        self._shared.press()
        return wanted, promotions

    def _owners(self, query: ChainQuery, rows: IntArray, addresses: Sequence[Address | None]) -> list[Owner]:
        """Whose these blocks on flash are; up to the first that has left its address, and whose is nobody's to say.

        Such a one may still be read: under no owner, it would escape a purge.
        """
        flash, keys = self._shared.flash, [query.keys[row] for row in rows]
        assert flash is not None
        owners = flash.owners(keys)
        for number, (row, address) in enumerate(zip(rows.tolist(), flash.locate(keys), strict=True)):
            if address != addresses[row]:
                return owners[:number]
        return owners

    def _reserve(
        self,
        query: ChainQuery,
        rows: IntArray,
        addresses: Sequence[Address | None],
        owners: Sequence[Owner],
        slots: SlotArray,
    ) -> list[Promotion]:
        """Slots for blocks that come from flash; the caller pins them before anyone can evict them."""
        keys = [query.keys[row] for row in rows]
        positions = rows.astype(np.int64)
        new = self._shared.books.reserve(
            keys, query.namespace, query.layout, positions, TIER_WRITER, query.turn, owners
        )
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
        pending = (table.state[leased] == _RESERVED).nonzero()[0]
        generations = table.generation[leased]
        answers = np.zeros(n, np.uint8)
        answers[:stop] = _RETRY
        answers[rows] = _HIT
        answers[query.in_gpu] = _HIT
        tiers = np.zeros(n, np.uint8)
        tiers[rows] = _HOST
        if len(pending):
            answers[rows[pending]] = _PENDING
            tiers[rows[pending[table.writer[leased[pending]] == TIER_WRITER]]] = _FLASH
        slots_of = np.empty(n, np.int64)
        slots_of.fill(NO_SLOT)
        slots_of[rows] = leased
        generation_of = np.zeros(n, np.uint64)
        generation_of[rows] = generations
        lease = Lease(leased, generations) if len(rows) else NO_LEASE
        return answers, slots_of, generation_of, tiers, lease

    def _missed(self, query: ChainQuery, stop: int, foreign: IntArray) -> Missed | None:
        if stop == len(query.keys):
            return None
        key = query.keys[stop]
        return Missed(stop, key, Fate.OTHER_NAMESPACE if stop in foreign else self._shared.fate(key))

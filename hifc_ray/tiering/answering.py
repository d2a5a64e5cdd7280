"""Lookup: one pass over a request's chain that answers every key, leases what is served and starts what is on flash."""

from __future__ import annotations

import numpy as np

from hifc_ray.client import NO_LEASE, ChainQuery, Lease, LookupReply, Missed, all_missed
from hifc_ray.flash import Located, keys_as_words
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
            located, on_flash = self._locate(query, found | query.in_gpu, foreign)
            known = found | query.in_gpu | on_flash
            stop = int(known.argmin())
            stop = len(known) if known[stop] else stop
            if not query.continued:
                books.hotness.touch(slots[here], query.turn)

            wanted = (~query.in_gpu[:stop]).nonzero()[0][: self._window]
            fitting = self._fitting(wanted, on_flash, located)
            if fitting < len(wanted):
                shared.press()
            wanted = wanted[:fitting]
            promotions = self._promote(query, wanted, on_flash, located, slots)
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

    def _locate(self, query: ChainQuery, elsewhere: BoolArray, foreign: IntArray) -> tuple[Located | None, BoolArray]:
        flash = self._shared.flash
        if flash is None:
            return None, np.zeros(len(elsewhere), np.bool_)
        words = keys_as_words(query.keys)
        located = flash.look_up(words, None if query.continued else query.turn)
        if not query.continued:
            self._shared.admission.observe(words[:, 0])
        on_flash = located.found & ~elsewhere
        on_flash[foreign] = False
        if self._shared.barred:
            self._strike_barred(query, located, on_flash)
        return located, on_flash

    def _strike_barred(self, query: ChainQuery, located: Located, on_flash: BoolArray) -> None:
        """What is just being purged from flash is not there any more."""
        rows = on_flash.nonzero()[0]
        for row, owner in zip(rows.tolist(), located.owners(rows), strict=True):
            if any(what.covers(query.namespace, owner) for what in self._shared.barred):
                on_flash[row] = False

    def _fitting(self, wanted: IntArray, on_flash: BoolArray, located: Located | None) -> int:
        """How many leading blocks can be served, when those on flash need a free slot and a place in a read queue."""
        reads = on_flash[wanted].nonzero()[0]
        if not len(reads) or located is None or self._promoter is None:
            return len(wanted)
        room = self._shared.books.num_free
        room = min(room, self._promoter.fitting(located.addresses(wanted[reads[:room]])))
        return len(wanted) if len(reads) <= room else int(reads[room])

    def _promote(
        self, query: ChainQuery, wanted: IntArray, on_flash: BoolArray, located: Located | None, slots: SlotArray
    ) -> list[Promotion]:
        """Slots for those of the wanted blocks that are on flash; the caller pins them before anyone evicts them.

        Address and owner are of one moment: a block under another owner than its own would escape a purge.
        """
        rows = wanted[on_flash[wanted]]
        if not len(rows) or located is None:
            return []
        keys = [query.keys[row] for row in rows]
        new = self._shared.books.reserve(
            keys, query.namespace, query.layout, rows.astype(np.int64), TIER_WRITER, query.turn, located.owners(rows)
        )
        slots[rows] = new
        self._shared.press()
        parts = zip(keys, located.addresses(rows), new.tolist(), strict=True)
        return [Promotion(key, query.namespace, address, slot) for key, address, slot in parts]

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

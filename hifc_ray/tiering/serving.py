"""What a tier does for each holder, the engine of its own process among them, and for the calls of those in others.

Calls from other processes carry what the caller has leased or reserved; what they do not name is taken back.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hifc_ray.client import ChainQuery, Grant, LookupReply, StoreRequest
from hifc_ray.errors import StorageError
from hifc_ray.host.table import MAX_HOLDERS
from hifc_ray.messages import CallHeader, GrantName, Held
from hifc_ray.tiering.answering import Answerer
from hifc_ray.tiering.granting import Granter
from hifc_ray.tiering.holders import Holder, Holders
from hifc_ray.tiering.shared import Shared
from hifc_ray.types import FloatArray, Namespace, Tier


class Serving:
    """Answers holders by their number. Takes the lock itself, except where a method says that it is called with it."""

    def __init__(self, shared: Shared, holders: Holders, answerer: Answerer, granter: Granter) -> None:
        self._shared = shared
        self._holders = holders
        self._answerer = answerer
        self._granter = granter

    def attach(self, holder_path: Path) -> Holder:
        """Give the process that has locked this file a number and a name; safe to repeat. Raises `StorageError`."""
        with self._shared.lock:
            if self._shared.closed:
                raise StorageError(f"the tier of arena {self._shared.arena.path} is closed; attach to the next one")
            known = self._holders.number_of(holder_path)
            holder = self._holders.attach(holder_path)
            if known is None:
                self.take_back(holder.number)  # whoever had this number before is gone, and its slots with it
        return holder

    def detach(self, name: int) -> None:
        """A holder leaves: what it holds is taken back."""
        with self._shared.lock:
            holder = self._holders.named(name)
            if holder is not None and not self._shared.closed:
                self._forget(holder.number)

    def lookup(self, header: CallHeader, held: Held, query: ChainQuery | None) -> LookupReply | None:
        """A lookup by call; without a query it only gives back. None: overtaken, or caller unknown."""
        with self._shared.lock:
            holder = None if self._shared.closed else self._holders.accept_lookup(header)
            if holder is not None:
                self._release_unnamed(holder.number, held)
        if holder is None:
            self._shared.stats.add("calls_refused", reason="lookup")
            return None
        return None if query is None else self.answer(query, holder.number)

    def reserve(self, header: CallHeader, held: Held, request: StoreRequest) -> Grant | None:
        """A reserve by call. None: overtaken, or caller unknown."""
        holder = self._accept_store(header, held)
        return None if holder is None else self.grant(request, holder.number, header.sequence)

    def commit(self, header: CallHeader, held: Held, grant: GrantName, attention: FloatArray | None) -> int | None:
        """A commit by call. None: overtaken, or caller unknown."""
        holder = self._accept_store(header, held)
        if holder is None:
            return None
        return self._granter.commit(holder.number, grant.incarnation, grant.sequence, attention)

    def answer(self, query: ChainQuery, holder: int) -> LookupReply:
        """Look a chain up for a holder, and count what was asked and served."""
        self._note_namespace(query.namespace, holder)
        reply = self._answerer.lookup(query, holder)
        if not query.continued:
            self._shared.stats.add("lookup_keys", len(query.keys))
        self._shared.stats.add("served_blocks", len(reply.lease))
        return reply

    def grant(self, request: StoreRequest, holder: int, sequence: int) -> Grant:
        """Reserve slots for a holder. Raises `StorageError` if a block of its model is larger than a slot."""
        slot_bytes = self._shared.arena.slot_bytes
        if request.layout.block_bytes > slot_bytes:
            raise StorageError(
                f"a block of this model is {request.layout.block_bytes} bytes; this tier's slots are {slot_bytes}"
            )
        self._note_namespace(request.namespace, holder)
        return self._granter.reserve(request, holder, sequence)

    def take_back_from_the_dead(self) -> None:
        """Free what the dead hold: holders whose lock is gone, and numbers in the table that nobody has."""
        with self._shared.lock:
            table = self._shared.arena.table
            bits = int(np.bitwise_or.reduce(table.holders)) if len(table) else 0
            named = {number for number in range(MAX_HOLDERS) if bits >> number & 1}
            reserved = self._shared.books.reserved()
            writers = {int(writer) for writer in np.unique(table.writer[reserved]) if writer < MAX_HOLDERS}
            gone = set(self._holders.dead()) | {number for number in named | writers if number not in self._holders}
            for number in gone:
                self._forget(number)
        if gone:
            self._shared.stats.add("holders_lost", len(gone))

    def take_back(self, number: int) -> None:
        """Free all that a holder has leased or reserved. Called with the lock."""
        self._granter.take_back(number, Held())
        self._granter.forget(number)
        self._shared.books.release(self._shared.books.held_by(number), number)

    def _forget(self, number: int) -> None:
        self.take_back(number)
        self._holders.detach(number)

    def _note_namespace(self, namespace: Namespace, holder: int) -> None:
        with self._shared.lock:
            if holder in self._holders and self._holders.note_namespace(holder, namespace):
                self._shared.live_namespaces(self._holders.namespaces())

    def _accept_store(self, header: CallHeader, held: Held) -> Holder | None:
        with self._shared.lock:
            holder = None if self._shared.closed else self._holders.accept_store(header)
            taken = self._granter.take_back(holder.number, held) if holder is not None else 0
        if holder is None:
            self._shared.stats.add("calls_refused", reason="store")
        elif taken:
            self._shared.stats.add("grants_taken_back", taken, tier=Tier.HOST, reason="unnamed")
        return holder

    def _release_unnamed(self, holder: int, held: Held) -> None:
        books = self._shared.books
        have = books.held_by(holder)
        if len(have):
            books.release(books.unnamed(have, held.slots, held.generations), holder)

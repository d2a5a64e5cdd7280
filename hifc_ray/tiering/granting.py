"""Reserve, commit, abort: how a block gets into host memory, and how a grant that is lost is taken back."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from hifc_ray import points
from hifc_ray.client import Grant, StoreRequest, all_refused
from hifc_ray.messages import Held
from hifc_ray.tiering.shared import Shared
from hifc_ray.types import NO_SLOT, BlockState, Fate, FloatArray, Reserve, Tier

REMEMBERED_COMMITS = 4096  # a commit that is sent again within so many is known to be done


class Granter:
    """Open grants by (holder, sequence)."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._open: dict[tuple[int, int], Grant] = {}
        self._done: OrderedDict[tuple[int, int], int] = OrderedDict()

    def reserve(self, request: StoreRequest, holder: int, sequence: int) -> Grant:
        """Slots for the keys that are not in host memory, as far as there is room."""
        shared, books, n = self._shared, self._shared.books, len(request.keys)
        answers = np.full(n, Reserve.REFUSED, np.uint8)
        slots = np.full(n, NO_SLOT, np.int64)
        generations = np.zeros(n, np.uint64)
        points.reach("tier.reserve.before")
        with shared.lock:
            if shared.closed:
                return all_refused(request)
            answers[books.find(request.keys) != NO_SLOT] = Reserve.PRESENT
            rows = _first_of_each(request, np.flatnonzero(answers == Reserve.REFUSED))[: books.num_free]
            if len(rows):
                keys = [request.keys[row] for row in rows]
                positions = request.positions[rows]
                new = books.reserve(
                    keys, request.namespace, request.layout, positions, holder, request.turn, request.owner
                )
                answers[rows], slots[rows] = Reserve.GRANTED, new
                generations[rows] = books.table.generation[new]
                again = (answers == Reserve.REFUSED) & (books.find(request.keys) != NO_SLOT)
                answers[again] = Reserve.PRESENT  # named twice in one request
            refused = np.flatnonzero(answers == Reserve.REFUSED)
            shared.fates.note((request.keys[row] for row in refused), Fate.STORE_REFUSED)
            grant = Grant(shared.arena.incarnation, sequence, request, answers, slots, generations)
            if len(rows):
                self._open[holder, sequence] = grant
            shared.press()
        points.reach("tier.reserve.after")
        if len(refused):
            shared.stats.add("stores_refused", len(refused), tier=Tier.HOST, reason="no_room")
        return grant

    def commit(self, holder: int, incarnation: int, sequence: int, attention: FloatArray | None) -> int:
        """Publish a grant's slots; how many: none whose block was purged meanwhile.

        0, counted, for a grant that is unknown, aborted or of an old incarnation.
        """
        shared, books = self._shared, self._shared.books
        points.reach("tier.commit.before")
        with shared.lock:
            if shared.closed:
                return 0
            if incarnation == shared.arena.incarnation and (holder, sequence) in self._done:
                return self._done[holder, sequence]
            grant = self._open.pop((holder, sequence), None) if incarnation == shared.arena.incarnation else None
            if grant is not None:
                rows = np.array(grant.granted)
                rows = rows[self._still_filled(grant, rows, holder)]
                doomed = books.table.state[grant.slots[rows]] == BlockState.DOOMED
                books.abort(grant.slots[rows[doomed]])
                rows = rows[~doomed]
                books.commit(grant.slots[rows])
                if attention is not None:
                    books.hotness.seen(grant.slots[rows], attention[rows].astype(np.float32))
                self._done[holder, sequence] = len(rows)
                while len(self._done) > REMEMBERED_COMMITS:
                    self._done.popitem(last=False)
        points.reach("tier.commit.after")
        if grant is None:
            shared.stats.add("commits_refused", tier=Tier.HOST)
            return 0
        shared.stats.add("stored_blocks", len(rows), tier=Tier.HOST)
        shared.stats.add("stored_bytes", len(rows) * grant.request.layout.block_bytes, tier=Tier.HOST)
        return len(rows)

    def abort(self, holder: int, sequence: int) -> None:
        """Give a grant back, unpublished; one that is not open is passed over."""
        with self._shared.lock:
            grant = self._open.pop((holder, sequence), None)
            if grant is not None and not self._shared.closed:
                rows = np.array(grant.granted)
                self._shared.books.abort(grant.slots[rows[self._still_filled(grant, rows, holder)]])

    def take_back(self, holder: int, kept: Held) -> int:
        """Free what a holder has reserved, except `kept`; for a grant whose reply was lost, or a dead holder's. Locked.

        Returns the number of slots freed.
        """
        books = self._shared.books
        lost = books.unnamed(books.reserved_by(holder), kept.slots, kept.generations)
        if len(lost):
            books.abort(lost)
            gone = [
                name for name, grant in self._open.items() if name[0] == holder and np.isin(grant.slots, lost).any()
            ]
            for name in gone:
                del self._open[name]
        return len(lost)

    def forget(self, holder: int) -> None:
        """A holder is gone: another process may get its number and start counting anew. Locked."""
        for grants in (self._open, self._done):
            for name in [name for name in grants if name[0] == holder]:
                del grants[name]

    def _still_filled(self, grant: Grant, rows: np.ndarray, holder: int) -> np.ndarray:
        table, slots = self._shared.books.table, grant.slots[rows]
        filled = (table.state[slots] == BlockState.RESERVED) | (table.state[slots] == BlockState.DOOMED)
        ours = filled & (table.writer[slots] == holder)
        return np.asarray(ours & (table.generation[slots] == grant.generations[rows]))


def _first_of_each(request: StoreRequest, rows: np.ndarray) -> np.ndarray:
    """These rows without the second and further ones of one key."""
    first = {request.keys[row]: row for row in rows[::-1].tolist()}
    return np.array(sorted(first.values()), np.int64)

"""The books of the host tier: which block lies in which slot, who holds it, what may be evicted.

No lock in here and no I/O: the caller (`TieredCache`) holds its one lock around every method. All methods take
arrays of distinct slots and are atomic: they apply to all or raise before the first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import repeat

import numpy as np

from hifc_ray import points
from hifc_ray.errors import ConservationBroken
from hifc_ray.host.table import MAX_HOLDERS, TIER_WRITER, SlotTable, tag_of
from hifc_ray.hotness import Hotness
from hifc_ray.layout import BlockLayout
from hifc_ray.messages import Purge
from hifc_ray.policy import Features
from hifc_ray.types import (
    NO_SLOT,
    NOBODY,
    BlockState,
    BoolArray,
    ByteArray,
    Event,
    GenerationArray,
    IntArray,
    Key,
    Namespace,
    Owner,
    SlotArray,
    transition,
)

_BITS = [np.uint64(1 << holder) for holder in range(MAX_HOLDERS)]
_QUARANTINED = np.uint8(BlockState.QUARANTINED)  # an enum member costs numpy a microsecond
_PUBLISHED = (BlockState.RESIDENT, BlockState.LEASED, BlockState.DEMOTING)
_NAMED = (BlockState.RESERVED, *_PUBLISHED)  # in the map of keys


class HostBooks:
    """What lies where in the arena. Rebuilt from the slot table when a tier starts again."""

    def __init__(self, table: SlotTable) -> None:
        self.table = table
        self.hotness = Hotness(len(table))
        self.outstanding = np.zeros(len(table), np.int32)  # I/O of this process that touches the slot
        self._slot_of: dict[Key, int] = {}
        self._free: list[int] = []  # taken from the end
        self._rebuild()

    def features(self, slots: SlotArray) -> Features:
        """A copy of the history of the blocks in these slots, safe to score outside the lock."""
        return self.hotness.features(slots, self.table.fingerprint[slots])

    def find(self, keys: Sequence[Key]) -> SlotArray:
        """[keys] slot of each key, NO_SLOT where there is none. Blocks that are not published yet are found too."""
        return np.fromiter(map(self._slot_of.get, keys, repeat(NO_SLOT)), np.int64, len(keys))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_soon_free(self) -> int:
        """Free slots and those on their way out: else each store would start a batch while another is written."""
        return len(self._free) + int(np.count_nonzero(self.table.state == BlockState.DEMOTING))

    def reserve(
        self,
        keys: Sequence[Key],
        namespace: Namespace,
        layout: BlockLayout,
        positions: SlotArray,
        writer: int,
        turn: int,
        owners: Owner | Sequence[Owner] = NOBODY,
    ) -> SlotArray:
        """Give each key, none of which may be here, a free slot with a new generation. There must be that much room."""
        if len(keys) > len(self._free):
            raise ConservationBroken(f"{len(keys)} slots asked for, {len(self._free)} free")
        if len(set(keys)) < len(keys) or not self._slot_of.keys().isdisjoint(keys):
            raise ConservationBroken(f"a second slot asked for one key, among {len(keys)}")
        taken = self._free[len(self._free) - len(keys) :][::-1]
        slots = np.array(taken, np.int64)
        table = self.table
        after = transition(table.state[slots], Event.RESERVE)
        del self._free[len(self._free) - len(keys) :]
        table.generation[slots] += np.uint64(1)  # first: a reader of the old block must see that it is gone
        table.holders[slots] = 0
        table.position[slots] = positions
        table.writer[slots] = writer
        table.name(slots, keys, namespace, layout, owners)
        points.reach("host.reserve.named")
        table.state[slots] = after
        self._slot_of.update(zip(keys, taken, strict=True))
        self.hotness.born(slots, positions, turn)
        return slots

    def commit(self, slots: SlotArray) -> None:
        """Publish reserved slots. Those that somebody waits for are leased from the first moment."""
        self._apply(slots, Event.COMMIT)
        points.reach("host.commit.published")
        waited_for = slots[self.table.holders[slots] != 0]
        if len(waited_for):
            self._apply(waited_for, Event.LEASE)

    def abort(self, slots: SlotArray) -> None:
        """Take reserved and doomed slots back, unpublished; who waits for them sees that they are gone."""
        doomed = self.table.state[slots] == BlockState.DOOMED
        if doomed.any():
            self._apply(slots[doomed], Event.ABORT)
            self._free.extend(slots[doomed].tolist())
            slots = slots[~doomed]
        self._forget(slots, Event.ABORT)

    def lease(self, slots: SlotArray, holder: int) -> None:
        """Pin slots for a holder; a RESERVED slot is pinned for the moment it is published. A demotion is cancelled."""
        after = transition(self.table.state[slots], Event.LEASE)
        self.table.holders[slots] |= _BITS[holder]
        points.reach("host.lease.marked")
        self.table.state[slots] = after

    def release(self, slots: SlotArray, holder: int) -> None:
        """Undo `lease`. Slots that this holder does not hold (their block failed or was lost) are passed over.

        A slot whose block was purged meanwhile is free with its last release.
        """
        table, bit = self.table, _BITS[holder]
        holders = table.holders[slots]
        held = (holders & bit).nonzero()[0]
        if len(held) < len(slots):
            slots, holders = slots[held], holders[held]
        holders &= ~bit
        table.holders[slots] = holders
        points.reach("host.release.cleared")
        shared = holders.nonzero()[0]
        idle = np.delete(slots, shared) if len(shared) else slots
        after = transition(table.state[idle], Event.RELEASE)
        table.state[idle] = after
        withdrawn = (after == _QUARANTINED).nonzero()[0]
        if len(withdrawn):
            self._returned(idle[withdrawn])

    def held_by(self, holder: int) -> SlotArray:
        """Slots that a holder has pinned."""
        rows: SlotArray = (self.table.holders & _BITS[holder]).nonzero()[0]
        return rows

    def reserved_by(self, writer: int) -> SlotArray:
        """Slots that a writer is filling, doomed ones among them."""
        rows: SlotArray = (self._filled() & (self.table.writer == writer)).nonzero()[0]
        return rows

    def unnamed(self, slots: SlotArray, named: SlotArray, generations: GenerationArray) -> SlotArray:
        """Those of these slots that are not `named` as they are now: under their present generation."""
        generation = np.zeros(len(self.table), np.uint64)  # 0 is no generation of a slot that was ever given
        generation[named] = generations
        rest: SlotArray = slots[generation[slots] != self.table.generation[slots]]
        return rest

    def reserved(self) -> SlotArray:
        """Slots that somebody is filling, doomed ones among them."""
        rows: SlotArray = self._filled().nonzero()[0]
        return rows

    def mark_foreign(self, live: Collection[Namespace]) -> None:
        """Blocks of namespaces that are not `live` are the first to leave."""
        tags = np.array([tag_of(namespace) for namespace in live], np.uint64)
        self.hotness.foreign[:] = ~np.isin(self.table.tag, tags)

    def published(self) -> SlotArray:
        """Slots whose block is there to be found."""
        rows: SlotArray = np.isin(self.table.state, _PUBLISHED).nonzero()[0]
        return rows

    def evictable(self) -> SlotArray:
        """Slots whose block may leave now: published, held by nobody, with no I/O outstanding."""
        free_to_go = (self.table.state == BlockState.RESIDENT) & (self.outstanding == 0)
        rows: SlotArray = (free_to_go).nonzero()[0]
        return rows

    def still_evictable(self, slots: SlotArray, generations: IntArray) -> BoolArray:
        """[slots] True where the block that was seen at `generations` is still there and may leave."""
        table = self.table
        same = table.generation[slots] == generations.astype(np.uint64)
        result: BoolArray = same & (table.state[slots] == BlockState.RESIDENT) & (self.outstanding[slots] == 0)
        return result

    def demote(self, slots: SlotArray) -> None:
        """The blocks are on their way to flash; one write is outstanding on each."""
        self._apply(slots, Event.DEMOTE)
        self.outstanding[slots] += 1

    def leaving(self, slots: SlotArray) -> SlotArray:
        """Those of these slots whose block `written` will free: nobody has asked for it since `demote`."""
        demoting: SlotArray = slots[self.table.state[slots] == BlockState.DEMOTING]
        return demoting

    def written(self, slots: SlotArray) -> None:
        """The write has returned, well or not. Frees the slots that are `leaving`; the others stay."""
        self.outstanding[slots] -= 1
        self._returned(slots[self.table.state[slots] == BlockState.QUARANTINED])
        self._forget(self.leaving(slots), Event.WRITTEN)

    def evict(self, slots: SlotArray) -> None:
        """Drop resident blocks."""
        self._forget(slots, Event.EVICT)

    def select(self, what: Purge) -> SlotArray:
        """Slots with a block that is to be purged, published or not."""
        rows: SlotArray = (np.isin(self.table.state, _NAMED) & self.table.covered(what)).nonzero()[0]
        return rows

    def in_flight(self, what: Purge) -> SlotArray:
        """Slots of blocks that are to be purged, or were, with I/O outstanding: a write may yet bring one to flash."""
        rows: SlotArray = ((self.outstanding > 0) & self.table.covered(what)).nonzero()[0]
        return rows

    def purge(self, slots: SlotArray) -> None:
        """Withdraw blocks: from here on no lookup finds them, nothing publishes them, and `holds` denies them.

        A slot is free at once, or when its I/O has returned, its holders have released, its writer has let go.
        """
        transition(self.table.state[slots], Event.PURGE)  # all or nothing
        reserved = self.table.state[slots] == BlockState.RESERVED
        reading = reserved & (self.table.writer[slots] == TIER_WRITER)
        self._forget(slots[reading], Event.GIVE_UP)
        self._forget(slots[reserved & ~reading], Event.PURGE)
        published = slots[~reserved]
        self._withdraw(published, Event.PURGE)  # who holds one may be copying it: it stays on the books
        self._returned(published)

    def reading(self, slots: SlotArray) -> None:
        """A read from flash into these reserved slots is outstanding."""
        self.outstanding[slots] += 1

    def read_returned(self, slots: SlotArray) -> SlotArray:
        """The read has returned. Returns the slots that are still reserved for it: commit or abort these."""
        self.outstanding[slots] -= 1
        self._returned(slots[self.table.state[slots] == BlockState.QUARANTINED])
        waiting: SlotArray = slots[self.table.state[slots] == BlockState.RESERVED]
        return waiting

    def give_up(self, slots: SlotArray) -> SlotArray:
        """Stop waiting for I/O on these slots: they stay out of use until it returns. Returns those that were given up.

        A block whose write is late but which somebody holds stays; its outstanding write keeps it from eviction.
        """
        states = self.table.state[slots]
        waiting: SlotArray = slots[(states == BlockState.RESERVED) | (states == BlockState.DEMOTING)]
        self._forget(waiting, Event.GIVE_UP)
        return waiting

    def counts(self) -> dict[str, int]:
        """Slots by state, named in lower case."""
        number = np.bincount(self.table.state, minlength=len(BlockState))
        return {state.name.lower(): int(number[state]) for state in BlockState}

    def check(self) -> None:
        """The conservation law: every slot is free or named by a key, once; leases are held."""
        state, counts = self.table.state, self.counts()
        free, named = len(self._free), len(self._slot_of)
        if free != counts["absent"] or len(set(self._free)) != free or (state[self._free] != BlockState.ABSENT).any():
            raise ConservationBroken(f"{free} slots on the free list, {counts['absent']} absent in the table")
        quarantined, doomed = counts["quarantined"], counts["doomed"]
        if free + named + quarantined + doomed != len(state):
            raise ConservationBroken(
                f"free {free} + named {named} + quarantined {quarantined} + doomed {doomed} != {len(state)}"
            )
        leased, held = state == BlockState.LEASED, self.table.holders != 0
        unheld = int((leased & ~held).sum())
        unleased = int((held & ~leased & (state != BlockState.RESERVED) & (state != BlockState.QUARANTINED)).sum())
        if unheld or unleased:
            raise ConservationBroken(
                f"{unheld} leased slots without a holder, {unleased} held slots that are not leased"
            )
        waiting = (state == BlockState.DEMOTING) | ((state == BlockState.QUARANTINED) & ~held)
        stranded = int((waiting & (self.outstanding == 0)).sum())
        if stranded:
            raise ConservationBroken(f"{stranded} slots wait for I/O that is not outstanding")
        if (self.outstanding < 0).any():
            raise ConservationBroken("more I/O returned than was begun")
        wrong = [slot for key, slot in self._slot_of.items() if self.table.key(slot) != key]
        if wrong:
            raise ConservationBroken(f"{len(wrong)} slots whose line names another key, first {wrong[0]}")

    def _filled(self) -> BoolArray:
        state = self.table.state
        return np.asarray((state == BlockState.RESERVED) | (state == BlockState.DOOMED))

    def _apply(self, slots: SlotArray, event: Event) -> None:
        self.table.state[slots] = transition(self.table.state[slots], event)

    def _forget(self, slots: SlotArray, event: Event) -> None:
        """Apply an event that ends the block's life in its slot."""
        self._withdraw(slots, event)
        self.table.holders[slots] = 0
        if event not in (Event.GIVE_UP, Event.PURGE):
            self._free.extend(slots.tolist())

    def _withdraw(self, slots: SlotArray, event: Event) -> None:
        """Apply an event after which no key leads to these slots."""
        self._apply(slots, event)
        points.reach("host.forget.withdrawn")
        for slot in slots.tolist():
            del self._slot_of[self.table.key(slot)]

    def _returned(self, slots: SlotArray) -> None:
        """Free those of these quarantined slots that nothing and nobody touches any more."""
        done = slots[(self.outstanding[slots] == 0) & (self.table.holders[slots] == 0)]
        self._apply(done, Event.RETURNED)
        self._free.extend(done.tolist())

    def _rebuild(self) -> None:
        """Read the table as a dead incarnation left it: its own I/O died with it, its holders may live."""
        table = self.table
        state: ByteArray = table.state
        ours = (state == BlockState.RESERVED) & (table.writer == TIER_WRITER)
        state[ours | ((state == BlockState.QUARANTINED) & (table.holders == 0))] = BlockState.ABSENT
        published = np.isin(state, _PUBLISHED)
        state[published] = np.where(table.holders[published] != 0, BlockState.LEASED, BlockState.RESIDENT)
        table.holders[np.isin(state, (BlockState.ABSENT, BlockState.DOOMED))] = 0
        self._free = np.flatnonzero(state == BlockState.ABSENT)[::-1].tolist()
        live = np.isin(state, _NAMED).nonzero()[0]
        for slot in live.tolist():
            self._slot_of[table.key(slot)] = slot
        if len(live):
            self.hotness.born(live, table.position[live].astype(np.int64), turn=0)

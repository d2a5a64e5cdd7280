"""Demotion: under pressure the policy names victims; those that flash lacks are written there in groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hifc_ray import points
from hifc_ray.errors import FlashFault
from hifc_ray.flash import Address, FlashBlock
from hifc_ray.policy import AdmissionPolicy, EvictionPolicy
from hifc_ray.tiering.shared import Shared
from hifc_ray.transfer import Channel, Priority, Ticket
from hifc_ray.types import Fate, Key, SlotArray, Tier

GROUP_BLOCKS = 4  # blocks of one append: large enough to be sequential, small enough to free slots early


class Demoter:
    """Owns the host → flash channel and the choice of what leaves host memory."""

    def __init__(self, shared: Shared, eviction: EvictionPolicy, admission: AdmissionPolicy) -> None:
        flash = shared.config.flash
        self._shared = shared
        self._eviction = eviction
        self._admission = admission
        self._deadline_s = flash.write_deadline_s
        self._channel = Channel(
            "flash-write", flash.write_threads, max(1, flash.queue_blocks // GROUP_BLOCKS), shared.clock
        )
        self._groups: dict[Ticket[Any], SlotArray] = {}  # guarded by shared.lock

    def make_room(self) -> int:
        """Evict to the high watermark if free slots are under the low one. Returns blocks that left or are leaving.

        Victims are scored on a snapshot without the lock, and each is checked again under it.
        """
        shared, books = self._shared, self._shared.books
        with shared.lock:
            soon_free = books.num_soon_free
            if soon_free >= shared.low_slots:
                return 0
            rows = books.evictable()
            generations = books.table.generation[rows]
            features = books.hotness.features(rows)
        if not len(rows):
            return 0
        order = self._eviction.victims(features, shared.high_slots - soon_free)
        return self._evict(rows[order], generations[order])

    def flush(self, timeout_s: float) -> bool:
        """Write all that flash lacks and can take, the most recently used last to be lost. True if all got there."""
        shared, books = self._shared, self._shared.books
        if shared.flash is None:
            return True
        with shared.lock:
            rows = books.evictable()
            generations = books.table.generation[rows]
            features = books.hotness.features(rows)
        order = self._eviction.victims(features, len(rows))
        end = shared.clock.now() + timeout_s
        for start in range(0, len(order), GROUP_BLOCKS):
            group = order[start : start + GROUP_BLOCKS]
            while self._channel.room == 0 and shared.clock.now() < end:
                self._channel.idle(0.05)
            self._evict(rows[group], generations[group])
        return self._channel.idle(max(0.0, end - shared.clock.now()))

    def expire(self) -> None:
        """End the waiting for writes past their deadline: the blocks are lost, their slots wait for the write."""
        shared = self._shared
        for ticket in self._channel.overdue():
            with shared.lock:
                slots = self._groups.get(ticket)
                if slots is None:
                    continue
                if ticket.withdrawn:
                    del self._groups[ticket]
                    keys = self._written(slots)
                else:
                    gone = shared.books.give_up(slots)
                    keys = shared.keys(gone.tolist())
                shared.fates.note(keys, Fate.WRITE_FAILED)
            shared.stats.add("write_deadlines", tier=Tier.FLASH, reason="queued" if ticket.withdrawn else "running")

    def idle(self, timeout_s: float) -> bool:
        return self._channel.idle(timeout_s)

    def close(self, timeout_s: float) -> bool:
        return self._channel.close(timeout_s)

    def _evict(self, victims: SlotArray, generations: np.ndarray) -> int:
        shared, books, flash = self._shared, self._shared.books, self._shared.flash
        groups: list[SlotArray] = []
        points.reach("tier.evict.before")
        with shared.lock:
            victims = victims[books.still_evictable(victims, generations)]
            keys = shared.keys(victims.tolist())
            backed = np.array([a is not None for a in flash.locate(keys)] if flash else [False] * len(keys), np.bool_)
            dropped = self._drop(victims[backed], "on_flash", None)
            dirty = victims[~backed]
            if flash is None:
                dropped += self._drop(dirty, "no_flash", Fate.EVICTED)
            else:
                nobody = books.hotness.features(dirty[:0])
                admitted = self._admission.admit(books.hotness.features(dirty), nobody, 1.0)
                dropped += self._drop(dirty[~admitted], "not_admitted", Fate.NOT_ADMITTED)
                # What the queue cannot take stays where it is; stores are refused meanwhile, not lost on the way.
                leaving = dirty[admitted][: self._channel.room * GROUP_BLOCKS]
                books.demote(leaving)
                groups = [leaving[i : i + GROUP_BLOCKS] for i in range(0, len(leaving), GROUP_BLOCKS)]
        for group in groups:
            self._write(group)
        points.reach("tier.evict.after")
        return dropped + sum(len(group) for group in groups)

    def _drop(self, slots: SlotArray, reason: str, fate: Fate | None) -> int:
        if not len(slots):
            return 0
        if fate is not None:
            self._shared.fates.note(self._shared.keys(slots.tolist()), fate)
        self._shared.books.evict(slots)
        self._shared.stats.add("evicted_blocks", len(slots), tier=Tier.HOST, reason=reason)
        return len(slots)

    def _write(self, slots: SlotArray) -> None:
        shared, flash, table = self._shared, self._shared.flash, self._shared.books.table
        assert flash is not None
        points.reach("tier.demote.before")
        blocks = []
        for slot in slots.tolist():
            layout, buffer = table.layout(slot), shared.arena.slot(slot)
            blocks.append(
                FlashBlock(
                    key=table.key(slot),
                    namespace=table.namespace(slot),
                    layout_text=layout.describe(),
                    stripe_bytes=layout.stripe_bytes,
                    num_stripes=layout.layers,
                    position=int(table.position[slot]),
                    buffer=buffer[: layout.block_bytes],
                )
            )
        with shared.lock:
            ticket = self._channel.submit(
                lambda: flash.append(blocks),
                lambda ticket: self._done(ticket, slots),
                deadline_s=self._deadline_s,
                priority=Priority.BACKGROUND,
            )
            if ticket is None:
                shared.fates.note(self._written(slots), Fate.WRITE_FAILED)
            else:
                self._groups[ticket] = slots
        if ticket is None:
            shared.stats.add("writes_refused", len(slots), tier=Tier.FLASH, reason="queue")

    def _done(self, ticket: Ticket[list[Address]], slots: SlotArray) -> None:
        shared, error = self._shared, ticket.error
        with shared.lock:
            self._groups.pop(ticket, None)
            keys = self._written(slots)
            if error is not None:
                shared.fates.note(keys, Fate.WRITE_FAILED)
        points.reach("tier.demote.after")
        if error is None:
            shared.stats.add("evicted_blocks", len(keys), tier=Tier.HOST, reason="demoted")
        else:
            expected = isinstance(error, FlashFault | OSError)
            reason = type(error).__name__ if expected else "bug"
            shared.stats.add("write_failures", len(slots), tier=Tier.FLASH, reason=reason)

    def _written(self, slots: SlotArray) -> Sequence[Key]:
        """The write is over. Returns the keys of the blocks that left host memory with it."""
        books = self._shared.books
        leaving = books.leaving(slots)
        keys = self._shared.keys(leaving.tolist())
        books.written(slots)
        return keys

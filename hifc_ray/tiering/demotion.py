"""Demotion: under pressure the policy names victims; those that flash lacks are written there in groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from hifc_ray import points
from hifc_ray.errors import FlashFault
from hifc_ray.flash import Address, FlashBlock, FlashStore, Volume, record_bytes
from hifc_ray.policy import EvictionPolicy, Features
from hifc_ray.tiering.shared import Shared
from hifc_ray.transfer import Channel, Priority, Ticket, every
from hifc_ray.types import BoolArray, Fate, Key, SlotArray, Tier

GROUP_BLOCKS = 4  # blocks of one append: large enough to be sequential, small enough to free slots early
INCUMBENTS = 64  # of the blocks that would leave flash next, shown to admission

Group = tuple[SlotArray, int]  # slots, and the volume that they are written to


class Demoter:
    """Owns the host → flash channels, one a device, and the choice of what leaves host memory."""

    def __init__(self, shared: Shared, eviction: EvictionPolicy) -> None:
        flash = shared.config.flash
        self._shared = shared
        self._eviction = eviction
        self._deadline_s = flash.write_deadline_s
        limit = max(1, flash.queue_blocks // GROUP_BLOCKS)
        self._channels = [
            Channel(f"flash-write-{volume.number}", flash.write_threads, limit, shared.clock)
            for volume in (shared.flash.volumes if shared.flash is not None else ())
        ]
        self._groups: dict[Ticket[Any], Group] = {}  # guarded by shared.lock
        self._under_way = Counter[int]()  # by tenant: bytes of records that are not yet written; guarded by shared.lock

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
            features = books.features(rows)
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
            features = books.features(rows)
        order = self._eviction.victims(features, len(rows))
        end = shared.clock.now() + timeout_s
        for start in range(0, len(order), GROUP_BLOCKS):
            group = order[start : start + GROUP_BLOCKS]
            while not self._has_room() and shared.clock.now() < end:
                self.idle(0.05)
            self._evict(rows[group], generations[group])
        return self.idle(max(0.0, end - shared.clock.now()))

    def expire(self) -> None:
        """End the waiting for writes past their deadline: the blocks are lost, their slots wait for the write."""
        for number, channel in enumerate(self._channels):
            for ticket in channel.overdue():
                if not ticket.withdrawn or channel.is_stuck:
                    self._volume(number).stalled()
                self._give_up(ticket)

    def idle(self, timeout_s: float) -> bool:
        return every(self._channels, Channel.idle, timeout_s, self._shared.clock)

    def close(self, timeout_s: float) -> bool:
        return every(self._channels, Channel.close, timeout_s, self._shared.clock)

    def _queues(self) -> dict[int, tuple[int, int]]:
        """Of each volume that takes blocks: groups that its queue has room for, and groups that wait or run."""
        numbered = enumerate(self._channels)
        return {n: (channel.room, channel.num_pending) for n, channel in numbered if self._volume(n).writable}

    def _has_room(self) -> bool:
        """Would some device take a group, as far as its queue goes? True where there is none: then nothing waits."""
        queues = self._queues()
        return not queues or any(room for room, _ in queues.values())

    def _volume(self, number: int) -> Volume:
        assert self._shared.flash is not None
        return self._shared.flash.volumes[number]

    def _give_up(self, ticket: Ticket[Any]) -> None:
        shared = self._shared
        with shared.lock:
            if ticket not in self._groups:
                return
            slots, _ = self._groups[ticket]
            if ticket.withdrawn:
                del self._groups[ticket]
                keys = self._written(slots)
            else:
                gone = shared.books.give_up(slots)
                keys = shared.keys(gone.tolist())
            shared.fates.note(keys, Fate.WRITE_FAILED)
        shared.stats.add("write_deadlines", tier=Tier.FLASH, reason="queued" if ticket.withdrawn else "running")

    def _evict(self, victims: SlotArray, generations: np.ndarray) -> int:
        shared, books, flash = self._shared, self._shared.books, self._shared.flash
        groups: list[Group] = []
        points.reach("tier.evict.before")
        incumbents = flash.features_of_next(INCUMBENTS) if flash is not None else None
        with shared.lock:
            victims = victims[books.still_evictable(victims, generations)]
            keys = shared.keys(victims.tolist())
            backed = np.array([a is not None for a in flash.locate(keys)] if flash else [False] * len(keys), np.bool_)
            dropped = self._drop(victims[backed], "on_flash", None)
            dirty = victims[~backed]
            if flash is None or incumbents is None:
                dropped += self._drop(dirty, "no_flash", Fate.EVICTED)
            else:
                groups, refused = self._leaving(flash, dirty, incumbents)
                dropped += refused
        for group in groups:
            self._write(group)
        points.reach("tier.evict.after")
        return dropped + sum(len(slots) for slots, _ in groups)

    def _leaving(self, flash: FlashStore, dirty: SlotArray, incumbents: Features) -> tuple[list[Group], int]:
        """Which of these blocks go to flash, on their way now, and how many are dropped because they may not.

        What the queues cannot take stays where it is; stores are refused meanwhile, not lost on the way.
        """
        features = self._shared.books.features(dirty)
        admitted = self._shared.admission.admit(features, incumbents, flash.budget_level)
        refused = self._refuse(dirty[~admitted], "policy")
        groups: list[Group] = []
        wanted = dirty[admitted]
        queues = self._queues()
        for begin in range(0, len(wanted), GROUP_BLOCKS):
            slots = wanted[begin : begin + GROUP_BLOCKS]
            roomy = {number: queued for number, (room, queued) in queues.items() if room}
            if queues and not roomy:
                break
            within = self._within_quota(flash, slots)
            refused += self._refuse(slots[~within], "quota")
            slots = slots[within]
            volume = flash.draw(sum(self._record_bytes(slots)), roomy) if len(slots) else None
            if volume is None:
                if len(roomy) < len(queues):
                    break  # a device whose queue is full may yet take them
                refused += self._refuse(slots, flash.why_not())
                continue
            room, queued = queues[volume]
            queues[volume] = room - 1, queued + 1
            self._set_off(slots)
            groups.append((slots, volume))
        return groups, refused

    def _within_quota(self, flash: FlashStore, slots: SlotArray) -> BoolArray:
        """[slots] Which of these blocks their tenants have room for on flash, what is under way counted."""
        table, within = self._shared.books.table, np.ones(len(slots), np.bool_)
        if not self._shared.config.flash.tenant_quota_bytes:
            return within
        asked = self._under_way.copy()
        for row, (slot, size) in enumerate(zip(slots.tolist(), self._record_bytes(slots), strict=True)):
            tenant = table.owner(slot).tenant
            within[row] = flash.has_room_for(tenant, asked[tenant] + size)
            asked[tenant] += size if within[row] else 0
        return within

    def _set_off(self, slots: SlotArray) -> None:
        """These blocks are on their way to flash, until `_written`."""
        self._shared.stats.add("admitted_bytes", self._bytes(slots), tier=Tier.FLASH)
        self._shared.books.demote(slots)
        self._count(slots, 1)

    def _count(self, slots: SlotArray, sign: int) -> None:
        table = self._shared.books.table
        for slot, size in zip(slots.tolist(), self._record_bytes(slots), strict=True):
            tenant = table.owner(slot).tenant
            self._under_way[tenant] += sign * size
            if not self._under_way[tenant]:
                del self._under_way[tenant]

    def _record_bytes(self, slots: SlotArray) -> list[int]:
        """What each of these blocks takes on flash."""
        table = self._shared.books.table
        return [record_bytes(table.layout(slot)) for slot in slots.tolist()]

    def _bytes(self, slots: SlotArray) -> int:
        """Of the blocks in these slots."""
        table = self._shared.books.table
        return sum(table.layout(slot).block_bytes for slot in slots.tolist())

    def _refuse(self, slots: SlotArray, reason: str) -> int:
        """Drop blocks that may not be written."""
        if len(slots):
            self._shared.stats.add("refused_bytes", self._bytes(slots), tier=Tier.FLASH, reason=reason)
        return self._drop(slots, "not_admitted", Fate.NOT_ADMITTED)

    def _drop(self, slots: SlotArray, reason: str, fate: Fate | None) -> int:
        if not len(slots):
            return 0
        if fate is not None:
            self._shared.fates.note(self._shared.keys(slots.tolist()), fate)
        self._shared.books.evict(slots)
        self._shared.stats.add("evicted_blocks", len(slots), tier=Tier.HOST, reason=reason)
        return len(slots)

    def _write(self, group: Group) -> None:
        shared, flash, table = self._shared, self._shared.flash, self._shared.books.table
        assert flash is not None
        slots, volume = group
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
                    owner=table.owner(slot),
                )
            )
        with shared.lock:
            ticket = self._channels[volume].submit(
                lambda: flash.append(blocks, volume),
                lambda ticket: self._done(ticket, slots),
                deadline_s=self._deadline_s,
                priority=Priority.BACKGROUND,
            )
            if ticket is None:
                shared.fates.note(self._written(slots), Fate.WRITE_FAILED)
            else:
                self._groups[ticket] = group
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
        self._count(slots, -1)
        leaving = books.leaving(slots)
        keys = self._shared.keys(leaving.tolist())
        books.written(slots)
        return keys

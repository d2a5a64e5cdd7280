"""Promotion: reads from flash straight into slots that were reserved for them, on the threads of one channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hifc_ray.errors import CorruptRecord, StaleAddress
from hifc_ray.flash import Address
from hifc_ray.tiering.shared import Shared
from hifc_ray.transfer import Channel, Priority, Ticket
from hifc_ray.types import Fate, Key, Namespace, SlotArray, Tier


@dataclass(frozen=True)
class Promotion:
    """One block on its way from flash to a slot."""

    key: Key
    namespace: Namespace
    address: Address
    slot: int


class Promoter:
    """Owns the flash → host channel. Whatever goes wrong with a read is a miss and a counter."""

    def __init__(self, shared: Shared) -> None:
        flash = shared.config.flash
        self._shared = shared
        self._deadline_s = flash.read_deadline_s
        self._channel = Channel("flash-read", flash.read_threads, flash.queue_blocks, shared.clock)
        self._slots: dict[Ticket[Any], Promotion] = {}  # guarded by shared.lock

    @property
    def room(self) -> int:
        """Reads that may be started now."""
        return self._channel.room

    def start(self, promotions: Sequence[Promotion]) -> None:
        """Queue reads into RESERVED slots, in order of use. Without the lock; those refused are aborted."""
        for promotion in promotions:
            self._start(promotion)

    def expire(self) -> None:
        """End the waiting for reads past their deadline: a miss now, the slot out of use until the read returns."""
        for ticket in self._channel.overdue():
            with self._shared.lock:
                promotion = self._slots.get(ticket)
                if promotion is None:
                    continue
                slots = np.array([promotion.slot], np.int64)
                if ticket.withdrawn:
                    del self._slots[ticket]
                    self._finish(slots, published=False)
                else:
                    self._shared.books.give_up(slots)
                self._shared.fates.note([promotion.key], Fate.LATE)
            self._shared.stats.add(
                "read_deadlines", tier=Tier.FLASH, reason="queued" if ticket.withdrawn else "running"
            )

    def idle(self, timeout_s: float) -> bool:
        return self._channel.idle(timeout_s)

    def close(self, timeout_s: float) -> bool:
        return self._channel.close(timeout_s)

    def _start(self, promotion: Promotion) -> None:
        shared = self._shared
        flash, buffer = shared.flash, shared.arena.slot(promotion.slot)
        assert flash is not None
        slots = np.array([promotion.slot], np.int64)
        with shared.lock:
            shared.books.reading(slots)
            ticket = self._channel.submit(
                lambda: flash.read(promotion.key, promotion.namespace, promotion.address, buffer),
                lambda ticket: self._done(ticket, promotion),
                deadline_s=self._deadline_s,
                priority=Priority.REQUEST,
            )
            if ticket is None:
                self._finish(slots, published=False)
                shared.fates.note([promotion.key], Fate.LATE)
            else:
                self._slots[ticket] = promotion
        if ticket is None:
            shared.stats.add("reads_refused", tier=Tier.FLASH, reason="queue")

    def _done(self, ticket: Ticket[int], promotion: Promotion) -> None:
        shared, error = self._shared, ticket.error
        with shared.lock:
            self._slots.pop(ticket, None)
            published = self._finish(np.array([promotion.slot], np.int64), published=error is None)
            if error is not None:
                shared.fates.note([promotion.key], _fate_of(error))
        if error is not None:
            # A corrupt record is counted by the store that found it.
            if not isinstance(error, CorruptRecord):
                shared.stats.add("read_failures", tier=Tier.FLASH, reason=type(error).__name__)
        else:
            shared.stats.add("promoted_blocks", published, tier=Tier.FLASH)

    def _finish(self, slots: SlotArray, *, published: bool) -> int:
        """Publish or give back those of these slots that are still waited for; returns how many there are."""
        books = self._shared.books
        waiting = books.read_returned(slots)
        if published:
            books.commit(waiting)
        else:
            books.abort(waiting)
        return len(waiting)


def _fate_of(error: BaseException) -> Fate:
    if isinstance(error, CorruptRecord):
        return Fate.CORRUPT
    return Fate.DROPPED if isinstance(error, StaleAddress) else Fate.READ_FAILED

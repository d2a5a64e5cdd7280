"""Promotion: reads from flash straight into slots that were reserved for them, on the threads of a channel a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hifc_ray.errors import CorruptRecord, StaleAddress
from hifc_ray.flash import Address, BlockRead, merge, volume_of
from hifc_ray.tiering.shared import Shared
from hifc_ray.transfer import Channel, Priority, Ticket, every
from hifc_ray.types import Fate, Key, Namespace, SlotArray, Tier


@dataclass(frozen=True)
class Promotion:
    """One block on its way from flash to a slot."""

    key: Key
    namespace: Namespace
    address: Address
    slot: int


Run = list[Promotion]  # neighbours on flash: one read


class Promoter:
    """Owns the flash → host channels. Whatever goes wrong with a read is a miss and a counter."""

    def __init__(self, shared: Shared) -> None:
        assert shared.flash is not None
        flash = shared.config.flash
        self._shared = shared
        self._flash = shared.flash
        self._deadline_s = flash.read_deadline_s
        self._channels = [
            Channel(f"flash-read-{volume.number}", flash.read_threads, flash.queue_blocks, shared.clock)
            for volume in self._flash.volumes
        ]
        self._runs: dict[Ticket[Any], Run] = {}  # guarded by shared.lock

    def fitting(self, addresses: Sequence[Address]) -> int:
        """How many of these reads, from the first on, may be started now. A run of them takes one place at most."""
        room: dict[int, int] = {}
        for count, address in enumerate(addresses):
            volume = volume_of(address)
            if volume not in room:
                room[volume] = self._channels[volume].room
            if not room[volume]:
                return count
            room[volume] -= 1
        return len(addresses)

    def start(self, promotions: Sequence[Promotion]) -> None:
        """Queue reads into RESERVED slots, in order of use. Without the lock; those refused are aborted."""
        for group in merge([promotion.address for promotion in promotions]):
            self._start([promotions[row] for row in group])

    def expire(self) -> None:
        """End the waiting for reads past their deadline: a miss now, the slots out of use until the read returns."""
        for volume, channel in zip(self._flash.volumes, self._channels, strict=True):
            for ticket in channel.overdue():
                if not ticket.withdrawn or channel.is_stuck:
                    volume.stalled()
                self._give_up(ticket)

    def idle(self, timeout_s: float) -> bool:
        return every(self._channels, Channel.idle, timeout_s, self._shared.clock)

    def close(self, timeout_s: float) -> bool:
        return every(self._channels, Channel.close, timeout_s, self._shared.clock)

    def _give_up(self, ticket: Ticket[Any]) -> None:
        shared = self._shared
        with shared.lock:
            run = self._runs.get(ticket)
            if run is None:
                return
            if ticket.withdrawn:
                del self._runs[ticket]
                self._finish(_slots(run), published=False)
            else:
                shared.books.give_up(_slots(run))
            shared.fates.note([promotion.key for promotion in run], Fate.LATE)
        reason = "queued" if ticket.withdrawn else "running"
        shared.stats.add("read_deadlines", len(run), tier=Tier.FLASH, reason=reason)

    def _start(self, run: Run) -> None:
        shared = self._shared
        reads = [BlockRead(p.key, p.namespace, p.address, shared.arena.slot(p.slot)) for p in run]
        with shared.lock:
            shared.books.reading(_slots(run))
            ticket = self._channels[volume_of(run[0].address)].submit(
                lambda: self._flash.read_run(reads),
                lambda ticket: self._done(ticket, run),
                deadline_s=self._deadline_s,
                priority=Priority.REQUEST,
            )
            if ticket is None:
                self._finish(_slots(run), published=False)
                shared.fates.note([promotion.key for promotion in run], Fate.LATE)
            else:
                self._runs[ticket] = run
        if ticket is None:
            shared.stats.add("reads_refused", len(run), tier=Tier.FLASH, reason="queue")

    def _done(self, ticket: Ticket[list[int | Exception]], run: Run) -> None:
        shared = self._shared
        results: Sequence[object] = ticket.result or [ticket.error for _ in run]
        good = [p for p, result in zip(run, results, strict=True) if isinstance(result, int)]
        bad = [(p, result) for p, result in zip(run, results, strict=True) if isinstance(result, BaseException)]
        with shared.lock:
            self._runs.pop(ticket, None)
            published = self._finish(_slots(good), published=True)
            self._finish(_slots([promotion for promotion, _ in bad]), published=False)
            for promotion, error in bad:
                shared.fates.note([promotion.key], _fate_of(error))
        shared.stats.add("promoted_blocks", published, tier=Tier.FLASH)
        for _, error in bad:
            # A corrupt record is counted by the store that found it.
            if not isinstance(error, CorruptRecord):
                shared.stats.add("read_failures", tier=Tier.FLASH, reason=type(error).__name__)

    def _finish(self, slots: SlotArray, *, published: bool) -> int:
        """Publish or give back those of these slots that are still waited for; returns how many there are."""
        if not len(slots):
            return 0
        books = self._shared.books
        waiting = books.read_returned(slots)
        if published:
            books.commit(waiting)
        else:
            books.abort(waiting)
        return len(waiting)


def _slots(run: Run) -> SlotArray:
    return np.array([promotion.slot for promotion in run], np.int64)


def _fate_of(error: BaseException) -> Fate:
    if isinstance(error, CorruptRecord):
        return Fate.CORRUPT
    return Fate.DROPPED if isinstance(error, StaleAddress) else Fate.READ_FAILED

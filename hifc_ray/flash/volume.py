"""A volume: one device with a log of its own, written by one pen and read by as many threads as like."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from hifc_ray import points
from hifc_ray.clock import Clock
from hifc_ray.config import FlashConfig
from hifc_ray.errors import FlashFault, FlashFull, NoRoom, StaleAddress
from hifc_ray.flash import entries as columns
from hifc_ray.flash import writer
from hifc_ray.flash.address import Place, segment_number
from hifc_ray.flash.breaker import Breaker, BreakerState
from hifc_ray.flash.budget import WriteBudget
from hifc_ray.flash.device import Device, pages
from hifc_ray.flash.entries import EntryArray
from hifc_ray.flash.format import PURGES_NAME
from hifc_ray.flash.index import Index
from hifc_ray.flash.log import SegmentLog
from hifc_ray.flash.purges import Purges, Selector
from hifc_ray.flash.quarantine import Fault, Quarantine, page_text
from hifc_ray.flash.reading import BlockRead
from hifc_ray.flash.reclaimer import Reclaimer
from hifc_ray.flash.record import EncodedBlock
from hifc_ray.flash.recovery import Recovery, RecoveryReport
from hifc_ray.flash.segment import Segment
from hifc_ray.flash.small_files import SmallFiles
from hifc_ray.flash.traffic import Traffic
from hifc_ray.flash.verify import Mismatch
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.policy import Valuing
from hifc_ray.stats import Stats
from hifc_ray.types import Tier

log = logging.getLogger(__name__)

_ERASE_BYTES = 1 << 20


@dataclass(frozen=True)
class Parts:
    """What the volumes of a store share. `lock` guards index and segments and is never held during I/O."""

    config: FlashConfig
    index: Index
    stats: Stats
    clock: Clock
    policy: Valuing
    lock: threading.Lock


class Volume:
    """Safe from any thread. `_pen` is held by the one thread that takes room or begins a segment; before `lock`."""

    recovered: RecoveryReport

    def __init__(self, number: int, device: Device, parts: Parts, limit_bytes: int, segment_bytes: int) -> None:
        config = parts.config
        self.number = number
        self.device = device
        self.read_only = config.read_only
        self.draining = False
        self._retired = False
        self.breaker = Breaker(config.max_faults, config.fault_window_s, config.retry_s, parts.clock, self._tell)
        self.budget = WriteBudget(_budget_bytes(config, device), parts.clock)
        self.pending_bytes = 0  # handed to `append` and not yet written; a hint for who spreads
        self._parts = parts
        self._traffic = Traffic(parts.clock)
        self._pen = threading.Lock()
        self._closed = self._let_go = False
        self._full_until_s = -math.inf
        self.log = SegmentLog(
            number, device, parts.index, parts.stats, parts.lock, limit_bytes, segment_bytes, config.filter_fpr,
            self._count_written,
        )  # fmt: skip
        self.files = SmallFiles(device, self.log, config.read_only, self._count_written)
        self.quarantine = Quarantine(self.files, parts.clock)
        self._purges = Purges(self.files)
        self.reclaimer = Reclaimer(
            number, self.log, parts.index, parts.stats, parts.lock, config.carry_share, parts.policy
        )

    @property
    def path(self) -> str:
        return self.device.path

    @property
    def direct(self) -> bool:
        """Does I/O go past the page cache?"""
        return self.device.direct

    @property
    def state(self) -> str:
        """ok, read-only, draining, out (taken out by its breaker) or closed."""
        if self._closed:
            return "closed"
        if not self.breaker.allows():
            return "out"
        return "draining" if self.draining else "read-only" if self.read_only or self._retired else "ok"

    @property
    def fill(self) -> float:
        """Share of its limit that is in use."""
        return self.log.used_bytes / self.log.limit_bytes

    @property
    def writable(self) -> bool:
        return self.state == "ok"

    @property
    def lately_full(self) -> bool:
        """Has it refused blocks for want of room within `retry_s`? Then others come first."""
        return self._parts.clock.now() < self._full_until_s

    def recover(self) -> None:
        """Find again what lies here. Raises `NewerFormat` with nothing touched, `NoRoom`."""
        parts = self._parts
        self.files.adopt(self.device.sizes())
        readable = self._purges.load()
        if readable:
            self.log.number_after(self._purges.last_sequence)
        else:
            log.error("%s: %s is damaged, so all that was stored before counts as purged", self.path, PURGES_NAME)
            parts.stats.add("corrupt", tier=Tier.FLASH, reason="purges")
        recovery = Recovery(self.device, self.log, parts.index, parts.stats, self._purges, self.number, self.read_only)
        self.recovered = recovery.run()
        if self.read_only:
            return
        self.reclaimer.make_room(0)
        if not readable:
            self.files.put(PURGES_NAME, self._purges.add_all(self.log.last_sequence))
        free = self.device.free_bytes()
        if not self.log.segments and free < self.log.segment_bytes:
            raise NoRoom(
                f"flash directory {self.path} has {free} bytes free; allowed: at least one segment, "
                f"{self.log.segment_bytes} bytes"
            )

    def append(self, encoded: Sequence[EncodedBlock]) -> list[EntryArray]:
        """Store records and index them; their rows. Raises `FlashFull` or OSError; what was written before stays."""
        pending, done = list(encoded), []
        size = sum(block.record_bytes for block in pending)
        self._pend(size)
        try:
            while pending:
                with self._pen:
                    segment = self._with_room(pending[0].record_bytes)
                    run = writer.take(pending, segment.room_bytes)
                    segment.owners.update((block.owner, block.namespace) for block in run)
                    offset = self.log.reserve(segment, sum(block.record_bytes for block in run))
                done.append(self._write(segment, offset, run))
                self.log.settle_spare()
                pending = pending[len(run) :]
        except FlashFull:
            self._full_until_s = self._parts.clock.now() + self._parts.config.retry_s
            raise
        except OSError:
            self.breaker.fault()
            raise
        finally:
            self._pend(-size)
        return done

    @contextmanager
    def reading(self, number: int) -> Iterator[Segment]:
        """A segment, kept while it is read; errors and successes go to the breaker. Raises `StaleAddress`, OSError."""
        segment = self.log.acquire(number)
        try:
            with self._traffic:
                yield segment
        except OSError:
            self.breaker.fault()
            raise
        finally:
            self.log.release(segment)
        self.breaker.success()

    def records(self, number: int, entries: EntryArray) -> list[EncodedBlock]:
        """Those of these records of a segment that still hold, ready to be written elsewhere. Raises `StaleAddress`."""
        with self.reading(number) as segment:
            return self.reclaimer.read(segment, entries)

    def note_fault(self, read: BlockRead, place: Place, wrong: Mismatch) -> None:
        """Keep what is needed to examine a record that failed its checks. Never raises for a fault of the device."""
        segment = next((s for s in self.log.segments if s.number == place.segment), None)
        begin = wrong.at // PAGE_BYTES * PAGE_BYTES
        fault = Fault(
            wall_s=time.time(),
            segment=place.segment,
            uuid=segment.uuid.hex() if segment is not None else "",
            offset=place.offset,
            header_bytes=place.header_bytes,
            payload_bytes=place.payload_bytes,
            key=read.key.hex(),
            namespace=read.namespace.hex(),
            reason=wrong.reason,
            detail=wrong.detail,
            header=page_text(wrong.head),
            stripe=page_text(read.out[begin : begin + PAGE_BYTES]) if wrong.reason == "stripe" else "",
        )
        if not (self.read_only or self._retired):
            self.quarantine.note(fault)

    def bar(self, selector: Selector, timeout_s: float) -> int:
        """From now on no restart finds what this selects of all that was stored before; the last segment of it.

        What was being written to those segments is there when this returns. Raises OSError; `TimeoutError` behind a
        write that hangs: the open segment cannot be finished then, and what comes later into it is forgotten as well.
        """
        free = self._pen.acquire(timeout=timeout_s)
        self.log.keeps_files = False
        try:
            last = self.log.last_sequence
            if free:
                last -= not self._finish_if_concerned(selector)
                self.log.give_up_spare()
            self.files.put(PURGES_NAME, self._purges.add(selector, last, self.log.oldest_sequence))
        finally:
            if free:
                self._pen.release()
        points.reach("flash.purge.barred")
        if not free or not self.log.wait_until_sealed(timeout_s, last):
            raise TimeoutError(f"{self.path}: a write has not returned for {timeout_s} s, so what it stores may stay")
        return segment_number(self.number, last)

    def _finish_if_concerned(self, selector: Selector) -> bool:
        """Finish the open segment if a purge speaks of it; False if it stays open: else each purge would leave one."""
        segment = self.log.open
        if segment is not None:
            concerned = segment.reused or any(selector.covers(*whose) for whose in segment.owners)
            if not concerned:
                return False
        self.log.finish()
        return True

    def erase(self, entries: EntryArray) -> None:
        """Overwrite records with zeros, and make that durable. Those whose segment is gone are gone. Raises OSError."""
        numbers = columns.segments(entries["where"])
        for number in np.unique(numbers).tolist():
            rows = entries[numbers == number]
            try:
                with self.reading(number) as segment:
                    self._erase(segment, rows)
            except StaleAddress:
                continue
        self.log.keeps_files = True
        points.reach("flash.purge.erased")

    def retire(self, *, drain: bool) -> None:
        """Write no blocks here any more; with `drain` the store's `drain` moves those that are here elsewhere."""
        self._retired, self.draining = True, drain

    def reinstate(self) -> None:
        """Undo `retire`."""
        self._retired = self.draining = False

    def stalled(self) -> None:
        """An I/O here has not come back within its deadline."""
        self.breaker.fault()

    def seal(self, timeout_s: float) -> bool:
        """Make everything stored so far survive a power loss; False if a write takes longer than that."""
        if not self._pen.acquire(timeout=timeout_s):
            return False
        try:
            self.log.finish()
            last = self.log.last_sequence
        finally:
            self._pen.release()
        return self.log.wait_until_sealed(timeout_s, last)

    def close(self, timeout_s: float) -> None:
        """Seal and let go of the device. With I/O that hangs beyond the timeout, nothing is let go: close it again."""
        if not self._pen.acquire(timeout=timeout_s):
            return
        self._closed = True
        try:
            self.log.finish()
        finally:
            self._pen.release()
        if self.log.wait_until_sealed(timeout_s) and not self._let_go:
            self.quarantine.flush()
            with contextlib.suppress(OSError):  # then the next start removes it
                self.log.give_up_spare()
            self.abandon()

    def abandon(self) -> None:
        """Let go of the device as it is, once."""
        if self._let_go:
            return
        self._closed = self._let_go = True
        self.log.close()
        self.device.unlock()

    def probe(self) -> None:
        """Try a device that was taken out: one page of a segment is read. Never raises for a fault."""
        if not self.breaker.may_probe():
            return
        try:
            segments = self.log.segments or [self._first_segment()]
            with self.reading(segments[-1].number) as segment:
                segment.read([pages(PAGE_BYTES)], 0)
        except (OSError, FlashFault) as error:
            log.info("flash device %s is still out: %s", self.path, error)

    def _erase(self, segment: Segment, rows: EntryArray) -> None:
        places = columns.offsets(rows["where"]).tolist()
        sizes = columns.record_bytes(rows["extent"]).tolist()
        if segment.sealed:  # its filter would still tell what was there
            places.append(segment.end)
            sizes.append(segment.size_bytes - segment.end)
        blank = pages(_ERASE_BYTES)
        for offset, size in zip(places, sizes, strict=True):
            for done in range(0, size, _ERASE_BYTES):
                segment.write([blank[: min(_ERASE_BYTES, size - done)]], offset + done)
        segment.extent.sync()
        self._count_written("erased", sum(sizes))
        if segment.sealed:
            self.log.rewrite_hint(segment)

    def _pend(self, num_bytes: int) -> None:
        with self._parts.lock:
            self.pending_bytes += num_bytes

    def _count_written(self, name: str, num_bytes: int) -> None:
        self._parts.stats.add("device_written_bytes", num_bytes, tier=Tier.FLASH, reason=name)
        self.budget.charge(num_bytes)

    def _with_room(self, record_bytes: int) -> Segment:
        if self.state not in ("ok", "out"):  # one that is out may be tried
            raise FlashFull(f"{self.path}: the store is {self.state}")
        if record_bytes > self.log.segment_bytes - PAGE_BYTES:
            raise FlashFull(f"record of {record_bytes} bytes in segments of {self.log.segment_bytes}")
        while self.log.open is None or self.log.open.room_bytes < record_bytes:
            self.log.finish()
            self.reclaimer.make_room(self.log.cost_bytes)  # nothing to do where one segment was kept free
            self.log.begin()
            self.reclaimer.make_room(self.log.cost_bytes, partial(self._rewrite, record_bytes))
        return self.log.open

    def _first_segment(self) -> Segment:
        """One to try a device with that has none."""
        with self._pen:
            try:
                return self._with_room(PAGE_BYTES)
            except OSError:
                self.breaker.fault()
                raise

    def _rewrite(self, spared_bytes: int, records: list[EncodedBlock]) -> None:
        """Carry records over into the open segment, as far as it has room beyond what is spared."""
        segment = self.log.open
        assert segment is not None
        room, run = segment.room_bytes - spared_bytes, []
        for record in records:
            if record.record_bytes <= room:
                run.append(record)
                room -= record.record_bytes
        if run:
            segment.owners.update((record.owner, record.namespace) for record in run)
            offset = self.log.reserve(segment, sum(record.record_bytes for record in run))
            self._write(segment, offset, run, carried=True)

    def _write(self, segment: Segment, offset: int, run: list[EncodedBlock], *, carried: bool = False) -> EntryArray:
        parts, size = self._parts, sum(block.record_bytes for block in run)
        points.reach("flash.append.header")
        start = parts.clock.now()
        if carried:  # the others were drawn for
            self.budget.charge(size)
        try:
            rows = writer.write(segment, offset, run, self._traffic)
            points.reach("flash.append.written")
            with parts.lock:
                parts.index.add(rows)
                (self.reclaimer.credit.carried if carried else self.reclaimer.credit.admitted)(size)
        finally:
            self.log.written(segment)
        self.breaker.success()
        stats = parts.stats
        stats.add("write_s", parts.clock.now() - start, tier=Tier.FLASH)
        stats.add("device_written_bytes", size, tier=Tier.FLASH, reason="carried" if carried else "blocks")
        if not carried:
            stats.add("blocks_stored", len(run), tier=Tier.FLASH)
            stats.add("stored_bytes", sum(block.payload_bytes for block in run), tier=Tier.FLASH)
        return rows

    def _tell(self, before: BreakerState, after: BreakerState) -> None:
        log.warning("flash device %s: %s, was %s", self.path, after, before)
        self._parts.stats.add("breaker_changes", tier=Tier.FLASH, reason=str(after))


def _budget_bytes(config: FlashConfig, device: Device) -> int:
    """Bytes that may be written to a device a day; 0: no budget."""
    return config.write_bytes_per_day or math.ceil(config.drive_writes_per_day * device.capacity_bytes())

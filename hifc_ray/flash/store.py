"""The flash store: blocks by key, appended to segments, verified at every read, found again after a restart.

What survives the death of the process (kill -9): every block whose `append` has returned. What survives a power loss:
every block of a segment that was sealed (when it was full, by `seal`, or by `close`), since its data is synced before
its hint; blocks of the open segment may be lost, never served wrong. What is torn is cut at the next start.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from types import TracebackType

from hifc_ray import codecs, points
from hifc_ray.clock import Clock, MonotonicClock
from hifc_ray.config import FlashConfig
from hifc_ray.errors import ConfigError, CorruptRecord, FlashFull, NoRoom
from hifc_ray.flash.address import Address, unpack
from hifc_ray.flash.device import Device, pages
from hifc_ray.flash.file_device import FileDevice
from hifc_ray.flash.index import Index
from hifc_ray.flash.log import SegmentLog
from hifc_ray.flash.record import EncodedBlock, FlashBlock, encode
from hifc_ray.flash.recovery import Recovery, RecoveryReport, refuse_foreign
from hifc_ray.flash.sizing import choose_segment_bytes
from hifc_ray.flash.verify import check_record
from hifc_ray.flash.writer import Writer, take
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.stats import Stats
from hifc_ray.types import Fate, Key, Namespace, Tier


class FlashStore:
    """Blocks on one device. Safe from any thread.

    Locks: `_lock` guards index, segments and live namespaces, never during I/O; `locate` and `in` need none.
    `_pen` is held by the one thread that appends or seals, through its I/O, and taken before `_lock`.
    """

    recovered: RecoveryReport

    def __init__(
        self,
        config: FlashConfig,
        block_bytes: int,
        stats: Stats,
        *,
        device: Device | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Open, lock and recover. Raises `ConfigError`, or a `StorageError` with nothing touched."""
        segment_bytes = choose_segment_bytes(config, block_bytes)
        self._config = config
        self._stats = stats
        self._clock = clock or MonotonicClock()
        self._codec = codecs.by_name("raw")
        self._device = device or _file_device(config)
        self._index = Index()
        self._lock = threading.Lock()
        self._pen = threading.Lock()
        self._log = SegmentLog(self._device, self._index, stats, self._lock, config.limit_bytes, segment_bytes)
        self._writer = Writer(self._index, stats, self._clock, self._lock)
        self._live: set[Namespace] = set()
        self._scratch = threading.local()
        self._closed = False
        refuse_foreign(self._device)
        self._device.lock()
        try:
            self._recover()
        except BaseException:
            self._log.close()
            self._device.unlock()
            raise

    @property
    def used_bytes(self) -> int:
        """What the directory occupies, at most: preallocated segments whole, hints, lock. Never above `limit_bytes`."""
        return self._log.used_bytes

    @property
    def limit_bytes(self) -> int:
        return self._log.limit_bytes

    @property
    def segment_bytes(self) -> int:
        """Bytes of a new segment; a sealed one is as long as what it holds."""
        return self._log.segment_bytes

    @property
    def num_segments(self) -> int:
        return self._log.num_segments

    @property
    def num_blocks(self) -> int:
        return len(self._index)

    @property
    def direct(self) -> bool:
        """Does I/O go past the page cache?"""
        return self._device.direct

    def __contains__(self, key: Key) -> bool:
        return key in self._index

    def locate(self, keys: Sequence[Key]) -> list[Address | None]:
        """The address of each key, None where flash does not have it. Takes no lock and does no I/O."""
        return self._index.locate(keys)

    def fate(self, key: Key) -> Fate | None:
        """Why this key left flash (DROPPED or CORRUPT), as far back as memory goes."""
        with self._lock:
            return self._index.fate(key)

    def namespaces(self) -> dict[Namespace, int]:
        """Blocks of each namespace."""
        with self._lock:
            return self._index.namespaces()

    def set_live_namespaces(self, live: Iterable[Namespace]) -> None:
        """Namespaces whose blocks leave last. Those of later appends and reads are added by themselves."""
        with self._lock:
            self._live = set(live)

    def append(self, blocks: Sequence[FlashBlock]) -> list[Address]:
        """Store blocks; the address of each, in order. A key that is here already is not written again.

        Raises `FlashFull`, or OSError from the device: what earlier writes of the batch have stored stays and can be
        located, the rest is not indexed, and a later append tries again. ValueError: a shape that no record can have.
        """
        fresh = {b.key: b for b in blocks if b.key not in self._index}
        encoded = {key: encode(b, self._codec) for key, b in fresh.items()}
        self._note_live(*{block.namespace for block in blocks})
        with self._pen:
            addresses = dict(zip((b.key for b in blocks), self.locate([b.key for b in blocks]), strict=True))
            absent = {b.key: b for b in blocks if addresses[b.key] is None}
            try:
                written = self._append([encoded.get(key) or encode(b, self._codec) for key, b in absent.items()])
            except (FlashFull, OSError) as error:
                reason = "full" if isinstance(error, FlashFull) else "error"
                self._stats.add("write_refused", tier=Tier.FLASH, reason=reason)
                raise
            return [addresses[b.key] or written[b.key] for b in blocks]

    def read(self, key: Key, namespace: Namespace, address: Address, out: memoryview) -> int:
        """Read a block straight into `out` (page-aligned, at least as long) and verify all of it; returns its bytes.

        Raises `StaleAddress`, OSError, or `CorruptRecord` (then the key is no longer here); `out` is then garbage.
        """
        place = unpack(address)
        payload = out[: place.payload_bytes]
        if len(payload) < place.payload_bytes:
            raise ValueError(f"buffer of {len(out)} bytes for a block of {place.payload_bytes}")
        head = self._header_pages(place.header_bytes)
        segment = self._log.acquire(place.segment)
        try:
            points.reach("flash.read.before")
            start = self._clock.now()
            segment.read([head, payload], place.offset)
            points.reach("flash.read.done")
            wrong = check_record(head, payload, key, namespace, segment, place)
        finally:
            self._log.release(segment)
        if wrong is not None:
            with self._lock:
                self._index.remove(key, address, Fate.CORRUPT)
            self._stats.add("corrupt", tier=Tier.FLASH, reason=wrong.reason)
            raise CorruptRecord(f"segment {place.segment} at {place.offset}: {wrong.reason}: {wrong.detail}")
        self._note_live(namespace)
        self._stats.add("blocks_loaded", tier=Tier.FLASH)
        self._stats.add("loaded_bytes", place.payload_bytes, tier=Tier.FLASH)
        self._stats.add("read_s", self._clock.now() - start, tier=Tier.FLASH)
        return place.payload_bytes

    def seal(self) -> None:
        """Make everything stored so far survive a power loss; the next append begins a new segment."""
        with self._pen:
            self._log.seal()

    def close(self) -> None:
        """Seal and let go of the device. With a write that hangs beyond its deadline, nothing is let go."""
        if not self._pen.acquire(timeout=self._config.write_deadline_s):
            return
        with self._lock:
            already, self._closed = self._closed, True
        try:
            if not already:
                self._log.seal()
                self._log.close()
                self._device.unlock()
        finally:
            self._pen.release()

    def __enter__(self) -> FlashStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _recover(self) -> None:
        segments, self.recovered = Recovery(self._device, self._index, self._stats).run()
        self._log.adopt(segments, self._device.sizes())
        self._log.make_room(0, self._live)
        free = self._device.free_bytes()
        if not segments and free < self.segment_bytes:
            raise NoRoom(
                f"flash directory {self._device.path} has {free} bytes free; allowed: at least one segment, "
                f"{self.segment_bytes} bytes"
            )

    def _append(self, pending: list[EncodedBlock]) -> dict[Key, Address]:
        if self._closed:
            raise FlashFull(f"{self._device.path}: the store is closed")
        written: dict[Key, Address] = {}
        while pending:
            needed = pending[0].record_bytes
            if needed > self.segment_bytes - PAGE_BYTES:
                raise FlashFull(f"record of {needed} bytes in segments of {self.segment_bytes}")
            segment = self._log.with_room(needed, self._live)
            run = take(pending, segment.room_bytes)
            written.update((entry.key, entry.address) for entry in self._writer.write(segment, run))
            pending = pending[len(run) :]
        return written

    def _note_live(self, *namespaces: Namespace) -> None:
        if not self._live.issuperset(namespaces):
            with self._lock:
                self._live = self._live.union(namespaces)

    def _header_pages(self, size_bytes: int) -> memoryview:
        scratch: memoryview | None = getattr(self._scratch, "pages", None)
        if scratch is None or len(scratch) < size_bytes:
            scratch = self._scratch.pages = pages(size_bytes)
        return scratch[:size_bytes]


def _file_device(config: FlashConfig) -> FileDevice:
    if not config.directories:
        raise ConfigError("flash.directories is empty; allowed: an existing directory of its own on each device")
    return FileDevice(config.directories[0])

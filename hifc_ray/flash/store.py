"""The flash store: blocks by key, appended to the logs of one or several devices, verified at every read.

What survives the death of the process (kill -9): every block whose `append` has returned. What survives a power loss:
every block of a segment that was sealed (when it was full, by `seal`, or by `close`), since its data is synced before
its hint; blocks of open segments, those that reclaim has carried over into one among them, may be lost, never served
wrong. What is torn is passed over at the next start.
What `purge` took out is gone for good once the call has returned.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType

import numpy as np
import numpy.typing as npt

from hifc_ray import codecs
from hifc_ray.clock import Clock, MonotonicClock
from hifc_ray.config import FlashConfig
from hifc_ray.errors import ConfigError, CorruptRecord, FlashFull, StaleAddress, StorageError
from hifc_ray.flash import reading
from hifc_ray.flash.address import MAX_VOLUMES, Address, segment_of, unpack, volume_of
from hifc_ray.flash.device import Device
from hifc_ray.flash.drainer import Drainer
from hifc_ray.flash.entries import addresses, join_rows, key_of, volumes
from hifc_ray.flash.file_device import FileDevice
from hifc_ray.flash.index import Index, Located
from hifc_ray.flash.key_table import KeyArray
from hifc_ray.flash.node_filter import NodeFilter
from hifc_ray.flash.purger import Purger
from hifc_ray.flash.purges import Selector
from hifc_ray.flash.reading import BlockRead, StripeReader
from hifc_ray.flash.record import EncodedBlock, FlashBlock, encode
from hifc_ray.flash.recovery import RecoveryReport, refuse_foreign
from hifc_ray.flash.sizing import choose_segment_bytes, shares
from hifc_ray.flash.verify import Mismatch
from hifc_ray.flash.volume import Parts, Volume
from hifc_ray.policy import Features, Valuing
from hifc_ray.stats import Stats
from hifc_ray.types import AnyArray, Fate, IntArray, Key, Namespace, Tier

log = logging.getLogger(__name__)

_MAX_FAILED = 64  # addresses that are remembered of reads that failed


class FlashStore:
    """Safe from any thread. `_lock` guards index, segments and live namespaces, and is never held during I/O.

    Each volume has a pen, taken before `_lock`. `policy` says what blocks are worth, and so which segment reclaim takes
    and what it carries over; by default the more, the later a block was asked for.
    """

    def __init__(
        self,
        config: FlashConfig,
        block_bytes: int,
        stats: Stats,
        *,
        devices: Sequence[Device] = (),
        clock: Clock | None = None,
        policy: Valuing | None = None,
    ) -> None:
        """Open, lock and recover. Raises `ConfigError`, or a `StorageError` with nothing touched."""
        devices = devices or _file_devices(config)
        if len(devices) > MAX_VOLUMES:
            raise ConfigError(f"flash.directories are {len(devices)}; allowed: at most {MAX_VOLUMES}")
        limits = shares(config.limit_bytes, [device.capacity_bytes() for device in devices])
        segment_bytes = choose_segment_bytes(config, block_bytes, len(devices), min(limits))
        self._config = config
        self._stats = stats
        self._codec = codecs.by_name("raw")
        self._lock = threading.Lock()
        self._index = Index()
        self._clock = clock or MonotonicClock()
        self._live: frozenset[Namespace] = frozenset()
        self.filter = NodeFilter(config.filter_fpr, self._clock)
        self._policy = policy or LastAccess()
        parts = Parts(config, self._index, stats, self._clock, self._policy, self._lock)
        self.volumes = [
            Volume(number, device, parts, limit, segment_bytes)
            for number, (device, limit) in enumerate(zip(devices, limits, strict=True))
        ]
        self._failed: deque[Address] = deque(maxlen=_MAX_FAILED)
        self._hashers = ThreadPoolExecutor(os.cpu_count(), "hifc-flash-hash")
        moving = threading.Lock()
        self._purger = Purger(self.volumes, self._index, self._lock, moving, config.write_deadline_s)
        self._drainer = Drainer(self.volumes, self._index, stats, self._lock, moving, self._policy, self.draw)
        self._open()

    @property
    def used_bytes(self) -> int:
        """What the directories occupy, at most: preallocated segments whole, hints, locks. Never above the limit."""
        return sum(volume.log.used_bytes for volume in self.volumes)

    @property
    def limit_bytes(self) -> int:
        return sum(volume.log.limit_bytes for volume in self.volumes)

    @property
    def segment_bytes(self) -> int:
        """Bytes of a new segment; a sealed one is as long as what it holds."""
        return self.volumes[0].log.segment_bytes

    @property
    def num_segments(self) -> int:
        return sum(len(volume.log.segments) for volume in self.volumes)

    @property
    def num_blocks(self) -> int:
        return len(self._index)

    @property
    def recovered(self) -> RecoveryReport:
        """What the start found, on all volumes."""
        return sum((volume.recovered for volume in self.volumes), RecoveryReport())

    @property
    def direct(self) -> bool:
        """Does all I/O go past the page cache?"""
        return all(volume.direct for volume in self.volumes)

    def __contains__(self, key: Key) -> bool:
        return self.locate([key])[0] is not None

    def locate(self, keys: Sequence[Key]) -> list[Address | None]:
        """The address of each key, None where flash does not have it or its device is out. Does no I/O."""
        with self._lock:
            return self._located(self._index.find(keys))

    def look_up(self, words: KeyArray, turn: int | None) -> Located:
        """`locate` for a batch of keys as numbers; with a `turn` it counts as an access of each block that is here."""
        with self._lock:
            rows = self._index.find_words(words)
            if turn is not None:
                self._index.hotness.touch(rows[rows >= 0], turn)
            located = self._index.where(rows)
        out = self._out()
        if out:
            located.found[np.isin(volumes(located.where), out)] = False
        return located

    def fate(self, key: Key) -> Fate | None:
        """Why flash does not serve this key: its device is out, or it left (DROPPED, CORRUPT; as far as known)."""
        with self._lock:
            rows = self._index.find([key])
            if rows[0] >= 0:
                return Fate.READ_FAILED if self._located(rows) == [None] else None
            return self._index.fate(key)

    def namespaces(self) -> dict[Namespace, int]:
        """Blocks of each namespace."""
        with self._lock:
            return self._index.namespaces()

    def set_live_namespaces(self, live: Iterable[Namespace]) -> None:
        """Namespaces whose blocks leave last. Those of later appends and reads are added by themselves."""
        with self._lock:
            self._set_live(frozenset(live))

    @property
    def budget_level(self) -> float:
        """How full the fullest bucket of a device that takes blocks is, in [0, 1]; 0 if none takes any."""
        return max((volume.budget.level for volume in self.volumes if volume.writable), default=0.0)

    def why_not(self) -> str:
        """Why no block may be written now: `read-only`, `out`, `closed`, or `budget`."""
        states = {volume.state for volume in self.volumes}
        return "budget" if "ok" in states else next((s for s in ("closed", "out") if s in states), "read-only")

    def draw(self, num_bytes: int, queued: Mapping[int, int] | None = None) -> int | None:
        """The volume that so many bytes may be written to now, drawn from its budget; None if there is none.

        The least busy comes first, and of those the emptiest; one that had no room just now only where there is no
        other. `queued` says how busy each is, and leaves out those that are not to be used; by default that is what
        `append` has under way.
        """
        if queued is None and len(self.volumes) == 1:
            (only,) = self.volumes
            return only.number if only.writable and only.budget.draw(num_bytes) else None
        busy = (
            queued
            if queued is not None
            else {volume.number: volume.pending_bytes // max(1, num_bytes) for volume in self.volumes}
        )
        takes = [volume for volume in self.volumes if volume.writable]
        takes = [volume for volume in takes if not volume.lately_full] or takes
        takes = [volume for volume in takes if volume.number in busy]
        takes.sort(key=lambda volume: (busy[volume.number], volume.fill))
        return next((volume.number for volume in takes if volume.budget.draw(num_bytes)), None)

    def has_room_for(self, tenant: int, num_bytes: int) -> bool:
        """Would a tenant stay within its quota?"""
        quota = self._config.tenant_quota_bytes
        if not quota:
            return True
        with self._lock:
            return self._index.tenant_bytes(tenant) + num_bytes <= quota

    def append(self, blocks: Sequence[FlashBlock], volume: int | None = None) -> list[Address]:
        """Store blocks; the address of each, in order. A key that is here already is not written again.

        `volume`: one that `draw` named for them; by default it is asked here. Raises `FlashFull`, or OSError from the
        device: what earlier writes of the batch have stored stays and can be located, the rest is not indexed, and a
        later append tries again. ValueError: a shape that no record can have.
        """
        known = dict(zip((b.key for b in blocks), self.locate([b.key for b in blocks]), strict=True))
        fresh = {block.key: block for block in blocks if known[block.key] is None}
        self._note_live({block.namespace for block in blocks})
        if fresh:
            hashers = self._hashers if len(fresh) == 1 else None
            known.update(self._store([encode(block, self._codec, hashers) for block in fresh.values()], volume))
        return [Address(known[block.key] or 0) for block in blocks]

    def read(self, key: Key, namespace: Namespace, address: Address, out: memoryview) -> int:
        """Read a block straight into `out` (page-aligned, at least as long) and verify all of it; returns its bytes.

        Raises `StaleAddress`, OSError, or `CorruptRecord` (then the key is no longer here); `out` is then garbage.
        """
        (result,) = self.read_run([BlockRead(key, namespace, address, out)])
        if isinstance(result, Exception):
            raise result
        return result

    def read_run(self, reads: Sequence[BlockRead]) -> list[int | Exception]:
        """Read blocks that lie side by side (see `reading.merge`) in one go; each one's bytes, or its error."""
        volume = self.volumes[volume_of(reads[0].address)]
        start = self._clock.now()
        try:
            with volume.reading(segment_of(reads[0].address)) as segment:
                wrong = reading.read_run(segment, reads)
        except StaleAddress as error:
            return [error for _ in reads]
        except OSError as error:
            if len(reads) == 1:
                self._unreadable(reads[0])
                return [error]
            return [result for read in reads for result in self.read_run([read])]  # a bad page costs its own block
        self._note_live({read.namespace for read in reads})
        results: list[int | Exception] = [
            unpack(read.address).payload_bytes if mismatch is None else self._corrupt(read, mismatch)
            for read, mismatch in zip(reads, wrong, strict=True)
        ]
        good = [result for result in results if isinstance(result, int)]
        self._stats.add("blocks_loaded", len(good), tier=Tier.FLASH)
        self._stats.add("loaded_bytes", sum(good), tier=Tier.FLASH)
        self._stats.add("read_s", self._clock.now() - start, tier=Tier.FLASH)
        return results

    @contextmanager
    def stripes(self, key: Key, namespace: Namespace, address: Address) -> Iterator[StripeReader]:
        """Read chosen stripes of a block, so that layers come in the order of their use.

        Raises `StaleAddress`, OSError or `CorruptRecord`, here or from the reader; the key is then no longer here.
        """
        volume = self.volumes[volume_of(address)]
        try:
            with volume.reading(segment_of(address)) as segment:
                yield StripeReader(segment, key, namespace, unpack(address))
        except CorruptRecord:
            self._forget(key, address, "stripe")
            raise

    def purge(
        self, *, tenant: int | None = None, session: int | None = None, namespace: Namespace | None = None
    ) -> tuple[int, int]:
        """Erase the blocks of an owner or namespace: (blocks, bytes). When this returns, none of them can come back.

        They are not served from the first moment, and overwritten when this returns; a copy that the index had given
        up (of a block that failed verification) goes with its segment. Raises `FlashFull` or OSError if a device
        cannot be written to: then they may come back at a restart, so ask again.
        """
        num_blocks, num_bytes = self._purger.purge(Selector(tenant, session, namespace))
        self._stats.add("purged_blocks", num_blocks, tier=Tier.FLASH)
        return num_blocks, num_bytes

    def drain(self, volume: Volume) -> None:
        """Move some blocks of a volume to others, the best first. Never raises for a fault of flash."""
        self._drainer.drain(volume)

    def refresh_filter(self) -> None:
        """Build the node's filter anew if a tenth of its keys are dead, or if it never was built."""
        if self.filter.needs_rebuild or not self.filter.version:
            self.filter.rebuild(self._keys)

    def history_rows(self, chunk: int) -> Iterator[tuple[Index, IntArray]]:
        """The index and rows of all blocks, `chunk` at a time, under the lock until the next is asked for."""
        with self._lock:
            rows = self._index.rows()
        for begin in range(0, len(rows), chunk):
            with self._lock:
                part = rows[begin : begin + chunk]
                yield self._index, part[self._index.used(part)]

    def features_of_next(self, count: int) -> Features:
        """History of a sample of the blocks that would leave next; of none while one has room or none writes."""
        samples = [volume.reclaimer.next_to_leave(count) for volume in self.volumes if volume.writable]
        if samples:
            return min(samples, key=len)
        with self._lock:
            return self._index.features(np.zeros(0, np.int64))

    def seal(self) -> bool:
        """Make everything stored so far survive a power loss; the next append begins new segments.

        False if a write has not returned within its deadline: its segment is sealed when it has.
        """
        sealed = [volume.seal(self._config.write_deadline_s) for volume in self.volumes]
        return all(sealed)

    def close(self) -> None:
        """Seal and let go of the devices. One with a write that hangs beyond its deadline is not let go."""
        for volume in self.volumes:
            volume.close(self._config.write_deadline_s)
        self._hashers.shutdown(wait=False)

    def __enter__(self) -> FlashStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _open(self) -> None:
        for volume in self.volumes:
            with _named(volume):
                refuse_foreign(volume.device)
        locked: list[Volume] = []
        try:
            for volume in self.volumes:
                volume.device.lock()
                locked.append(volume)
            for volume in self.volumes:
                with _named(volume):
                    volume.recover()
            self._set_live(frozenset())
            self._index.filter = self.filter
        except BaseException:
            for volume in locked:
                volume.abandon()
            raise

    def _store(self, encoded: list[EncodedBlock], number: int | None) -> dict[Key, Address]:
        size = sum(block.record_bytes for block in encoded)
        if number is None:
            number = self.draw(size)
        try:
            if number is None:
                raise FlashFull(f"no device takes blocks now: {self.why_not()}")
            rows = join_rows(self.volumes[number].append(encoded))
        except (FlashFull, OSError) as error:
            reason = "full" if isinstance(error, FlashFull) else "error"
            self._stats.add("write_refused", len(encoded), tier=Tier.FLASH, reason=reason)
            raise
        return dict(zip(map(key_of, rows["key"]), addresses(rows), strict=True))

    def _located(self, rows: IntArray) -> list[Address | None]:
        found, out = self._index.locate(rows), self._out()
        return [None if a is not None and volume_of(a) in out else a for a in found] if out else found

    def _out(self) -> list[int]:
        """Volumes that are not to be read from now."""
        return [volume.number for volume in self.volumes if not volume.breaker.allows()]

    def _unreadable(self, read: BlockRead) -> None:
        """A block that fails a second time goes: one bad page that is asked for often must not take its device out."""
        with self._lock:
            again = read.address in self._failed
            self._failed.append(read.address)
        if again:
            self._forget(read.key, read.address, "unreadable")

    def _corrupt(self, read: BlockRead, wrong: Mismatch) -> CorruptRecord:
        """A record that failed its checks: out of the index, and what is needed to examine it is kept."""
        place = unpack(read.address)
        self._forget(read.key, read.address, wrong.reason)
        volume = self.volumes[volume_of(read.address)]
        volume.note_fault(read, place, wrong)
        return CorruptRecord(f"segment {place.segment} at {place.offset}: {wrong.reason}: {wrong.detail}")

    def _forget(self, key: Key, address: Address, reason: str) -> None:
        with self._lock:
            row = self._index.at(key, address)
            if row >= 0:
                self._index.remove(np.array([row]), Fate.CORRUPT)
        self._stats.add("corrupt", tier=Tier.FLASH, reason=reason)

    def _keys(self) -> AnyArray:
        with self._lock:
            return self._index.key_words(self._index.rows())

    def _note_live(self, namespaces: Set[Namespace]) -> None:
        if not self._live.issuperset(namespaces):
            with self._lock:
                self._set_live(self._live | namespaces)

    def _set_live(self, live: frozenset[Namespace]) -> None:
        self._live = live
        self._index.mark_foreign(live)


class LastAccess:
    """What a block is worth where no policy says: the more, the later it was asked for."""

    def values(self, features: Features) -> npt.NDArray[np.float64]:
        return features.last_access.astype(np.float64)


@contextmanager
def _named(volume: Volume) -> Iterator[None]:
    """What its device refuses while it is opened, in one line. Raises `StorageError`."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"flash directory {volume.path} cannot be opened: {error}; take it out, or repair or empty it"
        ) from error


def _file_devices(config: FlashConfig) -> list[FileDevice]:
    if not config.directories:
        raise ConfigError("flash.directories is empty; allowed: an existing directory of its own on each device")
    return [FileDevice(directory, read_only=config.read_only) for directory in config.directories]

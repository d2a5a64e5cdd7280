"""The host arena: one file of shared memory per node that holds the slot table and the slots.

File: header page | slot table | padding to a page | slots. The tier creates it, allocates it whole and owns it under
an flock; engines attach to the same file and copy in and out of slots themselves. After a restart the tier attaches
to the same file again; there is never a second one.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

import xxhash

from hifc_ray import env
from hifc_ray.config import format_bytes
from hifc_ray.errors import DirectoryLocked, ForeignFiles, NewerFormat, NoRoom, StorageError
from hifc_ray.host.table import LINE_BYTES, SlotTable
from hifc_ray.layout import PAGE_BYTES, round_up
from hifc_ray.locks import FileLock

MAGIC = b"HIFCARNA"
VERSION = 2  # rises whenever a line of the slot table changes its meaning
_HEADER = struct.Struct("<8sIIQQQ")  # magic, version, reserved, slots, slot bytes, incarnation; then XXH3 of these
_BEING_MADE = 0  # incarnation in the header until all memory is there
_ALLOCATE_BYTES = 256 << 20  # pages are zeroed by the kernel; pieces of this size are allocated side by side


class Arena:
    """A mapping of the arena file. `owned` is True in the tier's process, which also holds the lock."""

    def __init__(self, path: Path, mapping: mmap.mmap, num_slots: int, slot_bytes: int, incarnation: int) -> None:
        self.path = path
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        self.incarnation = incarnation
        self.reattached = False
        self._mapping = mapping
        self._lock: FileLock | None = None
        self._data = memoryview(mapping)
        self._first = data_offset(num_slots)
        self.table = SlotTable(self._data[PAGE_BYTES : PAGE_BYTES + num_slots * LINE_BYTES], num_slots)

    def slot(self, index: int) -> memoryview:
        """Bytes of one slot, writable and page-aligned."""
        if not 0 <= index < self.num_slots:
            raise IndexError(f"slot {index} of {self.num_slots}")
        start = self._first + index * self.slot_bytes
        return self._data[start : start + self.slot_bytes]

    @property
    def owned(self) -> bool:
        return self._lock is not None

    def incarnation_now(self) -> int:
        """Of the tier that owns the file at this moment, as far as it got; without a call to anyone."""
        return int(_HEADER.unpack_from(self._data)[-1])

    def close(self, *, unlink: bool = False) -> None:
        """Let go of the file; with `unlink` (owner only) it is removed. Views handed out keep the memory mapped."""
        if self._lock is not None:
            if unlink:
                self.path.unlink(missing_ok=True)
            self._lock.release(unlink=unlink)
            self._lock = None


def create(path: Path, arena_bytes: int, slot_bytes: int) -> Arena:
    """The arena at `path`, owned by this process: attached to if it is there and of the same shape, else made anew.

    Raises `DirectoryLocked` if a live tier owns it, `NoRoom` if memory does not allow it, `ForeignFiles`
    if the file is not ours.
    """
    slot_bytes = round_up(slot_bytes, PAGE_BYTES)
    num_slots = arena_bytes // slot_bytes
    if num_slots < 2:
        raise NoRoom(
            f"host.arena_bytes is {arena_bytes}; a slot of this model is {format_bytes(slot_bytes)}, so at least "
            f"{2 * slot_bytes} are needed"
        )
    lock = FileLock(lock_path(path))
    try:
        if not lock.acquire():
            raise DirectoryLocked(f"arena {path} is owned by a live process; stop that one or choose another name")
        arena = _open_or_make(path, num_slots, slot_bytes)
    except OSError as error:
        lock.release(unlink=True)
        raise StorageError(f"arena {path} cannot be used: {error.strerror}") from error
    except BaseException:
        lock.release(unlink=True)
        raise
    arena._lock = lock
    return arena


def remove_dead(directory: Path, prefix: str) -> None:
    """Give back the memory of arenas so named whose process is gone; for names that nobody will look for again."""
    for lock_path in directory.glob(f"{prefix}*.lock"):
        lock = FileLock(lock_path)
        try:
            if lock.acquire():
                for path in directory.glob(f"{lock_path.name.removesuffix('.lock')}*"):
                    if path != lock_path:
                        path.unlink(missing_ok=True)
                lock.release(unlink=True)
        except OSError:
            continue  # another user's


def attach(path: Path) -> Arena:
    """The arena of a running tier, mapped whole, for an engine. Raises `ForeignFiles` or `NewerFormat`."""
    version, num_slots, slot_bytes, incarnation = _read_header(path)
    if version != VERSION:
        raise ForeignFiles(f"arena {path} is of format {version}; this release uses {VERSION}")
    return Arena(path, _map(path), num_slots, slot_bytes, incarnation)


def path_for(flash_directory: Path) -> Path:
    """The arena of a tier outside a cluster: named by its first flash directory, so that it is found again."""
    name = blake2b(str(flash_directory.resolve()).encode(), digest_size=6).hexdigest()
    return env.shm_dir() / f"hifc-{name}-local"


def lock_path(path: Path) -> Path:
    """The file that the owner of the arena at `path` keeps locked while it lives."""
    return path.with_name(path.name + ".lock")


def data_offset(num_slots: int) -> int:
    """Where slot 0 begins in the file."""
    return round_up(PAGE_BYTES + num_slots * LINE_BYTES, PAGE_BYTES)


def file_bytes(num_slots: int, slot_bytes: int) -> int:
    """Size of an arena file."""
    return data_offset(num_slots) + num_slots * slot_bytes


def available_memory_bytes() -> int:
    """MemAvailable of this machine."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise NoRoom("/proc/meminfo does not say MemAvailable")


def _open_or_make(path: Path, num_slots: int, slot_bytes: int) -> Arena:
    reattached = path.exists() and _matches(path, num_slots, slot_bytes)
    if not reattached:
        size = file_bytes(num_slots, slot_bytes)
        _check_room(path, size)
        path.unlink(missing_ok=True)
        _allocate(path, size, num_slots, slot_bytes)
    incarnation = secrets.randbits(63) | 1  # never `_BEING_MADE`
    _write_header(path, num_slots, slot_bytes, incarnation)
    arena = Arena(path, _map(path), num_slots, slot_bytes, incarnation)
    arena.reattached = reattached
    return arena


def _matches(path: Path, num_slots: int, slot_bytes: int) -> bool:
    """Is this an arena of that shape and of this format? An older one is not: it is made anew.

    Raises `ForeignFiles` or `NewerFormat` for what is not ours to replace.
    """
    if path.is_file() and not path.stat().st_size:
        return False  # killed at its very beginning
    *found, incarnation = _read_header(path)
    whole = path.stat().st_size == file_bytes(num_slots, slot_bytes)
    return found == [VERSION, num_slots, slot_bytes] and incarnation != _BEING_MADE and whole


def _check_room(path: Path, size: int) -> None:
    """Raises `NoRoom`. What an arena of another shape occupies here is going to be free."""
    old = path.stat().st_blocks * 512 if path.exists() else 0
    available = old + available_memory_bytes()
    if size > available:
        raise NoRoom(
            f"host.arena_bytes needs {format_bytes(size)}; this machine has {format_bytes(available)} available"
        )
    shm = os.statvfs(path.parent)
    free = old + shm.f_bavail * shm.f_frsize
    if size > free:
        raise NoRoom(
            f"host.arena_bytes needs {format_bytes(size)}; {path.parent} has {format_bytes(free)} free: make it larger "
            "(mount -o remount,size=…) or the arena smaller"
        )


def _allocate(path: Path, size: int, num_slots: int, slot_bytes: int) -> None:
    """Make the file and give it all its memory now, so that a full machine says so here and not by SIGBUS later."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write_header(path, num_slots, slot_bytes, _BEING_MADE)
        os.ftruncate(fd, size)
        pieces = [(at, min(_ALLOCATE_BYTES, size - at)) for at in range(0, size, _ALLOCATE_BYTES)]
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for _ in pool.map(lambda piece: os.posix_fallocate(fd, *piece), pieces):
                pass
    except OSError as error:
        path.unlink(missing_ok=True)
        raise NoRoom(f"host.arena_bytes needs {format_bytes(size)} in {path.parent}: {error.strerror}") from error
    finally:
        os.close(fd)


def _map(path: Path) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # Populated at once: the first touch of a fresh mapping runs at a fifth of the memory's speed.
        return mmap.mmap(fd, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    finally:
        os.close(fd)


def _write_header(path: Path, num_slots: int, slot_bytes: int, incarnation: int) -> None:
    header = _HEADER.pack(MAGIC, VERSION, 0, num_slots, slot_bytes, incarnation)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.pwrite(fd, header + xxhash.xxh3_64_digest(header), 0)
    finally:
        os.close(fd)


def _read_header(path: Path) -> tuple[int, int, int, int]:
    """Version, slots, slot bytes, incarnation."""
    try:
        with open(path, "rb") as file:
            raw = file.read(_HEADER.size + 8)
    except FileNotFoundError as error:
        raise ForeignFiles(f"arena {path} is not there") from error
    if len(raw) < _HEADER.size + 8 or raw[:8] != MAGIC:
        raise ForeignFiles(f"{path} is not an arena of hifc_ray; nothing was touched")
    header, checksum = raw[: _HEADER.size], raw[_HEADER.size :]
    _, version, _, num_slots, slot_bytes, incarnation = _HEADER.unpack(header)
    if version > VERSION:
        raise NewerFormat(f"{path} is of format {version}; this release reads up to {VERSION}")
    if xxhash.xxh3_64_digest(header) != checksum:
        raise ForeignFiles(f"the header of arena {path} is damaged; nothing was touched")
    return version, num_slots, slot_bytes, incarnation

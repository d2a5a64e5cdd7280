"""A flash directory as it is: there, writable, how much room, and whether I/O can go past the page cache."""

from __future__ import annotations

import mmap
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hifc_ray.health.readings import free_bytes
from hifc_ray.layout import PAGE_BYTES


@dataclass(frozen=True)
class DirectoryReading:
    """Of a directory that does not exist, only `path` means anything."""

    path: Path
    exists: bool
    is_directory: bool = False
    writable: bool = False
    free_bytes: int = 0
    used_bytes: int = 0  # by files in it
    direct: bool = False  # a write with O_DIRECT succeeded
    readable: bool = False
    mode: int = 0  # permission bits
    device: int = 0  # number of the file system, equal for directories that share its room


def read_directory(path: Path) -> DirectoryReading:
    """Tries a write, to a file without a name that is gone at once; everything else in there is left alone."""
    try:
        status = path.stat()
    except OSError:  # not there, a name too long, or behind a directory that this user may not enter
        return DirectoryReading(path, exists=False)
    if not stat.S_ISDIR(status.st_mode):
        return DirectoryReading(path, exists=True)
    readable = os.access(path, os.R_OK | os.X_OK)
    reading = DirectoryReading(
        path,
        exists=True,
        is_directory=True,
        free_bytes=free_bytes(path),
        used_bytes=_used_bytes(path) if readable else 0,
        readable=readable,
        mode=status.st_mode & 0o7777,
        device=status.st_dev,
    )
    if not readable or not os.access(path, os.W_OK):
        return reading
    try:
        fd = _nameless_file(path)
    except OSError:
        return reading
    try:
        return replace(reading, writable=True, direct=_takes_direct_writes(fd))
    finally:
        os.close(fd)


def _used_bytes(directory: Path) -> int:
    used = 0
    for entry in os.scandir(directory):
        with suppress(OSError):  # a file that has just gone
            used += entry.stat(follow_symlinks=False).st_blocks * 512
    return used


def _nameless_file(directory: Path) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        # Not every file system has O_TMPFILE (NFS has not); a read-only one fails here as well.
        fd, name = tempfile.mkstemp(prefix=".hifc-doctor-", dir=directory)
        os.unlink(name)
        return fd


def _takes_direct_writes(fd: int) -> bool:
    try:
        direct = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with mmap.mmap(-1, PAGE_BYTES) as page:
            return os.pwritev(direct, [page], 0) == PAGE_BYTES
    except OSError:
        return False
    finally:
        os.close(direct)

"""A directory as a device: one file an extent, O_DIRECT where the file system takes it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from hifc_ray import points
from hifc_ray.errors import DirectoryLocked, StorageError
from hifc_ray.flash.device import Extent, pages
from hifc_ray.flash.format import LOCK_NAME, TEMP_SUFFIX, is_ours
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.locks import FileLock

log = logging.getLogger(__name__)

_IGNORED = {"lost+found"}  # the root of a freshly made ext file system has it
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class FileExtent:
    """One open file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def preadv(self, buffers: Sequence[memoryview], offset: int) -> int:
        return os.preadv(self._fd, buffers, offset)

    def pwritev(self, buffers: Sequence[memoryview], offset: int) -> int:
        return os.pwritev(self._fd, buffers, offset)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FileDevice:
    """An existing directory, one that this user may write to unless `read_only`. Raises `StorageError` that says so.

    Its owner's alone: files are 0600, and `lock` makes the directory 0700. With `read_only` nothing is changed or made,
    a live writer elsewhere is `DirectoryLocked`, and several readers may share it.
    """

    def __init__(self, directory: Path, *, read_only: bool = False) -> None:
        self._directory = directory
        self._read_only = read_only
        self._lock = FileLock(directory / LOCK_NAME, shared=read_only)
        self.direct = True
        _check_directory(directory, os.R_OK | os.X_OK if read_only else os.R_OK | os.W_OK | os.X_OK)

    @property
    def path(self) -> str:
        return str(self._directory)

    def lock(self) -> None:
        try:
            acquired = self._lock.acquire()
        except (FileNotFoundError, PermissionError) as error:
            if self._read_only:  # a copy without its lock, or another user's: nobody to agree with
                return
            raise self._no_lock(error) from error
        except OSError as error:
            raise self._no_lock(error) from error
        if not acquired:
            raise DirectoryLocked(
                f"flash directory {self.path} belongs to another live process (it holds {LOCK_NAME}); "
                "allowed: one process a directory, or several that only read"
            )
        if not self._read_only:
            self._make_private()

    def unlock(self) -> None:
        self._lock.release()

    def sizes(self) -> dict[str, int]:
        found = {}
        for entry in os.scandir(self._directory):
            if entry.name in _IGNORED:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            found[entry.name] = max(status.st_size, status.st_blocks * 512)
        return found

    def free_bytes(self) -> int:
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize

    def capacity_bytes(self) -> int:
        status = os.statvfs(self._directory)
        return status.f_blocks * status.f_frsize

    def create(self, name: str, size_bytes: int) -> Extent:
        self._need_writable(name)
        path = self._directory / name
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            return self.open(name)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def reuse(self, old: str, new: str, size_bytes: int) -> Extent:
        self._need_writable(new)
        path = self._directory / new
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        (self._directory / old).rename(path)
        points.reach("flash.segment.renamed")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.posix_fallocate(fd, 0, size_bytes)
                os.ftruncate(fd, size_bytes)
            finally:
                os.close(fd)
            return FileExtent(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_DIRECT if self.direct else 0)))
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def open(self, name: str) -> Extent:
        path = self._directory / name
        flags = os.O_CLOEXEC | (os.O_RDONLY if self._read_only else os.O_RDWR)
        if self.direct:
            fd = _open_direct(path, flags)
            if fd is not None:
                return FileExtent(fd)
            self.direct = False
            log.warning("%s: its file system refuses O_DIRECT; I/O goes through the page cache", self.path)
        return FileExtent(os.open(path, flags))

    def delete(self, name: str) -> None:
        self._need_writable(name)
        (self._directory / name).unlink(missing_ok=True)

    def put(self, name: str, data: bytes) -> None:
        self._need_writable(name)
        kind = name.rpartition(".")[2]
        temp = self._directory / (name + TEMP_SUFFIX)
        try:
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            points.reach(f"flash.{kind}.tmp")
            temp.rename(self._directory / name)
        except OSError:
            with contextlib.suppress(OSError):
                temp.unlink(missing_ok=True)
            raise
        self._sync_names()
        points.reach(f"flash.{kind}.renamed")

    def get(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def _need_writable(self, name: str) -> None:
        if self._read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self._directory / name))

    def _no_lock(self, error: OSError) -> StorageError:
        return StorageError(
            f"flash directory {self.path} cannot be locked ({error.strerror}); allowed: one that this user may write to"
        )

    def _make_private(self) -> None:
        """Take group and others off a directory that is ours alone; a shared one is only spoken of."""
        status = self._directory.stat()
        mode = stat.S_IMODE(status.st_mode)
        if not mode & _OTHERS:
            return
        shared = mode & stat.S_ISVTX or not all(map(is_ours, self.sizes()))
        try:
            if not shared and status.st_uid == os.geteuid():
                self._directory.chmod(mode & ~_OTHERS)
                return
        except OSError:  # a file system without modes
            pass
        log.warning("%s: others may enter it (mode %o); people's data wants one of its own, 0700", self.path, mode)

    def _sync_names(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _check_directory(directory: Path, access: int) -> None:
    try:
        found = directory.exists()
    except OSError as error:  # a name too long, a parent that may not be entered
        allowed = "allowed: the path of an existing directory"
        raise StorageError(f"flash directory {directory}: {error.strerror}; {allowed}") from error
    if not found:
        how = f"create it with: mkdir -p -m 700 {directory}"
        raise StorageError(f"flash directory {directory} does not exist; {how}")
    if not directory.is_dir():
        raise StorageError(f"flash directory {directory} is not a directory; allowed: a directory of its own")
    writes = access & os.W_OK
    if (writes and os.statvfs(directory).f_flag & os.ST_RDONLY) or not os.access(directory, access):
        what, verb = ("read-only", "write to") if writes else ("closed to this user", "read")
        raise StorageError(f"flash directory {directory} is {what}; allowed: one that this user may {verb}")


def _open_direct(path: Path, flags: int) -> int | None:
    """A descriptor past the page cache, or None where open or a read of one page is refused."""
    try:
        fd = os.open(path, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return None
    try:
        os.preadv(fd, [pages(PAGE_BYTES)], 0)
    except OSError as error:
        os.close(fd)
        if error.errno != errno.EINVAL:
            raise
        return None
    return fd

"""A directory as a device: one file an extent, O_DIRECT where the file system takes it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from hifc_ray import points
from hifc_ray.errors import DirectoryLocked, StorageError
from hifc_ray.flash.device import Extent, pages
from hifc_ray.flash.format import LOCK_NAME, TEMP_SUFFIX
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.locks import FileLock

_IGNORED = {"lost+found"}  # the root of a freshly made ext file system has it


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
    """An existing, writable directory. Files are 0600. Raises `StorageError` that says what is allowed."""

    def __init__(self, directory: Path, read_only: bool = False) -> None:
        self._directory = directory
        self._lock = FileLock(directory / LOCK_NAME)
        self.direct = True
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
        read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
        if read_only or not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
            raise StorageError(f"flash directory {directory} is read-only; allowed: one that this user may write to")

    @property
    def path(self) -> str:
        return str(self._directory)

    def lock(self) -> None:
        try:
            acquired = self._lock.acquire()
        except OSError as error:
            raise StorageError(
                f"flash directory {self.path} cannot be locked ({error.strerror}); "
                "allowed: one that this user may write to"
            ) from error
        if not acquired:
            raise DirectoryLocked(
                f"flash directory {self.path} belongs to another live process (it holds {LOCK_NAME}); "
                "allowed: one process a directory"
            )

    def unlock(self) -> None:
        self._lock.release()

    def sizes(self) -> dict[str, int]:
        found = {}
        for entry in os.scandir(self._directory):
            if entry.name in _IGNORED:
                continue
            try:
                stat = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            found[entry.name] = max(stat.st_size, stat.st_blocks * 512)
        return found

    def capacity_bytes(self) -> int:
        stat = os.statvfs(self._directory)
        return stat.f_blocks * stat.f_frsize

    def free_bytes(self) -> int:
        stat = os.statvfs(self._directory)
        return stat.f_bavail * stat.f_frsize

    def create(self, name: str, size_bytes: int) -> Extent:
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

    def open(self, name: str) -> Extent:
        path = self._directory / name
        if self.direct:
            fd = self._open_direct(path)
            if fd is not None:
                return FileExtent(fd)
            self.direct = False
        return FileExtent(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def delete(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    def put(self, name: str, data: bytes) -> None:
        temp = self._directory / (name + TEMP_SUFFIX)
        try:
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            points.reach("flash.hint.tmp")
            temp.rename(self._directory / name)
        except OSError:
            temp.unlink(missing_ok=True)
            raise
        self._sync_names()
        points.reach("flash.hint.renamed")

    def get(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def _sync_names(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @staticmethod
    def _open_direct(path: Path) -> int | None:
        """A descriptor past the page cache, or None where open or a read of one page is refused."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
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

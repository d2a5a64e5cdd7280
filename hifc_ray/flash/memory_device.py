"""A device in memory: the twin of `FileDevice`, for tests and for trying the cache without a disk."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence

from hifc_ray import points
from hifc_ray.errors import DirectoryLocked
from hifc_ray.flash.device import Extent
from hifc_ray.flash.format import LOCK_NAME


class MemoryExtent:
    """A byte array that outlives its name, as an open file does."""

    def __init__(self, data: bytearray) -> None:
        self.data = data

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def preadv(self, buffers: Sequence[memoryview], offset: int) -> int:
        done = 0
        for buffer in buffers:
            piece = self.data[offset + done : offset + done + len(buffer)]
            buffer[: len(piece)] = piece
            done += len(piece)
        return done

    def pwritev(self, buffers: Sequence[memoryview], offset: int) -> int:
        done = 0
        for buffer in buffers:
            start = offset + done
            if start > len(self.data):
                self.data.extend(bytes(start - len(self.data)))
            self.data[start : start + len(buffer)] = buffer
            done += len(buffer)
        return done

    def truncate(self, size_bytes: int) -> None:
        del self.data[size_bytes:]

    def sync(self) -> None:
        """Memory is as durable as it gets."""

    def close(self) -> None:
        """Nothing to give back."""


class MemoryDevice:
    """Extents and small files by name, up to `capacity_bytes` in all. What it holds outlives the store that used it."""

    def __init__(self, capacity_bytes: int = 1 << 40, path: str = "memory") -> None:
        self.path = path
        self.direct = False
        self.files: dict[str, bytearray] = {}
        self._capacity_bytes = capacity_bytes
        self._owner = threading.Lock()

    def lock(self) -> None:
        if not self._owner.acquire(blocking=False):
            raise DirectoryLocked(f"flash device {self.path} belongs to another store; allowed: one store a device")
        self.files.setdefault(LOCK_NAME, bytearray())

    def unlock(self) -> None:
        if self._owner.locked():
            self._owner.release()

    def sizes(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.files.items()}

    def free_bytes(self) -> int:
        return self._capacity_bytes - sum(self.sizes().values())

    def capacity_bytes(self) -> int:
        return self._capacity_bytes

    def create(self, name: str, size_bytes: int) -> Extent:
        if name in self.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self._need(size_bytes)
        self.files[name] = bytearray(size_bytes)
        return MemoryExtent(self.files[name])

    def reuse(self, old: str, new: str, size_bytes: int) -> Extent:
        if new in self.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        data = self._find(old)
        self._need(size_bytes - len(data))
        self.files[new] = self.files.pop(old)
        points.reach("flash.segment.renamed")
        del data[size_bytes:]
        data.extend(bytes(size_bytes - len(data)))
        return self.open(new)

    def open(self, name: str) -> Extent:
        return MemoryExtent(self._find(name))

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def put(self, name: str, data: bytes) -> None:
        self._need(len(data))
        kind = name.rpartition(".")[2]
        points.reach(f"flash.{kind}.tmp")
        self.files[name] = bytearray(data)
        points.reach(f"flash.{kind}.renamed")

    def get(self, name: str) -> bytes:
        return bytes(self._find(name))

    def _find(self, name: str) -> bytearray:
        try:
            return self.files[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None

    def _need(self, size_bytes: int) -> None:
        if size_bytes > self.free_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

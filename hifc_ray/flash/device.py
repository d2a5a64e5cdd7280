"""The contract of a device: a directory of extents (preallocated, fixed size) and small files replaced whole.

It knows bytes and names, nothing of caches. Faults are OSError.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from typing import Protocol

# What one extent may use beyond its size: the file system's own blocks that map a fragmented file.
METADATA_BYTES = 16 * 1024

_scratch = threading.local()


class Extent(Protocol):
    """An open extent. Stays usable after `Device.delete` until it is closed. Safe from several threads."""

    @property
    def size_bytes(self) -> int: ...

    def preadv(self, buffers: Sequence[memoryview], offset: int) -> int:
        """Bytes read into the buffers. Buffers, their lengths and the offset are whole pages."""

    def pwritev(self, buffers: Sequence[memoryview], offset: int) -> int:
        """Bytes written. Buffers, their lengths and the offset are whole pages."""

    def truncate(self, size_bytes: int) -> None:
        """Give back what lies beyond."""

    def sync(self) -> None:
        """Return when everything written before survives a power loss."""

    def close(self) -> None: ...


class FilePlace(Protocol):
    """Where small files go: a device, or what stands between one and those who write them."""

    @property
    def path(self) -> str:
        """How messages name it."""

    def put(self, name: str, data: bytes) -> None:
        """Replace a small file whole, or not at all; when this returns, it and all names here survive a power loss."""

    def get(self, name: str) -> bytes:
        """A small file. Raises FileNotFoundError."""


class Device(Protocol):
    """A place for extents and small files. Locked by one owner at a time.

    One that was opened only to be read may be locked by several, and refuses create, put and delete: OSError (EROFS).
    """

    @property
    def path(self) -> str:
        """How messages name it."""

    @property
    def direct(self) -> bool:
        """Does I/O go past the page cache? False where the file system refuses O_DIRECT."""

    def lock(self) -> None:
        """Own the device until `unlock` or the death of the process. Raises `DirectoryLocked`."""

    def unlock(self) -> None: ...

    def sizes(self) -> dict[str, int]:
        """Everything that lies here by name, foreign things included, with the bytes that each occupies."""

    def free_bytes(self) -> int:
        """Room that is left for new extents."""

    def capacity_bytes(self) -> int:
        """All that the medium under it holds, used or not."""

    def create(self, name: str, size_bytes: int) -> Extent:
        """A new extent, preallocated whole, reading as zeros. Raises OSError (ENOSPC) and then leaves nothing."""

    def reuse(self, old: str, new: str, size_bytes: int) -> Extent:
        """An extent that nobody has open, under another name and of this size. What was written to it may still be
        there; what is added reads as zeros. Raises OSError, and then it has its old name, or is gone.

        Why: writing over blocks that were written before costs no allocation; here it is half as fast again.
        """

    def open(self, name: str) -> Extent: ...

    def delete(self, name: str) -> None:
        """Remove an extent or a small file; nothing happens if there is none."""

    def put(self, name: str, data: bytes) -> None:
        """Replace a small file whole, or not at all; when this returns, it and all names here survive a power loss."""

    def get(self, name: str) -> bytes:
        """A small file. Raises FileNotFoundError."""


def pages(size_bytes: int) -> memoryview:
    """Zeroed, page-aligned memory."""
    return memoryview(mmap.mmap(-1, size_bytes))


def scratch_pages(use: str, size_bytes: int) -> memoryview:
    """Page-aligned memory of this thread, with anything in it, good until the next call for the same use."""
    kept: memoryview | None = getattr(_scratch, use, None)
    if kept is None or len(kept) < size_bytes:
        kept = pages(size_bytes)
        setattr(_scratch, use, kept)
    return kept[:size_bytes]

"""A segment: one header page (stamp, uuid, sequence, size, checksum), then records until its end."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

from hifc_ray.errors import CorruptRecord
from hifc_ray.flash.device import Extent, pages
from hifc_ray.flash.format import STAMP, check_checksum, check_stamp, put_checksum, stamp
from hifc_ray.layout import PAGE_BYTES

MAGIC = b"HIFC-SEG"
UUID_BYTES = 16

_FIXED = struct.Struct("<16sQQ")


class Segment:
    """An open extent and where its next record goes. `readers` and `gone` belong to the lock of its log."""

    def __init__(self, sequence: int, uuid: bytes, extent: Extent) -> None:
        self.sequence = sequence
        self.uuid = uuid
        self.extent = extent
        self.size_bytes = extent.size_bytes
        self.end = PAGE_BYTES  # where the next record goes
        self.next_ordinal = 0
        self.sealed = False
        self.readers = 0
        self.gone = False  # no longer in the log: the last reader closes it

    @property
    def room_bytes(self) -> int:
        return 0 if self.sealed else self.size_bytes - self.end

    def read(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Fill the buffers. Raises OSError, for a short read too."""
        wanted = sum(map(len, buffers))
        got = self.extent.preadv(buffers, offset)
        if got != wanted:
            raise OSError(f"segment {self.sequence}: read {got} of {wanted} bytes at {offset}")

    def write(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Write the buffers. Raises OSError, for a short write too."""
        wanted = sum(map(len, buffers))
        done = self.extent.pwritev(buffers, offset)
        if done != wanted:
            raise OSError(f"segment {self.sequence}: wrote {done} of {wanted} bytes at {offset}")

    def trim(self) -> None:
        """Give back what lies beyond the last record."""
        self.extent.truncate(self.end)
        self.size_bytes = self.end


def begin(sequence: int, extent: Extent) -> Segment:
    """A new segment: writes its header page."""
    segment = Segment(sequence, os.urandom(UUID_BYTES), extent)
    page = pages(PAGE_BYTES)
    data = stamp(MAGIC) + _FIXED.pack(segment.uuid, sequence, extent.size_bytes)
    page[: len(data)] = data
    put_checksum(page)
    segment.write([page], 0)
    return segment


def load(sequence: int, extent: Extent, what: str) -> Segment | None:
    """The segment in an extent that was found under this sequence number; None if it was never begun (all zeros).

    Raises `NewerFormat`, or `CorruptRecord` if the header is not that of this sequence number.
    """
    page = pages(PAGE_BYTES)
    if extent.preadv([page], 0) != PAGE_BYTES or not any(page):
        return None
    check_stamp(page, MAGIC, what)
    check_checksum(page, what)
    uuid, found, _ = _FIXED.unpack_from(page, STAMP.size)
    if found != sequence:
        raise CorruptRecord(f"{what}: header says segment {found}")
    return Segment(sequence, uuid, extent)

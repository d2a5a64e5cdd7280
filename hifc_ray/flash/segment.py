"""A segment: one header page (stamp, uuid, sequence, size, checksum), then records until its end, then its filter."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

from hifc_ray.errors import CorruptRecord
from hifc_ray.flash.address import segment_number
from hifc_ray.flash.device import Extent, pages
from hifc_ray.flash.format import STAMP, check_checksum, check_stamp, put_checksum, stamp
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.types import Namespace, Owner

MAGIC = b"HIFC-SEG"
UUID_BYTES = 16

_FIXED = struct.Struct("<16sQQ")


class Segment:
    """An open extent and where its next record goes. What changes belongs to the lock of its log."""

    def __init__(self, sequence: int, uuid: bytes, extent: Extent, volume: int = 0) -> None:
        self.sequence = sequence  # on its volume, as its bytes say
        self.number = segment_number(volume, sequence)
        self.uuid = uuid
        self.extent = extent
        self.size_bytes = extent.size_bytes
        self.end = PAGE_BYTES  # where the next record goes
        self.full = False  # takes no more records; sealed when those under way are written
        self.sealed = False
        self.readers = 0
        self.writers = 0
        self.gone = False  # no longer in the log: the last reader closes it
        self.reused = False  # behind its end there may be bytes of a dropped segment
        self.owners: set[tuple[Owner, Namespace]] = set()  # whose blocks went into it, as long as it is open

    @property
    def room_bytes(self) -> int:
        return 0 if self.full or self.sealed else self.size_bytes - self.end

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

    def trim(self, size_bytes: int) -> None:
        """Give back what lies beyond."""
        self.extent.truncate(size_bytes)
        self.size_bytes = size_bytes


def begin(sequence: int, extent: Extent, volume: int = 0) -> Segment:
    """A new segment: writes its header page."""
    segment = Segment(sequence, os.urandom(UUID_BYTES), extent, volume)
    page = pages(PAGE_BYTES)
    data = stamp(MAGIC) + _FIXED.pack(segment.uuid, sequence, extent.size_bytes)
    page[: len(data)] = data
    put_checksum(page)
    segment.write([page], 0)
    return segment


def load(sequence: int, extent: Extent, what: str, volume: int = 0) -> Segment | None:
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
    return Segment(sequence, uuid, extent, volume)

"""Appending: records of several blocks side by side, one write for as many as fit."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from hifc_ray import points
from hifc_ray.clock import Clock
from hifc_ray.flash.address import Place, pack
from hifc_ray.flash.device import pages
from hifc_ray.flash.index import Entry, Index
from hifc_ray.flash.record import EncodedBlock, write_header
from hifc_ray.flash.segment import Segment
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.stats import Stats
from hifc_ray.types import Tier

# The kernel takes at most 1024 buffers (IOV_MAX) in one call.
_MAX_BUFFERS = 1024
# Longer writes gain no bandwidth, and hold the device's queue against readers.
_MAX_RUN_BYTES = 128 << 20


def take(pending: Sequence[EncodedBlock], room_bytes: int) -> list[EncodedBlock]:
    """The longest head of `pending` that goes into one write; at least one block."""
    taken: list[EncodedBlock] = []
    size = buffers = 0
    for block in pending:
        size += block.record_bytes
        buffers += 1 + len(block.pieces)
        if taken and (size > min(room_bytes, _MAX_RUN_BYTES) or buffers > _MAX_BUFFERS):
            break
        taken.append(block)
    return taken


class Writer:
    """Writes runs of records at the end of a segment and then publishes them. For the holder of the store's pen."""

    def __init__(self, index: Index, stats: Stats, clock: Clock, lock: threading.Lock) -> None:
        self._index = index
        self._stats = stats
        self._clock = clock
        self._lock = lock

    def write(self, segment: Segment, run: list[EncodedBlock]) -> list[Entry]:
        """One write, then the index. After an OSError none of the run is indexed, and its room is used again."""
        buffers, entries, end = self._lay_out(segment, run)
        segment.next_ordinal += len(run)
        points.reach("flash.append.header")
        start = self._clock.now()
        try:
            for first in range(0, len(buffers), _MAX_BUFFERS):
                part = buffers[first : first + _MAX_BUFFERS]
                segment.write(part, segment.end + sum(map(len, buffers[:first])))
        except OSError:
            with contextlib.suppress(OSError):  # so that a restart does not find it either
                segment.write([pages(PAGE_BYTES)], segment.end)
            raise
        points.reach("flash.append.written")
        with self._lock:
            self._index.add(entries)
        self._count(run, end - segment.end, self._clock.now() - start)
        segment.end = end
        return entries

    def _lay_out(self, segment: Segment, run: list[EncodedBlock]) -> tuple[list[memoryview], list[Entry], int]:
        heads = pages(sum(block.header_bytes for block in run))
        buffers: list[memoryview] = []
        entries: list[Entry] = []
        offset = segment.end
        for row, block in enumerate(run):
            head, heads = heads[: block.header_bytes], heads[block.header_bytes :]
            write_header(block.header(segment.sequence, segment.uuid, offset, segment.next_ordinal + row), head)
            place = Place(segment.sequence, offset, block.header_bytes, block.payload_bytes)
            buffers += [head, *block.pieces]
            entries.append(Entry(block.block.key, block.block.namespace, pack(place)))
            offset = place.end
        return buffers, entries, offset

    def _count(self, run: list[EncodedBlock], written_bytes: int, seconds: float) -> None:
        self._stats.add("blocks_stored", len(run), tier=Tier.FLASH)
        self._stats.add("stored_bytes", sum(block.block.payload_bytes for block in run), tier=Tier.FLASH)
        self._stats.add("device_written_bytes", written_bytes, tier=Tier.FLASH)
        self._stats.add("write_s", seconds, tier=Tier.FLASH)

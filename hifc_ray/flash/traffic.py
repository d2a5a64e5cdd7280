"""Reads before writes on one device: a large write goes in pieces, and lets the reads that wait go first between them.

Somebody waits for a read; nobody for a write. But a write that never ends is a block that is never stored, so each
piece waits for a stated time at most.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from hifc_ray.clock import Clock
from hifc_ray.layout import PAGE_BYTES

_HEADERS_BYTES = 64 << 10  # so that a block of a round size goes in one piece with its header, not in one and a bit
BUSY_PIECE_BYTES = (1 << 20) + _HEADERS_BYTES  # while reads are in flight: what a read that comes now waits for
FREE_PIECE_BYTES = (8 << 20) + _HEADERS_BYTES
MAX_BUFFERS = 1024  # of one preadv or pwritev: IOV_MAX of Linux


class Traffic:
    """Who is reading one device. Safe from any thread. `with traffic:` is around each read."""

    def __init__(self, clock: Clock) -> None:
        self.num_reads = 0
        self.waited_s = 0.0  # by all writes
        self._clock = clock
        self._idle = threading.Condition(threading.Lock())
        self._num_waiting = 0

    def __enter__(self) -> None:
        with self._idle:
            self.num_reads += 1

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        with self._idle:
            self.num_reads -= 1
            if not self.num_reads and self._num_waiting:
                self._idle.notify_all()

    def yield_to_reads(self, max_wait_s: float) -> int:
        """Wait until no read is in flight, or so long; then bytes that the next piece of a write may have."""
        if not self.num_reads:
            return FREE_PIECE_BYTES
        began_s = self._clock.now()
        with self._idle:
            self._num_waiting += 1
            try:
                idle = self._idle.wait_for(lambda: not self.num_reads, max_wait_s)
            finally:
                self._num_waiting -= 1
                self.waited_s += self._clock.now() - began_s
        return FREE_PIECE_BYTES if idle else BUSY_PIECE_BYTES


def pieces(buffers: Sequence[memoryview], max_bytes: int | Callable[[], int]) -> Iterator[list[memoryview]]:
    """The buffers in order, in lists of at most `max_bytes` (asked before each) and `MAX_BUFFERS` for one pwritev each.

    Buffers that are page-aligned and whole pages long are only cut at pages; at least a page goes at a time.
    """
    row = at = 0  # the next byte is byte `at` of buffer `row`
    while row < len(buffers):
        room = max_bytes() if callable(max_bytes) else max_bytes
        room = max(room // PAGE_BYTES, 1) * PAGE_BYTES
        piece: list[memoryview] = []
        while row < len(buffers) and room and len(piece) < MAX_BUFFERS:
            part = buffers[row][at : at + room]
            if len(part):
                piece.append(part)
            room -= len(part)
            at += len(part)
            if at == len(buffers[row]):
                row, at = row + 1, 0
        if piece:
            yield piece

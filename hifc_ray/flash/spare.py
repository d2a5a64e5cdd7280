"""The file of a dropped segment, kept blank until the next segment takes it over."""

from __future__ import annotations

import threading

from hifc_ray.flash.device import pages
from hifc_ray.flash.format import segment_name
from hifc_ray.flash.segment import Segment
from hifc_ray.layout import PAGE_BYTES


class Spare:
    """No restart takes it for a segment. Safe from any thread."""

    def __init__(self, segment: Segment) -> None:
        """Blanks its header. Raises OSError."""
        self.name = segment_name(segment.sequence)
        self._extent = segment.extent
        self._lock = threading.Lock()
        self._durable = False
        segment.write([pages(PAGE_BYTES)], 0)

    def settle(self, *, wait: bool = True) -> None:
        """Make that durable, or leave it to who is at it already. Raises OSError.

        It must be, before anything is written over: else a power loss could bring back the hint, but not the blocks.
        """
        if self._durable or not self._lock.acquire(blocking=wait):
            return
        try:
            if not self._durable:
                self._extent.sync()
                self._durable = True
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._extent.close()

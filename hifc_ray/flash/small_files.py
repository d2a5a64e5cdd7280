"""The small files beside a log (purges, faults, checkpoint): replaced whole, and counted against the byte limit."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

from hifc_ray.flash.device import Device
from hifc_ray.flash.format import SMALL_NAMES
from hifc_ray.flash.log import SegmentLog
from hifc_ray.layout import PAGE_BYTES, round_up


class SmallFiles:
    """`put` and `get` of a device, within the limit of its log. Safe from any thread."""

    def __init__(
        self, device: Device, log: SegmentLog, read_only: bool, on_written: Callable[[str, int], None]
    ) -> None:
        self.path = device.path
        self._device = device
        self._log = log
        self._read_only = read_only
        self._on_written = on_written
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}

    def adopt(self, sizes: dict[str, int]) -> None:
        """Count what lies on the device now."""
        self._sizes = {name: round_up(sizes[name], PAGE_BYTES) for name in SMALL_NAMES if name in sizes}
        self._log.set_aside(sum(self._sizes.values()), found=True)

    def put(self, name: str, data: bytes) -> None:
        """See `Device.put`. Raises OSError: EDQUOT if the limit has no room for it, EROFS of a read-only store."""
        if self._read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), self.path)
        size = round_up(len(data), PAGE_BYTES)
        with self._lock:
            after = {**self._sizes, name: size}
            both = sum(self._sizes.values()) + size  # old and new are there together for a moment
            if not self._log.set_aside(both):
                raise OSError(errno.EDQUOT, f"no room for {len(data)} bytes of {name}", self.path)
            try:
                self._device.put(name, data)
                self._sizes = after
            finally:
                self._log.set_aside(sum(self._sizes.values()))
        self._on_written(name, len(data))

    def get(self, name: str) -> bytes:
        """See `Device.get`."""
        return self._device.get(name)

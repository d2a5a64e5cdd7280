"""Taking out of flash, for good, what belongs to an owner or a namespace."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from hifc_ray.flash.address import volume_of_segment
from hifc_ray.flash.entries import EntryArray, join_rows, record_bytes, volumes
from hifc_ray.flash.index import Index
from hifc_ray.flash.purges import Selector
from hifc_ray.flash.volume import Volume


class Purger:
    """One purge at a time. `moving` is held by who copies blocks from one volume to another: a copy is a new record."""

    def __init__(
        self, on: Sequence[Volume], index: Index, lock: threading.Lock, moving: threading.Lock, timeout_s: float
    ) -> None:
        self._volumes = on
        self._index = index
        self._lock = lock
        self._moving = moving
        self._timeout_s = timeout_s
        self._unerased: list[EntryArray] = []  # taken out of the index by purges that failed then

    def purge(self, selector: Selector) -> tuple[int, int]:
        """Blocks that were taken out, and bytes of their records, which are overwritten when this returns.

        Raises OSError: what this selects is not served, but may be found by a restart until it is purged again.
        """
        gone = [self._withdraw(selector)]  # not served from here on
        if not self._moving.acquire(timeout=self._timeout_s):
            self._unerased += gone
            raise TimeoutError(f"blocks have been moved between devices for {self._timeout_s} s")
        try:
            self._unerased += gone
            for volume in self._volumes:
                last = volume.bar(selector, self._timeout_s)
                late = self._withdraw(selector, last)  # what was being written meanwhile
                self._unerased.append(late)
                gone.append(late)
            entries = join_rows(self._unerased)
            for volume in self._volumes:
                volume.erase(entries[volumes(entries["where"]) == volume.number])
                volume.quarantine.forget_pages()
            self._unerased = []
        finally:
            self._moving.release()
        entries = join_rows(gone)
        return len(entries), int(record_bytes(entries["extent"]).sum())

    def _withdraw(self, selector: Selector, last_segment: int | None = None) -> EntryArray:
        """Take out of the index what this selects, everywhere, or on one volume up to a segment of it."""
        with self._lock:
            rows = self._index.select(selector.tenant, selector.session, selector.namespace)
            if last_segment is not None:
                numbers = self._index.segments(rows)
                rows = rows[(volume_of_segment(numbers) == volume_of_segment(last_segment)) & (numbers <= last_segment)]
            entries = self._index.entries(rows)
            self._index.remove(rows)
        return entries

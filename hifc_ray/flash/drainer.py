"""Moving the blocks of a device that should not be written to any more to others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import numpy as np

from hifc_ray.errors import FlashFull, StaleAddress
from hifc_ray.flash.entries import EntryArray, addresses, key_of, segments, volumes
from hifc_ray.flash.index import Index
from hifc_ray.flash.volume import Volume
from hifc_ray.policy import Valuing
from hifc_ray.stats import Stats
from hifc_ray.types import Fate, Key, Tier

log = logging.getLogger(__name__)

DRAIN_BLOCKS = 32  # moved in one go: a purge waits for as long as that takes


class Drainer:
    """`moving` is held while blocks are copied; `draw` names the volume for so many bytes, if there is one."""

    def __init__(
        self,
        on: Sequence[Volume],
        index: Index,
        stats: Stats,
        lock: threading.Lock,
        moving: threading.Lock,
        policy: Valuing,
        draw: Callable[[int], int | None],
    ) -> None:
        self._volumes = on
        self._index = index
        self._stats = stats
        self._lock = lock
        self._moving = moving
        self._policy = policy
        self._draw = draw

    def drain(self, volume: Volume) -> None:
        """Move some blocks, the best first; a copy counts once it is there.

        Does nothing while a purge is under way, or no other volume takes blocks.
        """
        if not any(other.writable for other in self._volumes) or not self._moving.acquire(blocking=False):
            return
        try:
            entries = self._next(volume)
            for number in np.unique(segments(entries["where"])).tolist():
                self._move(volume, number, entries[segments(entries["where"]) == number])
        finally:
            self._moving.release()

    def _next(self, volume: Volume) -> EntryArray:
        with self._lock:
            rows = self._index.on_volume(volume.number)
            features = self._index.features(rows)
        best = rows[np.argsort(-self._policy.values(features), kind="stable")][:DRAIN_BLOCKS]
        with self._lock:
            entries = self._index.entries(best)
        here: EntryArray = entries[(entries["extent"] != 0) & (volumes(entries["where"]) == volume.number)]
        return here

    def _move(self, volume: Volume, number: int, entries: EntryArray) -> None:
        try:
            records = volume.records(number, entries)
            self._forget(entries, {record.key for record in records})
            target = self._draw(sum(record.record_bytes for record in records)) if records else None
            if target is not None:
                self._volumes[target].append(records)
                self._stats.add("drained_blocks", len(records), tier=Tier.FLASH)
        except (FlashFull, StaleAddress, OSError) as error:
            log.info("blocks of segment %d of %s stay where they are: %s", number, volume.path, error)

    def _forget(self, entries: EntryArray, held: set[Key]) -> None:
        """Those whose records do not hold: a drain that met them again and again would never end."""
        for words, address in zip(entries["key"], addresses(entries), strict=True):
            key = key_of(words)
            if key not in held:
                with self._lock:
                    row = self._index.at(key, address)
                    self._index.remove(np.array([row] if row >= 0 else [], np.int64), Fate.CORRUPT)

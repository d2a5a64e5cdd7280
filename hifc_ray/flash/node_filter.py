"""The one filter of a node: which keys may be on its flash, open segments included, for other nodes to ask.

Keys cannot be taken out of a Bloom filter. Those that have left the index are counted as dead; when they are a tenth
of all, or the filter is over its capacity, it is rebuilt from the index, a quarter larger than what it holds. So, at a
false-positive rate of 0.01, it takes 1.2 × 1.25 = 1.5 bytes a block when it is built and 1.67 at the next rebuild.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hifc_ray.clock import Clock
from hifc_ray.flash.filters import NODE_MAGIC, KeyFilter, decode
from hifc_ray.flash.key_table import KeyArray
from hifc_ray.types import BoolArray

_SPARE = 1.25  # capacity of a new filter over the keys it begins with
_DEAD_SHARE = 10  # rebuilt when a tenth of its keys are dead
_LEAST_KEYS = 64
_NOBODY = bytes(16)


@dataclass(frozen=True)
class Summary:
    """A node's filter as another node has got it."""

    filter: KeyFilter
    version: int  # rises with each rebuild

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Summary:
        """Raises `CorruptRecord` or `NewerFormat`."""
        found, _, version = decode(data, NODE_MAGIC, "summary of a node")
        return cls(found, version)

    def may_hold(self, keys: KeyArray) -> BoolArray:
        return self.filter.may_hold(keys)


class NodeFilter:
    """Keys in, deaths counted, rebuilt whole. Safe from any thread; its lock is held for no longer than `add` takes."""

    def __init__(self, false_positive_rate: float, clock: Clock) -> None:
        self.version = 0
        self.num_dead = 0
        self._rate = false_positive_rate
        self._clock = clock
        self._lock = threading.Lock()
        self._capacity = _LEAST_KEYS
        self._filter = KeyFilter.of_size(_LEAST_KEYS, false_positive_rate)
        self._built_at_s = clock.now()
        self._late: list[KeyArray] | None = None  # added while a new one is being built
        self._late_dead = 0

    @property
    def num_keys(self) -> int:
        """Keys in the filter, dead ones included."""
        return self._filter.num_keys

    @property
    def age_s(self) -> float:
        """Since it was built."""
        return self._clock.now() - self._built_at_s

    @property
    def needs_rebuild(self) -> bool:
        with self._lock:
            dead_enough = self.num_dead and self.num_dead * _DEAD_SHARE >= self._filter.num_keys
            return bool(dead_enough) or self._filter.num_keys > self._capacity

    def add(self, keys: KeyArray) -> None:
        """These are on flash now."""
        with self._lock:
            self._filter.add(keys)
            if self._late is not None:
                self._late.append(keys)

    def remove(self, num_keys: int) -> None:
        """So many keys have left the index."""
        with self._lock:
            self.num_dead += num_keys
            self._late_dead += num_keys

    def rebuild(self, living: Callable[[], KeyArray]) -> None:
        """Build anew from what `living` answers, in the caller's thread; others go on with the old one meanwhile.

        `living` is asked once. Keys added since then are in the new filter too, whether it has told them or not.
        """
        with self._lock:
            if self._late is not None:
                return  # somebody is at it
            self._late, self._late_dead = [], 0
        try:
            keys = living()
            capacity = max(_LEAST_KEYS, int(len(keys) * _SPARE))
            fresh = KeyFilter.of_size(capacity, self._rate)
            fresh.add(keys)
            with self._lock:
                for late in self._late:
                    fresh.add(late)
                self._filter, self._capacity = fresh, capacity
                self.num_dead = self._late_dead
                self.version += 1
                self._built_at_s = self._clock.now()
        finally:
            with self._lock:
                self._late = None

    def may_hold(self, keys: KeyArray) -> BoolArray:
        """False: not on flash."""
        with self._lock:
            return self._filter.may_hold(keys)

    def to_bytes(self) -> bytes:
        """As it is now, for `Summary.from_bytes`."""
        with self._lock:
            return self._filter.encode(NODE_MAGIC, _NOBODY, self.version, unit_bytes=1)

    def measured_fpr(self, num_probes: int, rng: np.random.Generator) -> float:
        """Share of random keys, which no index holds, that it says may be here."""
        probes = rng.integers(0, 1 << 64, (num_probes, 4), np.uint64)
        return float(self.may_hold(probes).mean())

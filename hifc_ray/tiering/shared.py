"""What the parts of a `TieredCache` share, and the one lock around it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from hifc_ray.clock import Clock
from hifc_ray.config import TierConfig
from hifc_ray.flash import FlashStore
from hifc_ray.host import Arena, HostBooks
from hifc_ray.messages import Purge
from hifc_ray.policy import AdmissionPolicy
from hifc_ray.stats import Stats
from hifc_ray.tiering.fates import Fates
from hifc_ray.types import Fate, Key, Namespace


@dataclass
class Shared:
    """`lock` guards books, fates, grants, holders and admission. It is never held during I/O, copies or scoring.

    Flash has its own lock inside, never held during I/O: what only looks at its index or sets its live namespaces may
    be called under ours, reads and appends are called without.
    """

    config: TierConfig
    arena: Arena
    books: HostBooks
    flash: FlashStore | None
    admission: AdmissionPolicy  # of flash
    stats: Stats
    clock: Clock
    fates: Fates = field(default_factory=Fates)
    lock: threading.Lock = field(default_factory=threading.Lock)
    pressure: threading.Event = field(default_factory=threading.Event)  # set: look at the watermarks now
    barred: list[Purge] = field(default_factory=list)  # being purged: what flash still has of it is not served
    closed: bool = False  # nobody is answered, and nobody changes the books, any more

    @property
    def low_slots(self) -> int:
        """Eviction starts when fewer slots than this are free; at the latest when none is."""
        return max(1, _ceil(self.config.host.low_watermark * self.arena.num_slots))

    @property
    def high_slots(self) -> int:
        """Eviction stops when this many slots are free."""
        return max(self.low_slots, _ceil(self.config.host.high_watermark * self.arena.num_slots))

    def press(self) -> None:
        """Wake whoever makes room, if there is room to make. Called with the lock."""
        if not self.pressure.is_set() and self.books.num_soon_free < self.low_slots:
            self.pressure.set()

    def fate(self, key: Key) -> Fate:
        """Why this key is not here."""
        fate = self.fates.get(key)
        if self.flash is not None:
            fate = self.flash.fate(key) or fate
        return fate

    def keys(self, slots: Sequence[int]) -> list[Key]:
        return [self.books.table.key(slot) for slot in slots]

    def live_namespaces(self, namespaces: set[Namespace]) -> None:
        """These namespaces are in use; blocks of all others leave first. Called with the lock."""
        self.books.mark_foreign(namespaces)
        if self.flash is not None:
            self.flash.set_live_namespaces(namespaces)


def _ceil(value: float) -> int:
    return int(-(-value // 1))

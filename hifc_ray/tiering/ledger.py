"""What one holder has leased, counted on the holder's side: two sequences of one engine may lease the same slot."""

from __future__ import annotations

import numpy as np

from hifc_ray.client import Lease
from hifc_ray.messages import Held
from hifc_ray.types import SlotArray


class LeaseLedger:
    """Counts leases by slot. Used from one thread at a time."""

    def __init__(self, num_slots: int) -> None:
        self._counts = np.zeros(num_slots, np.int64)
        self._generations = np.zeros(num_slots, np.uint64)

    def add(self, lease: Lease) -> None:
        self._counts[lease.slots] += 1
        self._generations[lease.slots] = lease.generations

    def remove(self, lease: Lease) -> SlotArray:
        """Take one lease off; returns the slots that this holder no longer needs at all."""
        before = self._counts[lease.slots]
        if len(before.nonzero()[0]) < len(before):
            raise ValueError(f"lease of {len(lease)} slots was given back twice")
        self._counts[lease.slots] = before - 1
        idle: SlotArray = lease.slots[before == 1]
        return idle

    def held(self) -> Held:
        """Everything that is leased now, as each call to a tier carries it."""
        slots = np.flatnonzero(self._counts).astype(np.int64)
        return Held(slots, self._generations[slots])

"""The write budget of a device: a bucket that fills at its rated bytes a day, from which admission draws.

It starts full, so that a new cache fills at once, and holds `burst_days` of writing at most. What must be written
whether or not there is budget (headers, carry-over, hints) is charged, which may leave a debt that admission waits out.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

from hifc_ray.clock import Clock

DAY_S = 86_400.0
_LEAST_SEEN_S = 60.0  # a rate over less says nothing


class WriteBudget:
    """Bytes that may be written, and how many are. `bytes_per_day` 0 is no limit. Safe from any thread."""

    def __init__(self, bytes_per_day: float, clock: Clock, burst_days: float = 1.0) -> None:
        self.bytes_per_day = bytes_per_day
        self._capacity = bytes_per_day * burst_days
        self._clock = clock
        self._lock = threading.Lock()
        self._level_bytes = self._capacity
        self._recent_bytes = 0.0  # each counts exp(-its age / a day)
        self._seen_s = 0.0  # how long they have been counted
        self._at_s = clock.now()

    def draw(self, num_bytes: int) -> bool:
        """Take so many bytes for a write that admission wants, or nothing if they are not there."""
        with self._lock:
            self._advance()
            if self.bytes_per_day and self._level_bytes < num_bytes:
                return False
            self._take(num_bytes)
            return True

    def charge(self, num_bytes: int) -> None:
        """Take them whether they are there or not, for what is written without asking."""
        with self._lock:
            self._advance()
            self._take(num_bytes)

    @property
    def level(self) -> float:
        """How full the bucket is, in [0, 1]; 1 without a limit, 0 in debt."""
        with self._lock:
            self._advance()
            return max(0.0, self._share())

    @property
    def written_per_day(self) -> float:
        """Bytes a day at the present rate, which forgets with a time constant of a day."""
        with self._lock:
            self._advance()
            seen_s = max(self._seen_s, _LEAST_SEEN_S)
            return self._recent_bytes / -math.expm1(-seen_s / DAY_S)

    def state(self) -> dict[str, float]:
        """Plain numbers for a checkpoint."""
        with self._lock:
            self._advance()
            return {"share": self._share(), "recent_bytes": self._recent_bytes, "seen_s": self._seen_s}

    def restore(self, state: Mapping[str, float], age_s: float) -> None:
        """Go on, once, from a `state` taken so long ago (by the wall clock), nothing having been written since.

        The bucket is as full as it was, whatever the limit was then. A state that is not one changes nothing.
        """
        try:
            share, recent, seen_s = (float(state[name]) for name in ("share", "recent_bytes", "seen_s"))
        except (KeyError, TypeError, ValueError):
            return
        if not (math.isfinite(share + recent + seen_s + age_s) and recent >= 0 and seen_s >= 0):
            return
        with self._lock:
            self._advance()
            written = self._recent_bytes  # since this process began
            self._level_bytes = share * self._capacity
            self._recent_bytes, self._seen_s = recent, seen_s
            self._pass(max(age_s, 0.0))
            self._take(written)

    def _share(self) -> float:
        return self._level_bytes / self._capacity if self.bytes_per_day else 1.0

    def _take(self, num_bytes: float) -> None:
        self._level_bytes -= num_bytes
        self._recent_bytes += num_bytes

    def _advance(self) -> None:
        now = self._clock.now()
        self._pass(now - self._at_s)
        self._at_s = now

    def _pass(self, seconds: float) -> None:
        refilled = self._level_bytes + seconds / DAY_S * self.bytes_per_day
        self._level_bytes = min(refilled, self._capacity)
        self._recent_bytes *= math.exp(-seconds / DAY_S)
        self._seen_s += seconds

"""A circuit breaker: a device that errs or stalls too often is left alone for a while, then tried with one call.

                 fault: the last `max_faults` of them lie within `window_s`
      CLOSED ----------------------------------------------------------------> OPEN <------+
        ^                                                                       |          | fault: the interval
        |                                                 may_probe, an interval|          | doubles, up to 16 times
        | success: the interval is `retry_s` again             after it opened v          | `retry_s`
        +------------------------------------------------------------------ HALF_OPEN -----+

Faults that come in while it is OPEN, of calls begun before, change nothing; neither do their successes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from enum import StrEnum

from hifc_ray.clock import Clock

_MAX_DOUBLINGS = 4  # 16 times the first interval


class BreakerState(StrEnum):
    CLOSED = "closed"  # in use
    OPEN = "open"  # left alone
    HALF_OPEN = "half-open"  # one call is trying it


class Breaker:
    """One device's. Safe from any thread; `on_change` (from, to) is called without the lock, by whoever caused it."""

    def __init__(
        self,
        max_faults: int,
        window_s: float,
        retry_s: float,
        clock: Clock,
        on_change: Callable[[BreakerState, BreakerState], None] = lambda before, after: None,
    ) -> None:
        self.state = BreakerState.CLOSED
        self._max_faults = max_faults
        self._window_s = window_s
        self._retry_s = retry_s
        self._clock = clock
        self._on_change = on_change
        self._lock = threading.Lock()
        self._faults: deque[float] = deque(maxlen=max_faults)
        self._doublings = 0
        self._probe_at_s = 0.0

    def allows(self) -> bool:
        """May this device be used as usual? Costs nothing."""
        return self.state is BreakerState.CLOSED

    def may_probe(self) -> bool:
        """True for the one caller who is to try the device now and to say how it went.

        One who does not come back, since the device stalls, holds nobody up: the next may try an interval later.
        """
        with self._lock:
            now = self._clock.now()
            if self.state is BreakerState.CLOSED or now < self._probe_at_s:
                return False
            self._probe_at_s = now + self._interval_s()
            before = self._become(BreakerState.HALF_OPEN)
        self._tell(before)
        return True

    def fault(self) -> None:
        """An I/O of this device has failed, or has not come back in time."""
        with self._lock:
            now = self._clock.now()
            self._faults.append(now)
            if self.state is BreakerState.OPEN:
                return
            if self.state is BreakerState.HALF_OPEN:
                self._doublings = min(self._doublings + 1, _MAX_DOUBLINGS)
            elif len(self._faults) < self._max_faults or now - self._faults[0] > self._window_s:
                return
            self._probe_at_s = now + self._interval_s()
            before = self._become(BreakerState.OPEN)
        self._tell(before)

    def success(self) -> None:
        """An I/O of this device has gone well."""
        if self.state is not BreakerState.HALF_OPEN:
            return
        with self._lock:
            if self.state is not BreakerState.HALF_OPEN:
                return
            self._faults.clear()
            self._doublings = 0
            before = self._become(BreakerState.CLOSED)
        self._tell(before)

    def _interval_s(self) -> float:
        return self._retry_s * 2.0**self._doublings

    def _become(self, state: BreakerState) -> tuple[BreakerState, BreakerState]:
        before, self.state = self.state, state
        return before, state

    def _tell(self, change: tuple[BreakerState, BreakerState]) -> None:
        if change[0] is not change[1]:
            self._on_change(*change)

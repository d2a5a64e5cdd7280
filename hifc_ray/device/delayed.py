"""`DelayedCopies`: copies that begin only when a test lets them, to prove the device order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from hifc_ray.device.copies import Copies, Ticket

Direction = Literal["in", "out"]


class _HeldTicket:
    """A copy that has been asked for and not begun."""

    def __init__(self, start: Callable[[], Ticket]) -> None:
        self._start = start
        self._begun = threading.Event()
        self._inner: Ticket | None = None

    def begin(self) -> None:
        self._inner = self._start()
        self._begun.set()

    @property
    def elapsed_s(self) -> float:
        return self._inner.elapsed_s if self._inner is not None else 0.0

    def done(self) -> bool:
        return self._inner is not None and self._inner.done()

    def wait(self, timeout_s: float | None = None) -> bool:
        if not self._begun.wait(timeout_s):
            return False
        assert self._inner is not None
        return self._inner.wait(timeout_s)


class DelayedCopies:
    """Wraps copies; while a direction is held, its copies wait for `release`, and then run in their order."""

    def __init__(self, inner: Copies, hold: tuple[Direction, ...] = ()) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._held: dict[Direction, list[_HeldTicket]] = {direction: [] for direction in hold}

    def hold(self, direction: Direction) -> None:
        """From now on copies in this direction wait."""
        with self._lock:
            self._held.setdefault(direction, [])

    def release(self, direction: Direction) -> int:
        """Let the held copies run, and later ones pass; returns how many there were."""
        with self._lock:
            tickets = self._held.pop(direction, [])
        for ticket in tickets:
            ticket.begin()
        return len(tickets)

    def num_held(self, direction: Direction) -> int:
        """Copies that wait now."""
        with self._lock:
            return len(self._held.get(direction, []))

    def copy_in(self, slot: memoryview, block: int) -> Ticket:
        return self._pass("in", lambda: self._inner.copy_in(slot, block))

    def copy_out(self, block: int, slot: memoryview) -> Ticket:
        return self._pass("out", lambda: self._inner.copy_out(block, slot))

    def _pass(self, direction: Direction, start: Callable[[], Ticket]) -> Ticket:
        with self._lock:
            if direction in self._held:
                ticket = _HeldTicket(start)
                self._held[direction].append(ticket)
                return ticket
        return start()

    def close(self) -> None:
        for direction in tuple(self._held):
            self.release(direction)
        self._inner.close()

"""One direction between two places (flash → host, host → flash): threads behind a bounded queue.

A deadline ends the waiting, never the I/O: `overdue` names the jobs that are past theirs, once each. One that had not
begun is withdrawn and will never run; of one that is running the owner must keep the memory out of use until its
`done` is called.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Generic, TypeVar, cast

from hifc_ray.clock import Clock, MonotonicClock

T = TypeVar("T")

log = logging.getLogger(__name__)


class Priority(IntEnum):
    """Who waits for a job. Lower runs first; equal ones run in order of submission."""

    REQUEST = 0  # a request waits for it
    BACKGROUND = 1  # nobody waits


class Ticket(Generic[T]):
    """A job in a channel. After `done` was called, exactly one of `result` and `error` counts."""

    def __init__(self, work: Callable[[], T], done: Callable[[Ticket[T]], None], deadline: float) -> None:
        self.result: T | None = None
        self.error: BaseException | None = None
        self.started = False
        self.withdrawn = False  # past its deadline before it began: it never ran
        self.late = False  # past its deadline while it ran
        self.deadline = deadline
        self._work = work
        self._done = done

    def run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:
            self.error = error
        self._done(self)


class Channel:
    """`threads` threads that run jobs by priority. At most `queue_limit` jobs wait; more are refused."""

    def __init__(self, name: str, threads: int, queue_limit: int, clock: Clock | None = None) -> None:
        self.name = name
        self._clock: Clock = clock or MonotonicClock()
        self._queue_limit = queue_limit
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._queue: list[tuple[int, int, Ticket[object]]] = []
        self._running: set[Ticket[object]] = set()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"hifc-{name}-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def room(self) -> int:
        """Jobs that `submit` would take now."""
        with self._changed:
            return 0 if self._closed else self._queue_limit - len(self._queue)

    @property
    def num_pending(self) -> int:
        """Jobs that wait or run."""
        with self._changed:
            return len(self._queue) + len(self._running)

    @property
    def is_stuck(self) -> bool:
        """Is every thread at a job that `overdue` has named as late? Then nothing that waits will ever begin."""
        with self._changed:
            return len(self._running) == len(self._threads) and all(ticket.late for ticket in self._running)

    def submit(
        self,
        work: Callable[[], T],
        done: Callable[[Ticket[T]], None],
        *,
        deadline_s: float,
        priority: Priority = Priority.REQUEST,
    ) -> Ticket[T] | None:
        """Run `work` on a thread of the channel, then `done(ticket)` there. None: the queue is full."""
        ticket = Ticket(work, done, self._clock.now() + deadline_s)
        with self._changed:
            if self._closed or len(self._queue) >= self._queue_limit:
                return None
            heapq.heappush(self._queue, (int(priority), next(self._order), cast("Ticket[object]", ticket)))
            self._changed.notify()
        return ticket

    def overdue(self) -> list[Ticket[object]]:
        """Jobs past their deadline that were not named before, withdrawn ones (never run, no `done`) and late ones."""
        now = self._clock.now()
        with self._changed:
            withdrawn = [ticket for _, _, ticket in self._queue if ticket.deadline < now]
            if withdrawn:
                self._queue = [entry for entry in self._queue if entry[2].deadline >= now]
                heapq.heapify(self._queue)
            late = [ticket for ticket in self._running if ticket.deadline < now and not ticket.late]
            for ticket in withdrawn:
                ticket.withdrawn = True
            for ticket in late:
                ticket.late = True
        return withdrawn + late

    def idle(self, timeout_s: float) -> bool:
        """Wait until nothing waits or runs; False if that took longer than `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._running, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Take no more jobs and let those in the queue finish; False if some thread did not end in time."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        end = self._clock.now() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - self._clock.now()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                ticket = heapq.heappop(self._queue)[2]
                ticket.started = True
                self._running.add(ticket)
            try:
                ticket.run()
            except Exception:
                # A bug in the owner's `done`, told loudly; without its threads the channel would never run a job again.
                log.exception("what was to be done after a job of channel %s failed", self.name)
            finally:
                with self._changed:
                    self._running.discard(ticket)
                    self._changed.notify_all()


def every(channels: Iterable[Channel], do: Callable[[Channel, float], bool], timeout_s: float, clock: Clock) -> bool:
    """Do the same with each (`Channel.idle`, `Channel.close`) within one timeout for all; True if all said so."""
    end = clock.now() + timeout_s
    said = [do(channel, max(0.0, end - clock.now())) for channel in channels]
    return all(said)

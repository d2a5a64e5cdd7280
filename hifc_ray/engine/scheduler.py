"""Which request does what next. No torch, no blocks: the loop asks, then does.

First come, first served: WAITING -> LOADING -> PREFILL -> RUNNING. Prompts go before decode steps, one chunk at a time;
with `hold_decode`, decode also waits for requests that are loading, so that which sequences decode together depends on
no clock.
"""

from __future__ import annotations

import threading
from collections import deque

from hifc_ray.engine.sequence import Sequence, Status
from hifc_ray.errors import RequestRefused
from hifc_ray.types import Key


class Scheduler:
    """The queue and the admitted requests. `enqueue` and `cancel` are safe from any thread, the rest is not."""

    def __init__(self, max_batch: int, max_waiting: int, hold_decode: bool) -> None:
        self.max_batch = max_batch
        self.max_waiting = max_waiting
        self.hold_decode = hold_decode
        self._lock = threading.Lock()
        self.waiting: deque[Sequence] = deque()
        self.admitted: list[Sequence] = []  # in order of admission

    def enqueue(self, sequence: Sequence) -> None:
        """Queue a request; raises `RequestRefused` if `max_waiting` are queued already."""
        with self._lock:
            if len(self.waiting) >= self.max_waiting:
                raise RequestRefused(
                    f"{len(self.waiting)} requests are waiting; engine.max_waiting is {self.max_waiting}"
                )
            self.waiting.append(sequence)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.admitted)

    def requests(self) -> list[Sequence]:
        """All that are queued or admitted."""
        with self._lock:
            return [*self.waiting, *self.admitted]

    @property
    def has_room(self) -> bool:
        """May another request be queued just now?"""
        return len(self.waiting) < self.max_waiting

    def cancel(self, number: int) -> None:
        """Mark a request; it leaves at the next step."""
        with self._lock:
            for sequence in [*self.waiting, *self.admitted]:
                if sequence.number == number:
                    sequence.cancelled = True

    def cancelled(self) -> list[Sequence]:
        """Requests to take out: dropped from the queue, or still admitted."""
        with self._lock:
            dropped = [sequence for sequence in self.waiting if sequence.cancelled]
            for sequence in dropped:
                self.waiting.remove(sequence)
        return dropped + [sequence for sequence in self.admitted if sequence.cancelled]

    def next_waiting(self) -> Sequence | None:
        """The request to admit next, if the batch has room for it."""
        if not self.waiting or len(self.admitted) >= self.max_batch:
            return None
        return self.waiting[0]

    def would_repeat(self, key: Key) -> bool:
        """Is an admitted request still to load or compute the block of this key? Waiting saves doing it twice."""
        return any(
            key in sequence.keys and not sequence.ready[sequence.keys.index(key)]
            for sequence in self.admitted
            if sequence.status in (Status.LOADING, Status.PREFILL) and sequence.params.cache == "on"
        )

    def admit(self, sequence: Sequence) -> None:
        """Move the head of the queue to the admitted requests."""
        with self._lock:
            head = self.waiting.popleft()
            assert head is sequence
            sequence.status = Status.LOADING
            self.admitted.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Take a request out; its place is free."""
        sequence.status = Status.FINISHED
        self.admitted.remove(sequence)

    def loading(self) -> list[Sequence]:
        return [sequence for sequence in self.admitted if sequence.status is Status.LOADING]

    def next_prefill(self) -> Sequence | None:
        """The oldest request with prompt left to compute."""
        return next((sequence for sequence in self.admitted if sequence.status is Status.PREFILL), None)

    def decode_batch(self) -> list[Sequence]:
        """The sequences that decode together now; empty while a prompt goes first."""
        unready = (Status.PREFILL, Status.LOADING) if self.hold_decode else (Status.PREFILL,)
        if any(sequence.status in unready for sequence in self.admitted):
            return []
        return [sequence for sequence in self.admitted if sequence.status is Status.RUNNING]

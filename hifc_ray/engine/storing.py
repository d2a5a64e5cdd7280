"""Background write-through: blocks that have filled go to the cache tier on a thread of their own.

reserve -> copy-out -> (the copy has returned) -> commit. A block is pinned in the pool from `put` until its copy-out
has returned; the engine's thread, which owns the pool, gets it back through `collect`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hifc_ray import points
from hifc_ray.client import Grant, StoreRequest, TierClient
from hifc_ray.config import EngineConfig
from hifc_ray.device.copies import Copies
from hifc_ray.engine.sequence import Sequence
from hifc_ray.layout import BlockLayout
from hifc_ray.messages import Purge
from hifc_ray.stats import Stats
from hifc_ray.types import Key, Namespace, Owner

_RETRY_PAUSE_S = 0.02  # before a refused block is offered again
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Filled:
    """A block to store."""

    namespace: Namespace
    key: Key
    position: int
    block: int
    owner: Owner
    turn: int
    attention: Callable[[], float]  # read when it is committed
    deadline_s: float  # on the monotonic clock

    @property
    def request(self) -> tuple[Namespace, Owner, int]:
        """What must be the same for blocks to be stored together."""
        return self.namespace, self.owner, self.turn


def filled_block(sequence: Sequence, index: int, key: Key, deadline_s: float) -> Filled:
    """Block `index` of a sequence, to be stored within `deadline_s` from now."""
    return Filled(
        namespace=sequence.namespace,  # type: ignore[arg-type]
        key=key,
        position=index,
        block=sequence.table[index],
        owner=sequence.owner,
        turn=sequence.params.turn,
        attention=lambda: sequence.attention_of(index),
        deadline_s=time.monotonic() + deadline_s,
    )


class Storer:
    """Stores filled blocks, in batches, within `store_deadline_s`; what cannot be stored is dropped and counted."""

    def __init__(
        self, client: TierClient, copies: Copies, layout: BlockLayout, config: EngineConfig, stats: Stats
    ) -> None:
        self._client = client
        self._copies = copies
        self._layout = layout
        self._config = config
        self._stats = stats
        self._changed = threading.Condition()
        self._queue: deque[Filled] = deque()
        self._num_active = 0  # taken from the queue, not yet settled
        self._batch: list[Filled] = []  # that was taken last
        self._purged = False  # it is not to be published
        self._returned: deque[int] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="hifc-store", daemon=True)
        self._thread.start()

    def put(self, filled: Filled) -> bool:
        """Queue a block that the caller has pinned; False if the queue is full, and the pin is the caller's to undo."""
        with self._changed:
            if len(self._queue) + self._num_active >= self._config.store_queue_blocks or self._closing:
                self._stats.add("dropped_stores", reason="queue_full")
                return False
            self._queue.append(filled)
            self._changed.notify_all()
        return True

    def collect(self) -> list[int]:
        """Blocks whose pins end now."""
        blocks = []
        while self._returned:
            blocks.append(self._returned.popleft())
        return blocks

    @property
    def num_pinned(self) -> int:
        """Blocks that `collect` has still to return."""
        with self._changed:
            return len(self._queue) + self._num_active + len(self._returned)

    def wait_returned(self, timeout_s: float) -> None:
        """Wait until `collect` has something to return, or nothing is under way."""
        with self._changed:
            self._changed.wait_for(lambda: self._returned or not (self._queue or self._num_active), timeout_s)

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or under way; False if it took longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._num_active, timeout_s)

    def purge(self, what: Purge) -> None:
        """Publish none of these blocks from now on; a commit that is being sent may yet arrive."""
        with self._changed:
            queued, self._queue = self._queue, deque()
            dropped: list[Filled] = []
            for filled in queued:
                (dropped if what.covers(filled.namespace, filled.owner) else self._queue).append(filled)
            self._num_active += len(dropped)
            self._purged |= any(what.covers(filled.namespace, filled.owner) for filled in self._batch)
        self._settle(dropped, "purged")

    def close(self, timeout_s: float) -> bool:
        """Store what is queued, then end the thread; False if that took longer, and the thread is left behind."""
        drained = self.drain(timeout_s)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s if drained else 0.0)
        return drained

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            try:
                refused = self._store(batch)
            except Exception:
                _log.exception("storing %d blocks failed", len(batch))
                self._settle(batch, "error")
                continue
            if refused:
                self._offer_again(refused)

    def _next_batch(self) -> list[Filled] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            if not self._queue:
                return None
            batch = [self._queue.popleft()]
            most = max(1, self._client.window)
            while self._queue and len(batch) < most and self._queue[0].request == batch[0].request:
                batch.append(self._queue.popleft())
            self._num_active += len(batch)
            self._batch, self._purged = batch, False
            return batch

    def _store(self, batch: list[Filled]) -> list[Filled]:
        """Store what there is room for; returns the blocks that were refused."""
        namespace, owner, turn = batch[0].request
        positions = np.array([filled.position for filled in batch], np.int64)
        keys = tuple(filled.key for filled in batch)
        request = StoreRequest(namespace, keys, positions, self._layout, owner, turn)
        grant = self._client.reserve(request, self._config.call_deadline_s)
        refused = [batch[i] for i in grant.refused]
        granted = [batch[i] for i in grant.granted]
        present = [filled for i, filled in enumerate(batch) if i not in {*grant.refused, *grant.granted}]
        if present:
            self._settle(present, "present")
        if granted:
            self._fill(grant, batch)
        return refused

    def _fill(self, grant: Grant, batch: list[Filled]) -> None:
        granted = [batch[i] for i in grant.granted]
        tickets = [self._copies.copy_out(batch[i].block, self._client.slot(int(grant.slots[i]))) for i in grant.granted]
        give_up = min(filled.deadline_s for filled in granted)
        in_time = all(ticket.wait(max(0.0, give_up - time.monotonic())) for ticket in tickets)
        for ticket in tickets:
            # A deadline ends the waiting for a result, never the copy: until it returns the slot is not given back.
            ticket.wait(None)
        points.reach("engine.store.copied")
        if self._purged or not in_time:
            self._client.abort(grant)
            self._settle(granted, "purged" if self._purged else "late")
            return
        attention = np.array([filled.attention() for filled in batch], np.float32)
        num_published = self._client.commit(grant, attention, self._config.call_deadline_s)
        reason = "stored" if num_published else "not_committed"
        self._settle(granted, reason)

    def _offer_again(self, refused: list[Filled]) -> None:
        now = time.monotonic()
        late = [filled for filled in refused if now >= filled.deadline_s]
        again = [filled for filled in refused if now < filled.deadline_s]
        if late:
            self._settle(late, "refused")
        with self._changed:
            purged = self._purged
            if again and not purged:
                self._queue.extendleft(reversed(again))
                self._num_active -= len(again)
                self._changed.wait_for(lambda: self._closing, _RETRY_PAUSE_S)
        if again and purged:
            self._settle(again, "purged")

    def _settle(self, blocks: list[Filled], outcome: str) -> None:
        if outcome == "stored":
            self._stats.add("stored_blocks", len(blocks))
            self._stats.add("stored_bytes", len(blocks) * self._layout.block_bytes)
        elif outcome != "present":
            self._stats.add("dropped_stores", len(blocks), reason=outcome)
        with self._changed:
            self._returned.extend(filled.block for filled in blocks)
            self._num_active -= len(blocks)
            self._changed.notify_all()

"""One request's walk through the tiers: look its chain up, copy what is served into the pool, window by window.

A block counts as loaded only when its copy has returned and its lease still holds. When `load_deadline_s` is over the
rest is computed; a copy that has not returned by then keeps its lease and its pool block until it has.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from hifc_ray import points
from hifc_ray.client import NO_LEASE, ChainQuery, Lease, LookupReply, Missed, TierClient, all_missed
from hifc_ray.config import EngineConfig
from hifc_ray.device.copies import Copies, Ticket
from hifc_ray.device.pool import BlockPool
from hifc_ray.engine.sequence import Sequence
from hifc_ray.stats import Stats
from hifc_ray.types import NO_SLOT, Fate, Lookup, Namespace, Tier

log = logging.getLogger(__name__)

_RETRY_PAUSE_S = 0.005  # before a tier without room is asked again


@dataclass
class _Copy:
    """A block on its way into the pool."""

    index: int  # of the block in its sequence
    block: int
    tier: Tier
    ticket: Ticket


@dataclass
class _Late:
    """Copies that nobody waits for, with the lease and the pool blocks that they need."""

    copies: list[_Copy]
    lease: Lease


class Loader:
    """Begins loads, and looks after the copies of those that gave up."""

    def __init__(self, client: TierClient, copies: Copies, pool: BlockPool, config: EngineConfig, stats: Stats) -> None:
        self.client = client
        self.copies = copies
        self.pool = pool
        self.config = config
        self.stats = stats
        self._late: list[_Late] = []

    def start(self, sequence: Sequence) -> Load:
        """Ask the tiers for the blocks of `sequence` that are not ready; `advance` does the rest."""
        return Load(self, sequence)

    def lookup(self, query: ChainQuery) -> LookupReply:
        """Ask the tiers. A client is not to raise; a bug in one costs a recompute like any other fault."""
        try:
            return self.client.lookup(query, self.config.call_deadline_s)
        except Exception:
            log.exception("looking %d blocks up failed", len(query.keys))
            self.stats.add("lookup_failures")
            return all_missed(query, Fate.UNREACHABLE)

    def leave(self, copies: list[_Copy], lease: Lease) -> None:
        """Keep a lease and pinned blocks until these copies have returned."""
        self._late.append(_Late(copies, lease))

    def collect(self) -> None:
        """Give back what late copies held, once they have returned."""
        for late in [late for late in self._late if all(copy.ticket.done() for copy in late.copies)]:
            self._late.remove(late)
            self.client.release(late.lease)
            self.pool.release([copy.block for copy in late.copies])

    @property
    def num_late(self) -> int:
        """Copies still under way that nobody waits for."""
        return sum(len(late.copies) for late in self._late)


class Load:
    """The state of one walk. Polled by `advance`; it never waits, except for the lookup call itself."""

    def __init__(self, loader: Loader, sequence: Sequence) -> None:
        self._loader = loader
        self._sequence = sequence
        self._give_up_s = float("inf")  # until the first question is asked
        self._keys = tuple(sequence.keys[: sequence.num_lookups])
        self._reply: LookupReply | None = None
        self._pending: set[int] = set()
        self._failed: dict[int, int] = {}  # blocks that were pending and then missed, and how often
        self._copies: list[_Copy] = []
        self._asked_s = 0.0
        self._ask_after_s = 0.0
        self._num_asked = 0
        self._waited_s = 0.0  # in this window, for blocks that were pending

    def advance(self) -> bool:
        """Do what can be done now; True when the walk is over and what is not ready has to be computed."""
        if not self._num_asked:
            self._give_up_s = time.monotonic() + self._loader.config.load_deadline_s
        late = time.monotonic() >= self._give_up_s
        if self._reply is None:
            if late:
                self._note_missed(int(self._sequence.ready.argmin()), Fate.LATE)
                return True
            if self._sequence.namespace is None:  # the weights have changed: what it would ask for is another model's
                return True
            if time.monotonic() < self._ask_after_s:
                return False
            self._ask(self._sequence.namespace)
        self._resolve_pending()
        if not late and (self._pending or not all(copy.ticket.done() for copy in self._copies)):
            return False
        return self._settle(late)

    def excuse(self, seconds: float) -> None:
        """The engine was at work on an older prompt for so long: that was not waiting for the tiers."""
        self._give_up_s += seconds

    def wait(self, timeout_s: float) -> None:
        """Wait a little for the next thing that `advance` needs."""
        for copy in self._copies:
            if not copy.ticket.done():
                copy.ticket.wait(timeout_s)
                return
        if self._pending and self._reply is not None:
            self._loader.client.wait(self._reply, timeout_s)
        elif self._reply is None:
            time.sleep(min(timeout_s, _RETRY_PAUSE_S))

    def abandon(self) -> None:
        """Stop: the request is cancelled. Blocks of copies under way are kept out of its table until they return."""
        unfinished = [copy for copy in self._copies if not copy.ticket.done()]
        lease = self._reply.lease if self._reply is not None else NO_LEASE
        self._loader.leave(unfinished, lease)
        for copy in unfinished:
            self._sequence.table.remove(copy.block)
        self._reply, self._copies, self._pending = None, [], set()

    def _ask(self, namespace: Namespace) -> None:
        sequence = self._sequence
        in_gpu = sequence.ready[: len(self._keys)].copy()
        query = ChainQuery(
            namespace=namespace,
            keys=self._keys,
            in_gpu=in_gpu,
            layout=self._loader.pool.layout,
            owner=sequence.owner,
            turn=sequence.params.turn,
            continued=self._num_asked > 0,
        )
        self._asked_s = time.monotonic()
        self._reply = reply = self._loader.lookup(query)
        self._num_asked += 1
        for index in range(reply.num_usable):
            if reply.slots[index] == NO_SLOT:
                continue
            if reply.answers[index] == Lookup.PENDING:
                self._pending.add(index)
            else:
                self._copy(index)

    def _copy(self, index: int) -> None:
        reply, loader = self._reply, self._loader
        assert reply is not None
        block = self._sequence.table[index]
        ticket = loader.copies.copy_in(loader.client.slot(int(reply.slots[index])), block)
        self._copies.append(_Copy(index, block, Tier(int(reply.tiers[index])), ticket))

    def _resolve_pending(self) -> None:
        if not self._pending or self._reply is None:
            return
        answers = self._loader.client.wait(self._reply, 0.0)
        for index in sorted(self._pending):
            if answers[index] == Lookup.PENDING:
                continue
            self._pending.discard(index)
            self._waited_s = max(self._waited_s, time.monotonic() - self._asked_s)
            if answers[index] == Lookup.HIT:
                self._copy(index)
            else:
                self._failed[index] = self._failed.get(index, 0) + 1

    def _settle(self, late: bool) -> bool:
        """End a window: take what has arrived, give the lease back, and ask on where that may bring more."""
        reply = self._reply
        assert reply is not None
        arrived = [copy for copy in self._copies if copy.ticket.done()]
        self._copies = [copy for copy in self._copies if copy not in arrived]
        points.reach("engine.load.copied")
        arrived = self._still_leased(reply, arrived)
        for copy in arrived:
            self._take(copy)
        if unfinished := [*self._pending, *(copy.index for copy in self._copies)]:
            self._note_missed(min(unfinished), Fate.LATE)
        elif reply.missed is not None:
            self._note_missed(reply.missed.index, reply.missed.fate)
        ask_again = not late and self._may_bring_more(reply)
        if not self._part_with_unfinished():
            return False
        self._ask_after_s = 0.0 if arrived else time.monotonic() + _RETRY_PAUSE_S
        return not ask_again

    def _still_leased(self, reply: LookupReply, arrived: list[_Copy]) -> list[_Copy]:
        """Those copies whose slot was the leased one from beginning to end. The others are counted.

        All of them, unless their block was purged meanwhile, or there is a bug.
        """
        if not arrived:
            return []
        kept = set(reply.lease.slots[self._loader.client.holds(reply.lease)].tolist())
        good = [copy for copy in arrived if int(reply.slots[copy.index]) in kept]
        if len(good) < len(arrived):
            self._loader.stats.add("stale_leases", len(arrived) - len(good))
        return good

    def _take(self, copy: _Copy) -> None:
        sequence, loader = self._sequence, self._loader
        sequence.ready[copy.index] = True
        if sequence.namespace is not None:  # else it is not to be found any more
            loader.pool.publish(copy.block, sequence.keys[copy.index], sequence.namespace, sequence.owner)
        name, size = copy.tier.name.lower(), loader.pool.layout.block_bytes
        took_s = copy.ticket.elapsed_s
        if copy.tier is not Tier.HOST:
            took_s, self._waited_s = took_s + self._waited_s, 0.0
        sequence.sources[name] += 1
        sequence.loaded_bytes[name] += size
        sequence.loaded_s[name] = sequence.loaded_s.get(name, 0.0) + took_s
        loader.stats.add("hits_blocks", tier=copy.tier)
        loader.stats.add("loaded_bytes", size, tier=copy.tier)
        loader.stats.add("loaded_s", took_s, tier=copy.tier)

    def _may_bring_more(self, reply: LookupReply) -> bool:
        """Would the tiers lend the first block that is not ready if they were asked again?"""
        ready = self._sequence.ready[: len(self._keys)]
        if ready.all():
            return False
        first = int(ready.argmin())
        if first in self._failed:  # asked again once: the answer says why, or it is on its way once more
            failed_twice = self._failed[first] > 1
            if failed_twice:
                self._note_missed(first, Fate.READ_FAILED)
            return not failed_twice
        return bool(reply.answers[first] == Lookup.RETRY)

    def _part_with_unfinished(self) -> bool:
        """Give the lease back, or leave it with the copies under way; False if the pool cannot replace their blocks."""
        loader, sequence, unfinished = self._loader, self._sequence, self._copies
        lease = self._reply.lease if self._reply is not None else NO_LEASE
        if unfinished:
            fresh = loader.pool.allocate(len(unfinished))
            if fresh is None:
                return False
            for copy, block in zip(unfinished, fresh, strict=True):
                sequence.table[copy.index] = block
            loader.leave(unfinished, lease)
            loader.stats.add("late_loads", len(unfinished))
        elif len(lease):
            loader.client.release(lease)
        self._reply, self._copies, self._pending = None, [], set()
        return True

    def _note_missed(self, index: int, fate: Fate) -> None:
        """Keep the first block that was not served, and why."""
        known = self._sequence.missed
        if not self._sequence.ready[index] and (known is None or index <= known.index):
            self._sequence.missed = Missed(index, self._keys[index], fate)

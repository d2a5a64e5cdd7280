"""`TieredCache`: one node's host memory and flash, as one thing.

In one process an engine uses it directly, as a `TierClient`; the `serve_…` methods are the same for engines in other
processes, which `actors/` carries over Ray. One lock guards all books; see `Shared`.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hifc_ray import env
from hifc_ray.client import ChainQuery, Grant, Lease, LookupReply, StoreRequest
from hifc_ray.clock import Clock, MonotonicClock
from hifc_ray.config import FlashConfig, TierConfig
from hifc_ray.flash import Device, FlashStore
from hifc_ray.host import HostBooks, arena
from hifc_ray.host.table import MAX_HOLDERS
from hifc_ray.messages import (
    PROTOCOL_VERSION,
    CallHeader,
    GrantName,
    Held,
    Purge,
    PurgeReport,
    Report,
    TierInfo,
    Weights,
)
from hifc_ray.policy import AdmissionPolicy, EvictionPolicy
from hifc_ray.stats import Stats
from hifc_ray.tiering.answering import Answerer
from hifc_ray.tiering.demotion import Demoter
from hifc_ray.tiering.errands import Errands
from hifc_ray.tiering.granting import Granter
from hifc_ray.tiering.holders import Holders, lock_holder_file
from hifc_ray.tiering.ledger import LeaseLedger
from hifc_ray.tiering.promotion import Promoter
from hifc_ray.tiering.purging import Purger
from hifc_ray.tiering.serving import Serving
from hifc_ray.tiering.shared import Shared
from hifc_ray.tiering.upkeep import Upkeep
from hifc_ray.types import BoolArray, ByteArray, FloatArray, Lookup

log = logging.getLogger(__name__)

TICK_S = 0.05  # how often deadlines and watermarks are looked at when nothing presses
SWEEP_S = 1.0  # how often holders are asked whether they live
WAIT_STEP_S = 0.0005  # how often a waiter looks at the slot table; a block takes some ms to come from flash
_UNNAMED = "hifc-private-"  # arenas that nobody will look for after their process is gone
CLOSE_TIMEOUT_S = 30.0  # for I/O that is under way; what hangs longer is left to die with the process


class TieredCache:
    """The cache tier of one node. `slot_bytes` is the largest block that it takes.

    Raises the `StorageError` family if arena or flash directory cannot be used. With `background=False` nothing moves
    by itself: call `tick`.
    """

    def __init__(
        self,
        config: TierConfig,
        slot_bytes: int,
        eviction: EvictionPolicy,
        admission: AdmissionPolicy,
        *,
        arena_path: Path | None = None,
        node: str = "local",
        stats: Stats | None = None,
        clock: Clock | None = None,
        devices: Sequence[Device] = (),
        background: bool = True,
    ) -> None:
        self.config = config
        self.node = node
        self.stats = stats or Stats()
        self._clock = clock or MonotonicClock()
        self._eviction = eviction
        self._weights = Weights()
        self._closed = threading.Event()
        self._arena, flash = self._open(arena_path, devices, slot_bytes)
        self._books = HostBooks(self._arena.table)
        self._shared = Shared(config, self._arena, self._books, flash, admission, self.stats, self._clock)
        holders = Holders(self._arena.path, self._arena.incarnation)
        self._lock_file = lock_holder_file(self._arena.path)
        self._promoter = Promoter(self._shared) if flash is not None else None
        self._demoter = Demoter(self._shared, eviction)
        answerer = Answerer(self._shared, self._promoter, self.window)
        self._granter = Granter(self._shared)
        self._purger = Purger(self._shared)
        self._upkeep = Upkeep(self._shared, lambda: self._weights, self._purger.finish) if flash is not None else None
        learned = self._upkeep.take_up() if self._upkeep is not None else None
        if learned is not None:
            self.use_weights(learned)
        self._serving = Serving(self._shared, holders, answerer, self._granter)
        self._ledger = LeaseLedger(self.num_slots)
        self._store_sequence = 0
        self._next_sweep = 0.0
        self._serving.take_back_from_the_dead()
        self._me = self._serving.attach(self._lock_file.path).number
        self._thread = threading.Thread(target=self._run, name="hifc-evictor", daemon=True)
        if background:
            self._thread.start()
            if self._upkeep is not None:
                self._upkeep.start()

    def _open(
        self, arena_path: Path | None, devices: Sequence[Device], slot_bytes: int
    ) -> tuple[arena.Arena, FlashStore | None]:
        config, flash = self.config, None
        if config.flash.directories or devices:
            policy = self._eviction
            flash = FlashStore(config.flash, slot_bytes, self.stats, devices=devices, clock=self._clock, policy=policy)
        try:
            path = arena_path or _own_path(config.flash)
            return arena.create(path, config.host.arena_bytes, slot_bytes), flash
        except BaseException:
            if flash is not None:
                flash.close()
            raise

    # What an engine in this process asks (`TierClient`).

    @property
    def slot_bytes(self) -> int:
        return self._arena.slot_bytes

    @property
    def num_slots(self) -> int:
        return self._arena.num_slots

    @property
    def window(self) -> int:
        # At least two, so that a small arena moves more than one block at a time; never all of it.
        share = int(self.config.host.window_share * self.num_slots)
        return max(1, min(max(share, 2), self.num_slots // 2))

    def lookup(self, query: ChainQuery, deadline_s: float) -> LookupReply:
        reply = self._serving.answer(query, self._me)
        self._ledger.add(reply.lease)
        return reply

    def wait(self, reply: LookupReply, deadline_s: float) -> ByteArray:
        return wait_for(self._arena, reply, deadline_s)

    def holds(self, lease: Lease) -> BoolArray:
        return self._arena.table.holds(lease.slots, lease.generations)

    def release(self, lease: Lease) -> None:
        idle = self._ledger.remove(lease)
        with self._shared.lock:
            if not self._shared.closed:
                self._books.release(idle, self._me)

    def reserve(self, request: StoreRequest, deadline_s: float) -> Grant:
        self._store_sequence += 1
        return self._serving.grant(request, self._me, self._store_sequence)

    def commit(self, grant: Grant, attention: FloatArray | None, deadline_s: float) -> int:
        if not grant.granted:
            return 0
        return self._granter.commit(self._me, grant.incarnation, grant.sequence, attention)

    def abort(self, grant: Grant) -> None:
        self._granter.abort(self._me, grant.sequence)

    def slot(self, index: int) -> memoryview:
        return self._arena.slot(index)

    def flush(self) -> None:
        """Nothing rides on a later call here."""

    # The same for engines in other processes: their leases and grants come with each call, and what is not named is
    # taken back.

    def attach(self, holder_path: str) -> TierInfo:
        """Give the process that has locked this file a name for its calls; safe to repeat. Raises `StorageError`."""
        name = self._serving.attach(Path(holder_path)).name
        path = str(self._arena.path)
        return TierInfo(PROTOCOL_VERSION, self._arena.incarnation, name, path, holder_path, self.node, self.window)

    def detach(self, name: int) -> None:
        """A holder leaves: what it holds is taken back."""
        self._serving.detach(name)

    def serve_lookup(self, header: CallHeader, held: Held, query: ChainQuery | None) -> LookupReply | None:
        """`lookup` for another process; without a query it only gives back. None: overtaken, or caller unknown."""
        return self._serving.lookup(header, held, query)

    def serve_reserve(self, header: CallHeader, held: Held, request: StoreRequest) -> Grant | None:
        """`reserve` for another process. None: overtaken, or caller unknown."""
        return self._serving.reserve(header, held, request)

    def serve_commit(
        self, header: CallHeader, held: Held, grant: GrantName, attention: FloatArray | None
    ) -> int | None:
        """`commit` for another process. None: overtaken, or caller unknown."""
        return self._serving.commit(header, held, grant, attention)

    # What the node asks.

    def tick(self) -> None:
        """Look after deadlines, watermarks and holders once. Never raises for a fault of flash."""
        if self._promoter is not None:
            self._promoter.expire()
        self._demoter.expire()
        self._demoter.make_room()
        if self._clock.now() >= self._next_sweep:
            self._next_sweep = self._clock.now() + SWEEP_S
            self._serving.take_back_from_the_dead()

    def use_weights(self, weights: Weights) -> bool:
        """Take weights newer than the ones in use; False if these are not."""
        if weights.version <= self._weights.version:
            return False
        self._weights = weights
        self._eviction.use(weights)
        return True

    @property
    def weights(self) -> Weights:
        return self._weights

    def report(self, sequence: int) -> Report:
        """Statistics since the start, for the policy actor."""
        get = self.stats.get
        return Report(
            node=self.node,
            incarnation=self._arena.incarnation,
            sequence=sequence,
            accesses=int(get("lookup_keys")),
            hits=int(get("served_blocks")),
            evictions=int(get("evicted_blocks")),
            weights_version=self._weights.version,
        )

    def summary(self) -> dict[str, object]:
        """What lies where, for status, tables, other nodes and tests; `Upkeep.summary` says what is told of flash."""
        with self._shared.lock:
            slots = self._books.counts()
        return {
            "node": self.node,
            "incarnation": self._arena.incarnation,
            "host": {"slots": slots, "num_slots": self.num_slots, "slot_bytes": self.slot_bytes},
            "flash": None if self._upkeep is None else self._upkeep.summary(),
            "weights_version": self._weights.version,
            "counters": self.stats.snapshot(),
        }

    def purge(self, what: Purge) -> PurgeReport:
        """Forget blocks: out of host memory at once, off flash before this returns, and served to nobody meanwhile.

        Engines that hold such a block, or write one, lose it; a block that an engine stores later is a new store.
        Raises `StorageError`, `FlashFault` or OSError if flash cannot forget now: it stays barred and is tried again.
        """
        return self._purger.purge(what)

    def check(self) -> None:
        """The conservation law of the books. Raises `ConservationBroken` with the numbers."""
        with self._shared.lock:
            self._books.check()

    def demote_all(self, timeout_s: float) -> bool:
        """Move every block that nobody holds from host memory to flash; False if not all got there in time."""
        return self._demoter.flush(timeout_s)

    def idle(self, timeout_s: float) -> bool:
        """Wait until no block is on its way to or from flash."""
        reads = self._promoter is None or self._promoter.idle(timeout_s)
        return self._demoter.idle(timeout_s) and reads

    def close(self, *, flush: bool = True, keep_arena: bool = False) -> None:
        """Write what flash lacks (with `flush`), then let go of everything. Safe to repeat."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._shared.lock:
            self._shared.closed = True
            self._let_go_of_leases(keep_arena)
        self._shared.pressure.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_TIMEOUT_S)
        if flush:
            self._demoter.flush(CLOSE_TIMEOUT_S)
        ended = self._demoter.close(CLOSE_TIMEOUT_S)
        if self._upkeep is not None:
            ended = self._upkeep.close(CLOSE_TIMEOUT_S) and ended
        if self._promoter is not None:
            ended = self._promoter.close(CLOSE_TIMEOUT_S) and ended
        if self._shared.flash is not None and ended:
            ended = Errands(CLOSE_TIMEOUT_S).run("close", self._shared.flash.close)
        self._lock_file.release(unlink=True)
        # A read that hangs may still land in its slot: nobody else gets this arena before this process is gone.
        if ended or not keep_arena:
            self._arena.close(unlink=not keep_arena)

    def _let_go_of_leases(self, keep_arena: bool) -> None:
        """So that `flush` gets at what was leased. What others hold in an arena that goes on stays theirs."""
        self._serving.take_back(self._me)
        if not keep_arena:
            for holder in range(MAX_HOLDERS):
                self._books.release(self._books.held_by(holder), holder)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._shared.pressure.wait(TICK_S)
            self._shared.pressure.clear()
            try:
                self.tick()
            except Exception as error:
                # A bug, told loudly; but a tier that no longer makes room or ends waits would hang its engines.
                log.exception("tick of the cache tier failed")
                self.stats.add("tick_failures", reason=type(error).__name__)


def wait_for(mapped: arena.Arena, reply: LookupReply, deadline_s: float) -> ByteArray:
    """Resolve the PENDING answers of a reply by watching the slot table; without a call to anyone."""
    answers = reply.answers.copy()
    pending = np.flatnonzero(answers == Lookup.PENDING)
    end = time.monotonic() + deadline_s
    while len(pending):
        now = mapped.table.answers_now(reply.slots[pending], reply.generations[pending])
        answers[pending] = now
        pending = pending[now == Lookup.PENDING]
        if not len(pending) or time.monotonic() >= end:
            break
        time.sleep(WAIT_STEP_S)
    return answers


def _own_path(flash: FlashConfig) -> Path:
    """The arena of a tier outside a cluster; what a killed process leaves is found again by its first directory.

    Of a directory that is only read several processes may make use.
    """
    if flash.directories and not flash.read_only:
        return arena.path_for(flash.directories[0])
    arena.remove_dead(env.shm_dir(), _UNNAMED)
    return env.shm_dir() / f"{_UNNAMED}{secrets.token_hex(6)}"

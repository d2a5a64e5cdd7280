"""`TierClient` over Ray: the node's cache tier as an engine in another process sees it.

Keys, slots and grants travel in calls; bytes never do: this process maps the arena itself. Whatever happens to the
tier, a call here costs at most its deadline and ends as a miss or a refusal. A tier that dies is looked for in the
background; until it is back, calls cost nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hifc_ray.actors import wire
from hifc_ray.actors.calls import CallTimedOut, ask
from hifc_ray.client import ChainQuery, Grant, Lease, LookupReply, StoreRequest, all_missed, all_refused
from hifc_ray.errors import ConfigError, HifcError, TierUnavailable
from hifc_ray.host import Arena, arena
from hifc_ray.locks import FileLock
from hifc_ray.messages import PROTOCOL_VERSION, CallHeader, GrantName, Held, TierInfo
from hifc_ray.stats import Stats
from hifc_ray.tiering.cache import wait_for
from hifc_ray.tiering.holders import lock_holder_file
from hifc_ray.tiering.ledger import LeaseLedger
from hifc_ray.types import ByteArray, Fate, FloatArray, Tier

CONNECT_DEADLINE_S = 5.0  # one try to reach a tier, in the background
RECONNECT_PAUSE_S = 0.25  # between tries
MAX_TIMEOUTS = 3  # calls in a row without an answer after which the tier counts as gone; one slow call is ordinary

log = logging.getLogger(__name__)


@dataclass
class _Mapped:
    """An arena that this process maps, and what it has leased in it."""

    arena: Arena
    inode: int
    ledger: LeaseLedger


@dataclass(frozen=True)
class _Link:
    """A tier that answered, as one incarnation of it."""

    handle: Any
    info: TierInfo
    mapped: _Mapped


class RayTierClient:
    """See `TierClient`. `find` gives the handle of the node's tier, or None; it may be asked again at any time."""

    def __init__(self, find: Callable[[], Any], stats: Stats | None = None) -> None:
        self.stats = stats or Stats()
        self._find = find
        self._link: _Link | None = None
        self._last_link: _Link | None = None  # copies that began before a tier was lost still use its arena
        self._lock_file: FileLock | None = None
        self._lookup_lock = threading.Lock()
        self._store_lock = threading.Lock()
        self._lookup_sequence = 0
        self._store_sequence = 0
        self._open: dict[int, Grant] = {}  # by sequence
        self._taken: dict[int, tuple[Lease, _Mapped]] = {}  # by identity of the lease
        self._unsaid = False  # something was given back that the tier has not heard of
        self._timeouts = 0
        self._closed = threading.Event()
        self._broken = threading.Event()
        self._broken.set()
        self._thread = threading.Thread(target=self._keep_connected, name="hifc-reconnect", daemon=True)
        self._thread.start()

    def connected(self, timeout_s: float = 0.0) -> bool:
        """Is there a tier? Waits up to `timeout_s` for one."""
        end = time.monotonic() + timeout_s
        while self._link is None and time.monotonic() < end:
            time.sleep(0.01)
        return self._link is not None

    @property
    def slot_bytes(self) -> int:
        """0 as long as no tier was found."""
        return self._link.mapped.arena.slot_bytes if self._link else 0

    @property
    def num_slots(self) -> int:
        return self._link.mapped.arena.num_slots if self._link else 0

    @property
    def window(self) -> int:
        return self._link.info.window if self._link else 1

    def lookup(self, query: ChainQuery, deadline_s: float) -> LookupReply:
        link = self._link
        reply = self._send_lookup(link, query, deadline_s) if link is not None else None
        if link is None or reply is None:
            return all_missed(query, Fate.UNREACHABLE)
        if len(reply.lease):
            link.mapped.ledger.add(reply.lease)
            self._taken[id(reply.lease)] = reply.lease, link.mapped
        return reply

    def wait(self, reply: LookupReply, deadline_s: float) -> ByteArray:
        mapped = self._mapped_of(reply.lease)
        return reply.answers if mapped is None else wait_for(mapped.arena, reply, deadline_s)

    def holds(self, lease: Lease) -> bool:
        mapped = self._mapped_of(lease)
        if mapped is None:
            return not len(lease)
        return bool((mapped.arena.table.generation[lease.slots] == lease.generations).all())

    def release(self, lease: Lease) -> None:
        if not len(lease):
            return
        _, mapped = self._taken.pop(id(lease))
        mapped.ledger.remove(lease)
        self._unsaid = True

    def reserve(self, request: StoreRequest, deadline_s: float) -> Grant:
        link = self._link
        if link is None:
            return all_refused(request)
        with self._store_lock:
            header = self._store_header(link)
            grant = self._call(link, deadline_s, "reserve", header, self._reserved(), request)
            if grant is None:
                return all_refused(request)
            if grant.granted:
                self._open[grant.sequence] = grant
            return grant

    def commit(self, grant: Grant, attention: FloatArray | None, deadline_s: float) -> int:
        if not grant.granted:
            return 0
        link = self._link
        with self._store_lock:
            published = None
            if link is not None and grant.sequence in self._open:
                name = GrantName(grant.incarnation, grant.sequence)
                header = self._store_header(link)
                published = self._call(link, deadline_s, "commit", header, self._reserved(), name, attention)
            # Answered or not, nothing more is written into these slots: what was not published may be taken back.
            self._open.pop(grant.sequence, None)
        return published or 0

    def abort(self, grant: Grant) -> None:
        """The slots come back with the next call to the tier."""
        with self._store_lock:
            self._open.pop(grant.sequence, None)

    def slot(self, index: int) -> memoryview:
        link = self._link or self._last_link
        if link is None:
            raise TierUnavailable("no tier was ever found")
        return link.mapped.arena.slot(index)

    def flush(self) -> None:
        link = self._link
        if link is not None and self._unsaid:
            self._send_lookup(link, None, 0.5)

    def close(self) -> None:
        self.flush()
        self._closed.set()
        self._broken.set()
        self._thread.join(CONNECT_DEADLINE_S)
        link, self._link = self._link, None
        if link is not None:
            try:
                ask(link.handle.detach.remote(link.info.holder), 0.5)
            except TierUnavailable as error:
                log.info("the tier did not hear that this engine leaves: %s", error)
        if self._lock_file is not None:
            self._lock_file.release(unlink=True)

    def _send_lookup(self, link: _Link, query: ChainQuery | None, deadline_s: float) -> LookupReply | None:
        with self._lookup_lock:
            self._lookup_sequence += 1
            header = CallHeader(link.info.holder, link.info.incarnation, self._lookup_sequence)
            self._unsaid = False
            held = link.mapped.ledger.held()
            answer = self._call(link, deadline_s, "lookup", wire.pack_lookup(header, held, query))
            if answer == b"" and query is not None:
                self._refused(link)
            return wire.unpack_reply(answer, query) if answer and query is not None else None

    def _store_header(self, link: _Link) -> CallHeader:
        self._store_sequence += 1
        return CallHeader(link.info.holder, link.info.incarnation, self._store_sequence)

    def _reserved(self) -> Held:
        """The slots of all open grants: this process may be writing into them."""
        rows = [(grant.slots[grant.granted], grant.generations[grant.granted]) for grant in self._open.values()]
        if not rows:
            return Held()
        return Held(np.concatenate([slots for slots, _ in rows]), np.concatenate([gens for _, gens in rows]))

    def _call(self, link: _Link, deadline_s: float, method: str, *arguments: Any) -> Any:
        """One call; None if it failed. It may have run: what it gave is not on our lists and so is taken back."""
        try:
            answer = ask(getattr(link.handle, method).remote(*arguments), deadline_s)
        except CallTimedOut:
            self._timeouts += 1
            self._unsaid = True
            self.stats.add("calls_failed", tier=Tier.HOST, reason="deadline")
            if self._timeouts >= MAX_TIMEOUTS:
                self._break(link, f"{self._timeouts} calls in a row had no answer")
            return None
        except TierUnavailable as error:
            self.stats.add("calls_failed", tier=Tier.HOST, reason="unavailable")
            self._break(link, str(error))
            return None
        self._timeouts = 0
        if answer is None and method in ("reserve", "commit"):
            self._refused(link)
        return answer

    def _refused(self, link: _Link) -> None:
        """The tier does not know us, or not this incarnation: it has been started again."""
        self.stats.add("calls_failed", tier=Tier.HOST, reason="refused")
        self._break(link, "the tier has been started again")

    def _break(self, link: _Link, why: str) -> None:
        if self._link is link:
            log.warning("cache tier lost, computing without it: %s", why)
            self._link = None
            self._broken.set()

    def _keep_connected(self) -> None:
        while True:
            self._broken.wait()
            if self._closed.is_set():
                return
            try:
                self._broken.clear()
                link = self._connect()
            except (HifcError, OSError) as error:
                log.info("no cache tier yet: %s", error)
                self._broken.set()
                if isinstance(error, ConfigError):
                    log.error("this engine and the cache tier do not fit: %s", error)
                self._closed.wait(RECONNECT_PAUSE_S)
                continue
            self._timeouts = 0
            self._last_link = link
            self._link = link

    def _connect(self) -> _Link:
        handle = self._find()
        if handle is None:
            raise TierUnavailable("this node has none")
        path = Path(ask(handle.arena_path.remote(), CONNECT_DEADLINE_S))
        if self._lock_file is None:
            self._lock_file = lock_holder_file(path)
        info: TierInfo = ask(handle.attach.remote(str(self._lock_file.path)), CONNECT_DEADLINE_S)
        if info.protocol != PROTOCOL_VERSION:
            raise ConfigError(f"the tier speaks protocol {info.protocol}; this engine speaks {PROTOCOL_VERSION}")
        inode = path.stat().st_ino
        last = self._last_link
        if last is not None and last.mapped.inode == inode:
            return _Link(handle, info, last.mapped)
        mapped = arena.attach(path)
        return _Link(handle, info, _Mapped(mapped, inode, LeaseLedger(mapped.num_slots)))

    def _mapped_of(self, lease: Lease) -> _Mapped | None:
        taken = self._taken.get(id(lease))
        return None if taken is None else taken[1]

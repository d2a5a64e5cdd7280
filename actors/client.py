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
from dataclasses import replace
from typing import Any

import numpy as np

from hifc_ray.actors import wire
from hifc_ray.actors.calls import CallTimedOut, ask
from hifc_ray.actors.link import Link, Linker, Mapped
from hifc_ray.client import ChainQuery, Grant, Lease, LookupReply, StoreRequest, all_missed, all_refused
from hifc_ray.errors import ConfigError, HifcError, TierUnavailable
from hifc_ray.host.arena import lock_path
from hifc_ray.locks import is_locked
from hifc_ray.messages import CallHeader, GrantName, Held
from hifc_ray.stats import Stats
from hifc_ray.tiering.cache import wait_for
from hifc_ray.types import BoolArray, ByteArray, Fate, FloatArray, Tier

MAX_TIMEOUTS = 3  # calls in a row without an answer after which the tier counts as gone; one slow call is ordinary
FLUSH_DEADLINE_S = 0.5

_NO_ANSWER = object()

log = logging.getLogger(__name__)


class RayTierClient:
    """See `TierClient`. `find` gives the handle of the node's tier, or None; it may be asked again at any time.

    All that is leased and granted at a time lies in one arena, which `slot` reads: a tier that comes with another
    arena is taken on only when nothing of the old one is in use.
    """

    def __init__(self, find: Callable[[], Any], stats: Stats | None = None) -> None:
        self.stats = stats or Stats()
        self._link: Link | None = None
        self._mapped: Mapped | None = None  # outlives its link: copies that began before a tier was lost still use it
        self._lookup_lock = threading.Lock()
        self._store_lock = threading.Lock()
        self._lookup_sequence = 0
        self._store_sequence = 0
        self._open: dict[int, Grant] = {}  # by sequence
        self._taken: dict[int, Lease] = {}  # by identity
        self._last_request: StoreRequest | None = None
        # Something was given back that the tier has not heard of.
        self._unsaid_leases = False
        self._unsaid_grants = False
        self._timeouts = 0
        self._linker = Linker(find, self._adopt)

    def connected(self, timeout_s: float = 0.0) -> bool:
        """Is there a tier? Waits up to `timeout_s` for one. Raises `ConfigError` where the one there does not fit."""
        end = time.monotonic() + timeout_s
        while self._link is None and self._linker.misfit is None and time.monotonic() < end:
            time.sleep(0.01)
        if self._link is None and timeout_s and self._linker.misfit is not None:
            raise ConfigError(self._linker.misfit)
        return self._link is not None

    def require(self, slot_bytes: int) -> None:
        """From now on a tier with smaller slots is none for this engine."""
        self._linker.require(slot_bytes)
        link = self._link
        if link is not None and link.mapped.arena.slot_bytes < slot_bytes:
            self._break(link, "its slots are too small")

    @property
    def slot_bytes(self) -> int:
        """0 as long as no tier was found."""
        return self._mapped.arena.slot_bytes if self._mapped else 0

    @property
    def num_slots(self) -> int:
        return self._mapped.arena.num_slots if self._mapped else 0

    @property
    def window(self) -> int:
        link = self._link
        return link.info.window if link else 1

    def lookup(self, query: ChainQuery, deadline_s: float) -> LookupReply:
        if self._live_link() is None:
            return all_missed(query, Fate.UNREACHABLE)
        with self._lookup_lock:
            return self._send_lookup(query, deadline_s) or all_missed(query, Fate.UNREACHABLE)

    def wait(self, reply: LookupReply, deadline_s: float) -> ByteArray:
        mapped = self._mapped
        if mapped is None or id(reply.lease) not in self._taken:
            return reply.answers
        return wait_for(mapped.arena, reply, deadline_s)

    def holds(self, lease: Lease) -> BoolArray:
        mapped = self._mapped
        if mapped is None or id(lease) not in self._taken:
            return np.zeros(len(lease), np.bool_)
        return mapped.arena.table.holds(lease.slots, lease.generations)

    def release(self, lease: Lease) -> None:
        if not len(lease):
            return
        mapped = self._mapped
        if mapped is None or id(lease) not in self._taken:
            raise ValueError(f"lease of {len(lease)} slots was given back twice")
        mapped.ledger.remove(lease)
        self._unsaid_leases = True
        del self._taken[id(lease)]  # last: from here on another arena may be taken on

    def reserve(self, request: StoreRequest, deadline_s: float) -> Grant:
        if self._live_link() is None:
            return all_refused(request)
        with self._store_lock:
            return self._send_reserve(request, deadline_s) or all_refused(request)

    def commit(self, grant: Grant, attention: FloatArray | None, deadline_s: float) -> int:
        if not grant.granted:
            return 0
        with self._store_lock:
            published, link = None, self._link
            if link is not None and grant.sequence in self._open:
                name = GrantName(grant.incarnation, grant.sequence)
                published = self._store(link, deadline_s, "commit", name, attention)
            # Answered or not, nothing more is written into these slots: what was not published may be taken back.
            if self._open.pop(grant.sequence, None) is not None and published != len(grant.granted):
                self._unsaid_grants = True
        return published or 0

    def abort(self, grant: Grant) -> None:
        """Says so at once, since others may wait for these blocks; unheard, it rides on the next call or on `flush`."""
        with self._store_lock:
            if self._open.pop(grant.sequence, None) is not None:
                self._unsaid_grants = True
                self._say_grants()

    def slot(self, index: int) -> memoryview:
        mapped = self._mapped
        if mapped is None:
            raise TierUnavailable("no tier was ever found")
        return mapped.arena.slot(index)

    def flush(self) -> None:
        if self._live_link() is None:
            return
        if self._unsaid_leases:
            with self._lookup_lock:
                self._send_lookup(None, FLUSH_DEADLINE_S)
        # While a store call is under way it carries the news, or leaves them for the next flush.
        if self._unsaid_grants and self._store_lock.acquire(blocking=False):
            try:
                self._say_grants()
            finally:
                self._store_lock.release()

    def close(self) -> None:
        self.flush()
        self._linker.close()
        link, self._link = self._link, None
        if link is not None:
            try:
                ask(link.handle.detach.remote(link.info.holder), FLUSH_DEADLINE_S)
            except HifcError as error:
                log.info("the tier did not hear that this engine leaves: %s", error)
        self._linker.let_go()

    def _send_lookup(self, query: ChainQuery | None, deadline_s: float) -> LookupReply | None:
        """With the lookup lock. Without a query the call only says what is held."""
        link = self._link
        if link is None:
            return None
        self._lookup_sequence += 1
        header = CallHeader(link.info.holder, link.info.incarnation, self._lookup_sequence)
        self._unsaid_leases = False
        data = wire.pack_lookup(header, link.mapped.ledger.held(), query)
        answer = self._call(link, deadline_s, "lookup", data)
        if answer is _NO_ANSWER:
            self._unsaid_leases = True
            return None
        if query is None:
            return None
        if not answer:
            self._refused(link)
            return None
        reply = wire.unpack_reply(answer, query)
        if reply is not None and len(reply.lease):
            link.mapped.ledger.add(reply.lease)
            self._taken[id(reply.lease)] = reply.lease
        return reply

    def _send_reserve(self, request: StoreRequest, deadline_s: float) -> Grant | None:
        """With the store lock. A request for nothing only says what is still reserved."""
        link = self._link
        if link is None:
            return None
        self._last_request = request
        grant: Grant | None = self._store(link, deadline_s, "reserve", request)
        if grant is not None and grant.granted:
            self._open[grant.sequence] = grant
        return grant

    def _say_grants(self) -> None:
        """With the store lock."""
        if self._last_request is not None:
            nothing = replace(self._last_request, keys=(), positions=np.empty(0, np.int64))
            self._send_reserve(nothing, FLUSH_DEADLINE_S)

    def _store(self, link: Link, deadline_s: float, method: str, *arguments: Any) -> Any:
        """One call about grants; None if it failed or was refused."""
        self._store_sequence += 1
        header = CallHeader(link.info.holder, link.info.incarnation, self._store_sequence)
        self._unsaid_grants = False
        answer = self._call(link, deadline_s, method, header, self._reserved(), *arguments)
        if answer is _NO_ANSWER or answer is None:
            self._unsaid_grants = True
        if answer is None:
            self._refused(link)
        return None if answer is _NO_ANSWER else answer

    def _reserved(self) -> Held:
        """The slots of all open grants: this process may be writing into them."""
        rows = [(grant.slots[grant.granted], grant.generations[grant.granted]) for grant in self._open.values()]
        if not rows:
            return Held()
        return Held(np.concatenate([slots for slots, _ in rows]), np.concatenate([gens for _, gens in rows]))

    def _call(self, link: Link, deadline_s: float, method: str, *arguments: Any) -> Any:
        """One call. If it failed it may have run all the same: what it gave is not on our lists and is taken back."""
        try:
            answer = ask(getattr(link.handle, method).remote(*arguments), deadline_s)
        except CallTimedOut:
            self._timeouts += 1
            self.stats.add("calls_failed", tier=Tier.HOST, reason="deadline")
            # Ray may take seconds to notice a death; the lock says it at once.
            if not is_locked(lock_path(link.mapped.arena.path)):
                self._break(link, "its process is gone")
            elif self._timeouts >= MAX_TIMEOUTS:
                self._break(link, f"{self._timeouts} calls in a row had no answer")
            return _NO_ANSWER
        except HifcError as error:
            reason = "unavailable" if isinstance(error, TierUnavailable) else type(error).__name__
            self.stats.add("calls_failed", tier=Tier.HOST, reason=reason)
            self._break(link, str(error))
            return _NO_ANSWER
        self._timeouts = 0
        return answer

    def _refused(self, link: Link) -> None:
        """The tier does not know us, or not this incarnation: it has been started again."""
        self.stats.add("calls_failed", tier=Tier.HOST, reason="refused")
        self._break(link, "the tier has been started again")

    def _live_link(self) -> Link | None:
        """The link, unless the tier has been started again: an idle engine then finds the new one in good time."""
        link = self._link
        if link is not None and link.mapped.arena.incarnation_now() != link.info.incarnation:
            self._break(link, "the tier has been started again")
            return None
        return link

    def _break(self, link: Link, why: str) -> None:
        if self._link is link:
            log.warning("cache tier lost: %s", why)
            self._link = None
            self._linker.reconnect()

    def _adopt(self, link: Link) -> bool:
        """Go on with this link; False as long as another arena is in use."""
        with self._lookup_lock, self._store_lock:
            if link.mapped is not self._mapped and (self._taken or self._open):
                return False
            self._mapped, self._link = link.mapped, link
            self._timeouts = 0
            return True

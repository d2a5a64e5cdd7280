"""The cache tier of one node as an actor: a door around `TieredCache`, and its mail to the policy actor."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from hifc_ray import env
from hifc_ray.actors import names, wire
from hifc_ray.actors.calls import ask
from hifc_ray.client import Grant, StoreRequest
from hifc_ray.config import TierConfig
from hifc_ray.errors import HifcError, NoRoom, TierUnavailable
from hifc_ray.host import leftovers
from hifc_ray.messages import CallHeader, GrantName, Held, TierInfo
from hifc_ray.policies import registry
from hifc_ray.policy import AdmissionPolicy, EvictionPolicy
from hifc_ray.reports import reports_to_arrow
from hifc_ray.tiering import TieredCache
from hifc_ray.types import FloatArray

REPORT_DEADLINE_S = 2.0  # for the policy actor's answer; nothing waits for it
REOPEN_PAUSE_S = 0.5  # between tries to open arena and flash: what is in the way (a dying process, a mount) may go
LEFTOVER_S = 30.0  # an arena without owner and holders for so long is not about to be re-attached; sooner if room lacks

log = logging.getLogger(__name__)


class CacheTierActor:
    """Owns host memory and flash of its node. State is rebuilt from the arena and the log whenever it starts again.

    Where these cannot be used it lives on to say so: every call raises what stands in the way (`StorageError`,
    `ConfigError`), until that is gone. Its constructor never fails for them, which Ray would answer by giving up.
    Calls that change something are numbered by their holder and safe to send twice; they run with no retries by Ray.
    """

    def __init__(self, config: TierConfig, slot_bytes: int, arena_path: str, node_id: str, namespace: str) -> None:
        own = env.flash_dirs()
        if own and config.flash.directories:
            config = replace(config, flash=replace(config.flash, directories=own))
        self._config = config
        self._slot_bytes = slot_bytes
        self._arena_path = arena_path
        self._shm = Path(arena_path).parent
        self._node_id = node_id
        self._namespace = namespace
        self._cache: TieredCache | None = None
        self._problem: HifcError = TierUnavailable("the cache tier is opening")
        self._closing = threading.Event()
        self._opened = threading.Lock()
        self._open()
        self._thread = threading.Thread(target=self._run, name="hifc-mail", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"CacheTier[{self._node_id[:8]}]"

    @ray.method(concurrency_group="control")
    def arena_path(self) -> str:
        """Where this node's arena is; also the cheapest sign of life. Raises what keeps the tier from serving."""
        self._tier()
        return self._arena_path

    @ray.method(concurrency_group="control")
    def attach(self, holder_path: str) -> TierInfo:
        """See `TieredCache.attach`."""
        return self._tier().attach(holder_path)

    @ray.method(concurrency_group="control")
    def detach(self, holder: int) -> None:
        """See `TieredCache.detach`."""
        self._tier().detach(holder)

    @ray.method(concurrency_group="control")
    def summary(self) -> dict[str, Any]:
        """What lies where, and all counters."""
        return self._tier().summary()

    @ray.method(concurrency_group="control")
    def check(self) -> None:
        """Raise `ConservationBroken` if slots do not add up."""
        self._tier().check()

    def ping(self) -> None:
        """An empty call, to measure others against."""

    def lookup(self, data: bytes) -> bytes:
        """See `TieredCache.serve_lookup`; packed as `wire` does it."""
        return wire.pack_reply(self._tier().serve_lookup(*wire.unpack_lookup(data)))

    def reserve(self, header: CallHeader, held: Held, request: StoreRequest) -> Grant | None:
        """See `TieredCache.serve_reserve`."""
        return self._tier().serve_reserve(header, held, request)

    def commit(self, header: CallHeader, held: Held, grant: GrantName, attention: FloatArray | None) -> int | None:
        """See `TieredCache.serve_commit`."""
        return self._tier().serve_commit(header, held, grant, attention)

    @ray.method(concurrency_group="control")
    def close(self, *, flush: bool = True) -> None:
        """Write what flash lacks, then let go of arena and directory. From now on calls raise `TierUnavailable`."""
        self._closing.set()
        with self._opened:
            cache, self._cache = self._cache, None
            self._problem = TierUnavailable("the cache tier was closed")
        if cache is not None:
            cache.close(flush=flush)

    def _tier(self) -> TieredCache:
        cache = self._cache
        if cache is None:
            raise self._problem
        return cache

    def _open(self) -> bool:
        with self._opened:
            if self._closing.is_set():
                return False
            try:
                policy = self._config.policy
                eviction = registry.eviction(policy.eviction)
                num_blocks = self._config.flash.limit_bytes // self._slot_bytes
                admission = registry.admission(policy.admission, eviction, num_blocks)
                try:
                    self._cache = self._make(eviction, admission)
                except NoRoom:
                    if not leftovers.remove(leftovers.dead(self._shm)):
                        raise
                    self._cache = self._make(eviction, admission)
            except HifcError as error:
                if str(error) != str(self._problem):
                    log.error("the cache tier cannot open: %s", error)
                self._problem = error
                return False
            return True

    def _make(self, eviction: EvictionPolicy, admission: AdmissionPolicy) -> TieredCache:
        path = Path(self._arena_path)
        return TieredCache(self._config, self._slot_bytes, eviction, admission, arena_path=path, node=self._node_id)

    def _run(self) -> None:
        dead, since_s = leftovers.dead(self._shm), time.monotonic()
        while self._cache is None and not self._closing.wait(REOPEN_PAUSE_S):
            self._open()
        sequence = 0
        while not self._closing.wait(self._config.policy.report_interval_s):
            sequence += 1
            if dead and time.monotonic() - since_s >= LEFTOVER_S:
                log.info("removed %d arenas that nobody uses any more", leftovers.remove(dead))
                dead = {}
            try:
                self._exchange_mail(sequence)
            except HifcError as error:
                log.info("no answer from the policy actor: %s", error)
            except Exception:
                log.exception("exchange with the policy actor failed; the weights stay as they are")

    def _exchange_mail(self, sequence: int) -> None:
        """Send a report and take newer weights; without a policy actor go on with those there are."""
        policy = names.find(names.POLICY, self._namespace)
        if policy is not None:
            cache = self._tier()
            cache.use_weights(ask(policy.report.remote(reports_to_arrow([cache.report(sequence)])), REPORT_DEADLINE_S))

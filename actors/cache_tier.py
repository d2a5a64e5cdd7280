"""The cache tier of one node as an actor: a door around `TieredCache`, and its mail to the policy actor."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from hifc_ray import env
from hifc_ray.actors import names, wire
from hifc_ray.actors.calls import ask
from hifc_ray.client import Grant, StoreRequest
from hifc_ray.config import TierConfig
from hifc_ray.errors import HifcError
from hifc_ray.messages import CallHeader, GrantName, Held, TierInfo
from hifc_ray.policies import registry
from hifc_ray.reports import reports_to_arrow
from hifc_ray.tiering import TieredCache
from hifc_ray.types import FloatArray

REPORT_DEADLINE_S = 2.0  # for the policy actor's answer; nothing waits for it

log = logging.getLogger(__name__)


class CacheTierActor:
    """Owns host memory and flash of its node. State is rebuilt from the arena and the log whenever it starts again.

    Calls that change something are numbered by their holder and safe to send twice; they run with no retries by Ray.
    """

    def __init__(self, config: TierConfig, slot_bytes: int, arena_path: str, node_id: str, namespace: str) -> None:
        own = env.flash_dir()
        if own is not None and config.flash.directory is not None:
            config = replace(config, flash=replace(config.flash, directory=own))
        self._node_id = node_id
        self._namespace = namespace
        self._cache = TieredCache(
            config,
            slot_bytes,
            registry.eviction(config.policy.eviction),
            registry.admission(config.policy.admission),
            arena_path=Path(arena_path),
            node=node_id,
        )
        self._arena_path = arena_path
        self._closing = threading.Event()
        self._mail = threading.Thread(target=self._exchange_mail, name="hifc-mail", daemon=True)
        self._mail.start()

    def __repr__(self) -> str:
        return f"CacheTier[{self._node_id[:8]}]"

    @ray.method(concurrency_group="control")
    def arena_path(self) -> str:
        """Where this node's arena is; also the cheapest sign of life."""
        return self._arena_path

    @ray.method(concurrency_group="control")
    def attach(self, holder_path: str) -> TierInfo:
        """See `TieredCache.attach`."""
        return self._cache.attach(holder_path)

    @ray.method(concurrency_group="control")
    def detach(self, holder: int) -> None:
        """See `TieredCache.detach`."""
        self._cache.detach(holder)

    @ray.method(concurrency_group="control")
    def summary(self) -> dict[str, Any]:
        """What lies where, and all counters."""
        return self._cache.summary()

    @ray.method(concurrency_group="control")
    def check(self) -> None:
        """Raise `ConservationBroken` if slots do not add up."""
        self._cache.check()

    def ping(self) -> None:
        """An empty call, to measure others against."""

    def lookup(self, data: bytes) -> bytes:
        """See `TieredCache.serve_lookup`; packed as `wire` does it."""
        return wire.pack_reply(self._cache.serve_lookup(*wire.unpack_lookup(data)))

    def reserve(self, header: CallHeader, held: Held, request: StoreRequest) -> Grant | None:
        """See `TieredCache.serve_reserve`."""
        return self._cache.serve_reserve(header, held, request)

    def commit(self, header: CallHeader, held: Held, grant: GrantName, attention: FloatArray | None) -> int | None:
        """See `TieredCache.serve_commit`."""
        return self._cache.serve_commit(header, held, grant, attention)

    @ray.method(concurrency_group="control")
    def close(self, *, flush: bool = True) -> None:
        """Write what flash lacks, then let go of arena and directory. The actor answers MISS from now on."""
        self._closing.set()
        self._cache.close(flush=flush)

    def _exchange_mail(self) -> None:
        """Send a report each interval and take newer weights; without a policy actor go on with those there are."""
        sequence = 0
        while not self._closing.wait(self._cache.config.policy.report_interval_s):
            sequence += 1
            policy = names.find(names.POLICY, self._namespace)
            if policy is None:
                continue
            batch = reports_to_arrow([self._cache.report(sequence)])
            try:
                self._cache.use_weights(ask(policy.report.remote(batch), REPORT_DEADLINE_S))
            except HifcError as error:
                log.info("no answer from the policy actor: %s", error)

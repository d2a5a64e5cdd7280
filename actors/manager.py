"""The manager: one cache tier on each node that has a tier role. All its state is in Ray; it only compares and acts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from hifc_ray.actors import names
from hifc_ray.actors.calls import CallTimedOut, ask, translated
from hifc_ray.config import TierConfig
from hifc_ray.errors import HifcError, TierUnavailable

StartTier = Callable[[TierConfig, int, str, str], Any]  # config, slot bytes, node id, namespace

INTERVAL_S = 1.0  # between two looks at the nodes
START_PAUSE_S = 5.0  # between two starts on one node: a tier that dies at once must not keep its node busy with that

log = logging.getLogger(__name__)


class Manager:
    """Reconciles: what should be there against what is there, once a second and whenever asked."""

    def __init__(self, config: TierConfig, slot_bytes: int, namespace: str, start_tier: StartTier) -> None:
        self._start_tier = start_tier
        self._config = config
        self._slot_bytes = slot_bytes
        self._namespace = namespace
        self._started_s: dict[str, float] = {}  # by node, on the monotonic clock
        self._lock = threading.Lock()
        self._closing = threading.Event()
        threading.Thread(target=self._run, name="hifc-manager", daemon=True).start()

    def __repr__(self) -> str:
        return "Manager"

    @ray.method(concurrency_group="control")
    def settings(self) -> tuple[TierConfig, int]:
        """The configuration of the tiers and their slot size, in bytes."""
        return self._config, self._slot_bytes

    def reconcile(self) -> list[str]:
        """Start the tiers that are missing; ids of the nodes that should have one."""
        with self._lock:
            wanted = tier_nodes(ray.nodes())
            for node_id in wanted:
                now = time.monotonic()
                if now - self._started_s.get(node_id, -START_PAUSE_S) < START_PAUSE_S or self._closing.is_set():
                    continue
                if names.find(names.tier(node_id), self._namespace) is None:
                    log.info("starting the cache tier of node %s", node_id)
                    self._started_s[node_id] = now
                    self._start_tier(self._config, self._slot_bytes, node_id, self._namespace)
            return wanted

    def ready(self, timeout_s: float = 30.0) -> list[str]:
        """Wait until each node that should have a tier has one that serves; their ids.

        Raises what keeps a tier from it, with the node named: `StorageError`, `ConfigError`; `TierUnavailable` if
        one is not there in time.
        """
        end = time.monotonic() + timeout_s
        while True:
            wanted = self.reconcile()
            missing = [node_id for node_id in wanted if not self._serves(node_id, end - time.monotonic())]
            if not missing:
                return wanted
            if time.monotonic() >= end:
                raise TierUnavailable(f"node {missing[0][:8]}: no cache tier within {timeout_s} s")
            time.sleep(0.1)

    @ray.method(concurrency_group="control")
    def stop(self) -> None:
        """Start no more tiers."""
        self._closing.set()

    def _serves(self, node_id: str, timeout_s: float) -> bool:
        tier = names.find(names.tier(node_id), self._namespace)
        if tier is None:
            return False
        try:
            ask(tier.arena_path.remote(), max(0.1, timeout_s))
        except CallTimedOut:
            return False
        except TierUnavailable as error:
            log.info("the cache tier of node %s does not answer: %s", node_id, error)
            return False
        except HifcError as error:
            raise type(error)(f"node {node_id[:8]}: {error}") from error
        return True

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.reconcile()
            except RayError as error:
                log.warning("reconciling the tiers failed, will try again: %s", translated(error))
            except Exception:
                log.exception("reconciling the tiers failed, will try again")
            self._closing.wait(INTERVAL_S)


def tier_nodes(nodes: list[dict[str, Any]]) -> list[str]:
    """Ids of the live nodes that have a tier role: by label, or all of them where no node has a role label."""
    alive = [node for node in nodes if node["Alive"]]
    labelled = any(names.ROLE_LABEL in node["Labels"] for node in alive)
    return [
        node["NodeID"] for node in alive if not labelled or node["Labels"].get(names.ROLE_LABEL) in names.TIER_ROLES
    ]

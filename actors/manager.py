"""The manager: one cache tier on each node that has a tier role. All its state is in Ray; it only compares and acts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from hifc_ray.actors import names
from hifc_ray.config import TierConfig

StartTier = Callable[[TierConfig, int, str, str], Any]  # config, slot bytes, node id, namespace

INTERVAL_S = 1.0  # between two looks at the nodes

log = logging.getLogger(__name__)


class Manager:
    """Reconciles: what should be there against what is there, once a second and whenever asked."""

    def __init__(self, config: TierConfig, slot_bytes: int, namespace: str, start_tier: StartTier) -> None:
        self._start_tier = start_tier
        self._config = config
        self._slot_bytes = slot_bytes
        self._namespace = namespace
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
        """Start the tiers that are missing; ids of the nodes that have one now (starting ones included)."""
        with self._lock:
            wanted = tier_nodes(ray.nodes())
            for node_id in wanted:
                if names.find(names.tier(node_id), self._namespace) is None:
                    log.info("starting the cache tier of node %s", node_id)
                    self._start_tier(self._config, self._slot_bytes, node_id, self._namespace)
            return wanted

    @ray.method(concurrency_group="control")
    def stop(self) -> None:
        """Start no more tiers."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.reconcile()
            except RayError as error:
                log.warning("reconciling the tiers failed, will try again: %s", error)
            self._closing.wait(INTERVAL_S)


def tier_nodes(nodes: list[dict[str, Any]]) -> list[str]:
    """Ids of the live nodes that have a tier role: by label, or all of them where no node has a role label."""
    alive = [node for node in nodes if node["Alive"]]
    labelled = any(names.ROLE_LABEL in node["Labels"] for node in alive)
    return [
        node["NodeID"] for node in alive if not labelled or node["Labels"].get(names.ROLE_LABEL) in names.TIER_ROLES
    ]

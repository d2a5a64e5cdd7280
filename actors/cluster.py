"""Everything of one namespace on a Ray cluster: bring it up, find it, say how it is, take it down. Safe to repeat."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from hifc_ray.actors import names, placement
from hifc_ray.actors.calls import ask
from hifc_ray.config import EngineConfig, TierConfig
from hifc_ray.errors import ConfigError, HifcError, TierUnavailable
from hifc_ray.host.arena import lock_path
from hifc_ray.locks import is_locked

TIER_DEADLINE_S = 120.0  # for an arena to be allocated and a log to be recovered
ENGINE_DEADLINE_S = 600.0  # for a model to be loaded
ANSWER_DEADLINE_S = 10.0
CLOSE_DEADLINE_S = 60.0  # for a tier to write what flash lacks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """Handles of what is up in a namespace."""

    policy: Any | None
    manager: Any | None
    tiers: dict[str, Any]  # by node id
    engines: dict[str, Any]  # by actor name

    @property
    def is_empty(self) -> bool:
        return not (self.policy or self.manager or self.tiers or self.engines)


def find(namespace: str) -> Found:
    """What is up in a namespace; starts nothing."""
    here = [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if a["namespace"] == namespace]
    handles = {name: names.find(name, namespace) for name in here}
    alive = {name: handle for name, handle in handles.items() if handle is not None}
    prefix = names.tier("")
    return Found(
        policy=alive.get(names.POLICY),
        manager=alive.get(names.MANAGER),
        tiers={name.removeprefix(prefix): handle for name, handle in alive.items() if name.startswith(prefix)},
        engines={name: handle for name, handle in alive.items() if name.startswith(names.ENGINE_PREFIX)},
    )


def up(config: TierConfig, slot_bytes: int, namespace: str) -> list[str]:
    """Policy actor, a tier on each node that has the role, and the manager that keeps it so; ids of those nodes.

    Raises what a tier cannot start for (`ConfigError`, `StorageError`), and `ConfigError` if another
    configuration is up.
    """
    manager = find(namespace).manager
    if manager is not None and ask(manager.settings.remote(), ANSWER_DEADLINE_S) != (config, slot_bytes):
        raise ConfigError(f"another configuration is up in namespace {namespace}; take it down first: hifc down")
    placement.policy(namespace)
    try:
        ready = placement.manager(config, slot_bytes, namespace).ready.remote(TIER_DEADLINE_S)
        return ask(ready, TIER_DEADLINE_S + ANSWER_DEADLINE_S)
    except HifcError:
        if manager is None:
            down(namespace, flush=False)
        raise


def start_engine(
    config: EngineConfig,
    number: int,
    namespace: str,
    *,
    num_engines: int = 1,
    node_id: str | None = None,
    detached: bool = False,
) -> tuple[Any, dict[str, Any]]:
    """An inference actor that is ready, and what it is. Raises what it cannot start for, `TierUnavailable` if late."""
    resources = ray.cluster_resources()
    gpu = config.device != "cpu" and resources.get("GPU", 0) > 0
    if not gpu and resources.get("CPU", 0) < 1:
        raise TierUnavailable("the cluster has no CPU to give to an engine")
    engine = placement.inference(
        config,
        names.engine(config.model, number),
        namespace,
        num_cpus=0 if gpu else 1,
        num_gpus=1 if gpu else 0,
        num_engines=num_engines,
        node_id=node_id,
        detached=detached,
    )
    return engine, ask(engine.ready.remote(), ENGINE_DEADLINE_S)


def start_engines(config: EngineConfig, count: int | None, namespace: str) -> list[str]:
    """Engines that stay, `count` of them or one per GPU (one without GPUs), as far as they are missing; their names."""
    if count is None:
        gpus = int(ray.cluster_resources().get("GPU", 0)) if config.device != "cpu" else 0
        count = max(1, gpus)
    per_node = -(-count // max(1, sum(1 for node in ray.nodes() if node["Alive"])))
    for number in range(count):
        start_engine(config, number, namespace, num_engines=per_node, detached=True)
    return [names.engine(config.model, number) for number in range(count)]


def down(namespace: str, *, flush: bool = True) -> list[str]:
    """Take everything down, engines first; names of what was there. What does not answer is killed."""
    found = find(namespace)
    if found.manager is not None:
        _close("the manager", found.manager.stop.remote(), ANSWER_DEADLINE_S)
        _kill(found.manager)  # before the tiers: it would start them again
    for name, engine in found.engines.items():
        _close(name, engine.close.remote(), ANSWER_DEADLINE_S)
        _kill(engine)
    closing = {node: tier.close.remote(flush=flush) for node, tier in find(namespace).tiers.items()}
    for node, reference in closing.items():
        _close(names.tier(node), reference, CLOSE_DEADLINE_S)
        tier = names.find(names.tier(node), namespace)
        if tier is not None:
            _kill(tier)
    if found.policy is not None:
        _kill(found.policy)
    sweep(arena_here(namespace))
    single = {names.POLICY: found.policy, names.MANAGER: found.manager}
    return [*found.engines, *map(names.tier, closing), *(name for name, handle in single.items() if handle is not None)]


def _close(name: str, reference: Any, deadline_s: float) -> None:
    try:
        ask(reference, deadline_s)
    except HifcError as error:
        log.warning("%s did not close, and is killed: %s", name, error)


def _kill(handle: Any) -> None:
    try:
        ray.kill(handle)
    except (RayError, ValueError) as error:
        log.info("already gone: %s", error)


def arena_here(namespace: str) -> Path:
    """Where the arena of this node is, or would be."""
    context = ray.get_runtime_context()
    return names.arena_path(context.get_session_name(), namespace, context.get_node_id())


def sweep(arena: Path) -> None:
    """Remove what a tier that died or was killed has left of this arena, unless a process still holds it."""
    lock = lock_path(arena)
    end = time.monotonic() + ANSWER_DEADLINE_S
    while is_locked(lock) and time.monotonic() < end:
        time.sleep(0.05)
    if is_locked(lock):
        log.warning("%s is still in use", arena)
        return
    for path in arena.parent.glob(f"{arena.name}*"):
        if not is_locked(path):
            path.unlink(missing_ok=True)

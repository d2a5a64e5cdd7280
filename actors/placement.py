"""Every Ray option in one place: a plain class becomes an actor here, in one line each."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hifc_ray.actors import names
from hifc_ray.actors.cache_tier import CacheTierActor
from hifc_ray.actors.manager import Manager
from hifc_ray.actors.policy import PolicyActor
from hifc_ray.config import EngineConfig, TierConfig

# Named, detached, restarted without limit; calls are never retried by Ray, since they are numbered by who makes them.
_SERVICE = {"num_cpus": 0, "lifetime": "detached", "get_if_exists": True, "max_restarts": -1, "max_task_retries": 0}
# What must be answered while the calls that do the work are waiting. Ray takes this in the decorator only.
_GROUPS = {"concurrency_groups": {"control": 2}}
# Since Ray 2.60 an actor with no GPU sees all of them; the tier must not take memory on any.
_NO_GPU = {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}


def tier(config: TierConfig, slot_bytes: int, node_id: str, namespace: str) -> Any:
    """The cache tier of a node: there is one, it never moves, and it starts again where it was."""
    session = ray.get_runtime_context().get_session_name()
    path = names.arena_path(session, namespace, node_id)
    return _on_node(CacheTierActor, names.tier(node_id), node_id, namespace, max_concurrency=8).remote(
        config, slot_bytes, str(path), node_id, namespace
    )


def policy(namespace: str) -> Any:
    """The one policy actor, on any node."""
    options = {**_SERVICE, "name": names.POLICY, "namespace": namespace, "runtime_env": _NO_GPU, "max_concurrency": 2}
    return ray.remote(**_GROUPS)(PolicyActor).options(**options).remote()


def manager(config: TierConfig, slot_bytes: int, namespace: str) -> Any:
    """The one manager, on this node (the head, where `hifc up` runs)."""
    node_id = ray.get_runtime_context().get_node_id()
    return _on_node(Manager, names.MANAGER, node_id, namespace, max_concurrency=2).remote(
        config, slot_bytes, namespace, tier
    )


def inference(
    config: EngineConfig,
    name: str,
    namespace: str,
    *,
    num_cpus: float = 0,
    num_gpus: float = 0,
    num_engines: int = 1,
    node_id: str | None = None,
    detached: bool = False,
) -> Any:
    """An inference actor, one of `num_engines` of its node; on `node_id`, or wherever its CPUs and GPUs are to be had.

    It lives as long as its handle; if `detached`, until it is killed, and there is one of its name.
    """
    # Here, since it imports torch: the manager, commands and tiers do without its seconds and its memory.
    from hifc_ray.actors.inference import InferenceActor

    options: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "max_restarts": 0,
        "max_concurrency": 64,
    }
    if detached:
        options |= {"lifetime": "detached", "get_if_exists": True}
    if node_id is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(**_GROUPS)(InferenceActor).options(**options).remote(config, namespace, num_engines=num_engines)


def _on_node(kind: type, name: str, node_id: str, namespace: str, *, max_concurrency: int) -> Any:
    options = {
        **_SERVICE,
        "name": name,
        "namespace": namespace,
        "runtime_env": _NO_GPU,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
    }
    return ray.remote(**_GROUPS)(kind).options(max_concurrency=max_concurrency, **options)

"""How everything in a namespace is, as plain values. A part that does not answer says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray

from hifc_ray.actors import cluster
from hifc_ray.actors.calls import ask
from hifc_ray.errors import HifcError

HIT_TIERS = ("gpu", "host", "flash")


def state(namespace: str) -> dict[str, Any]:
    """Nodes of the cluster, and each actor of this namespace by name. Nothing up: empty lists and None."""
    found = cluster.find(namespace)
    return {
        "namespace": namespace,
        "nodes": [_node(node) for node in ray.nodes()],
        "tiers": [{"node": node, **_answer(tier.summary, _tier)} for node, tier in found.tiers.items()],
        "engines": [{"name": name, **_engine(engine)} for name, engine in found.engines.items()],
        "policy": None if found.policy is None else _answer(found.policy.weights, _weights),
        "manager": None if found.manager is None else _answer(found.manager.settings, lambda _: {}),
    }


def is_up(report: dict[str, Any]) -> bool:
    """Is there anything of ours?"""
    services = (report["policy"], report["manager"])
    return bool(report["tiers"] or report["engines"]) or any(service is not None for service in services)


def is_well(report: dict[str, Any]) -> bool:
    """Is everything there but engines, which nobody may need, and does all of it answer?"""
    parts = [*report["tiers"], *report["engines"], report["policy"], report["manager"]]
    return bool(report["tiers"]) and all(part is not None and "problem" not in part for part in parts)


def _answer(method: Any, shape: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    try:
        return shape(ask(method.remote(), cluster.ANSWER_DEADLINE_S))
    except HifcError as error:
        return {"problem": str(error)}


def _node(node: dict[str, Any]) -> dict[str, Any]:
    resources = node["Resources"]
    return {
        "node": node["NodeID"],
        "address": node["NodeManagerAddress"],
        "alive": node["Alive"],
        "cpus": resources.get("CPU", 0),
        "gpus": resources.get("GPU", 0),
    }


def _tier(summary: dict[str, Any]) -> dict[str, Any]:
    counters = summary["counters"]
    return {
        "incarnation": summary["incarnation"],
        "host": summary["host"],
        "flash": _flash(summary["flash"]),
        "lookup_keys": int(counters.get("lookup_keys", 0)),
        "served_blocks": int(counters.get("served_blocks", 0)),
        "checksum_faults": int(sum(count for name, count in counters.items() if name.split("{")[0] == "corrupt")),
        "weights_version": summary["weights_version"],
        "counters": counters,
    }


def _flash(flash: dict[str, Any] | None) -> dict[str, Any] | None:
    """Without the filter's bytes, which are for machines."""
    if flash is None:
        return None
    known = {name: value for name, value in flash["filter"].items() if name != "data"}
    return {**flash, "filter": known}


def _engine(engine: Any) -> dict[str, Any]:
    about = _answer(engine.ready, dict)
    return about if "problem" in about else {**about, **_answer(engine.counters, _hits)}


def _hits(counters: dict[str, float]) -> dict[str, Any]:
    return {
        "hits": {tier: int(counters.get(f"hits_blocks{{{tier}}}", 0)) for tier in HIT_TIERS},
        "computed_blocks": int(counters.get("computed_blocks", 0)),
        "saved_tokens": int(counters.get("saved_tokens", 0)),
        "computed_tokens": int(counters.get("computed_tokens", 0)),
    }


def _weights(weights: Any) -> dict[str, Any]:
    return {"version": weights.version, "alpha": weights.alpha, "beta": weights.beta, "gamma": weights.gamma}

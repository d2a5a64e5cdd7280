"""Purging a whole cluster: every engine's pool and every tier of a namespace, and what did not answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hifc_ray.actors import cluster
from hifc_ray.actors.calls import ask
from hifc_ray.errors import HifcError
from hifc_ray.messages import Purge

PURGE_DEADLINE_S = 120.0  # for writes that are under way to return, and for flash to forget
_COUNTS = ("host_blocks", "flash_blocks", "flash_bytes", "gpu_blocks")


def purge(what: Purge, namespace: str) -> dict[str, Any]:
    """Forget blocks in all engines and tiers that are up: what went, in all and of each; `problem` where one is silent.

    Engines are asked first, so that they store nothing of it any more, and again after the tiers, for what they have
    loaded in between. A node that is down keeps what is on its flash.
    """
    found = cluster.find(namespace)
    before = _ask_all(found.engines, what)
    tiers = _ask_all(found.tiers, what)
    after = _ask_all(found.engines, what)
    nodes = [{"node": node, **_row(tiers[node])} for node in found.tiers]
    engines = [{"engine": name, **_added(_row(before[name]), _row(after[name]))} for name in found.engines]
    rows = [*nodes, *engines]
    totals = {name: sum(row.get(name, 0) for row in rows) for name in _COUNTS}
    ok = bool(rows) and not any("problem" in row for row in rows)
    return {"ok": ok, **totals, "nodes": nodes, "engines": engines}


def _ask_all(actors: Mapping[str, Any], what: Purge) -> dict[str, Any]:
    """The answer of each of these actors, or its error; asked at the same time."""
    asked = {name: actor.purge.remote(what) for name, actor in actors.items()}
    answers: dict[str, Any] = {}
    for name, reference in asked.items():
        try:
            answers[name] = ask(reference, PURGE_DEADLINE_S)
        except HifcError as error:
            answers[name] = error
    return answers


def _row(answer: Any) -> dict[str, Any]:
    if isinstance(answer, HifcError):
        return {"problem": str(answer)}
    if isinstance(answer, int):
        return {"gpu_blocks": answer}
    row = asdict(answer)
    if row.pop("unfinished"):
        row["problem"] = "a write to flash hangs: what is left there is not served, and is purged when it has returned"
    return row


def _added(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """What went the first time and the second; a problem of either is one."""
    if "problem" in first or "problem" in second:
        return {**second, **first}
    return {name: value + second[name] for name, value in first.items()}

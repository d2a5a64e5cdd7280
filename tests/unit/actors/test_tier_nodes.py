"""Which nodes get a tier, and the names of what belongs to a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hifc_ray.actors import names
from hifc_ray.actors.manager import Manager, tier_nodes


def _node(name: str, role: str | None = None, *, alive: bool = True) -> dict[str, Any]:
    labels = {"ray.io/node-id": name} | ({names.ROLE_LABEL: role} if role is not None else {})
    return {"NodeID": name, "Alive": alive, "Labels": labels}


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ([], []),
        ([_node("a"), _node("b")], ["a", "b"]),
        ([_node("a"), _node("b", alive=False)], ["a"]),
        ([_node("a", "head"), _node("b")], []),
        ([_node("a", "head"), _node("b", "gpu"), _node("c", "cache"), _node("d")], ["b", "c"]),
        ([_node("a", "gpu", alive=False), _node("b")], ["b"]),
        ([_node("a", "GPU")], []),
    ],
)
def test_by_role_or_all_where_nobody_has_one(nodes: list[dict[str, Any]], wanted: list[str]) -> None:
    assert tier_nodes(nodes) == wanted


def test_an_arena_has_one_name_a_node_namespace_and_session() -> None:
    def path(session: str = "s", namespace: str = "n", node: str = "0123456789abcdef") -> Path:
        return names.arena_path(session, namespace, node)

    assert path() == path()
    assert path().name.startswith("hifc-")
    assert path().name.endswith("-0123456789ab")
    assert len({path(), path(session="t"), path(namespace="m"), path(node="1123456789abcdef")}) == 4
    assert path("a", "bc") != path("ab", "c")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Actors that are there, by name; two nodes may have tiers."""
    there: set[str] = set()
    monkeypatch.setattr("hifc_ray.actors.manager.ray.nodes", lambda: [_node("a"), _node("b")])
    monkeypatch.setattr(names, "find", lambda name, namespace: object() if name in there else None)
    monkeypatch.setattr(Manager, "_run", lambda self: None)
    return there


def test_missing_tiers_are_started_once(found: set[str]) -> None:
    started: list[str] = []
    found.add(names.tier("a"))

    def start(_config: Any, _slot_bytes: int, node: str, _namespace: str) -> None:
        started.append(node)
        found.add(names.tier(node))

    manager = Manager(None, 1, "n", start)  # type: ignore[arg-type]
    assert manager.reconcile() == ["a", "b"]
    assert manager.reconcile() == ["a", "b"]
    assert started == ["b"]


def test_a_tier_that_dies_at_once_is_not_started_at_once(found: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("hifc_ray.actors.manager.time.monotonic", lambda: now[0])
    started: list[float] = []
    manager = Manager(None, 1, "n", lambda *_: started.append(now[0]))  # type: ignore[arg-type]
    for _ in range(12):
        manager.reconcile()
        now[0] += 1
    assert started == [100.0, 100.0, 105.0, 105.0, 110.0, 110.0]


def test_a_stopped_manager_starts_nothing(found: set[str]) -> None:
    started: list[Any] = []
    manager = Manager(None, 1, "n", lambda *_: started.append(1))  # type: ignore[arg-type]
    manager.stop()
    manager.reconcile()
    assert started == []

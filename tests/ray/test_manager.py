"""One tier on each node that has the role, on two raylets of one machine, and on one that comes later."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import ray

from hifc_ray.actors import cluster, names
from hifc_ray.actors.calls import ask
from hifc_ray.config import FlashConfig, HostConfig, TierConfig
from tests.fakes.blocks import SLOT_BYTES, store
from tests.fakes.stage import WAIT_S, Stage, eventually, kill_process, pid

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

pytestmark = pytest.mark.timeout(120)

_START_S = 5.0  # from a node's joining to its tier's serving


class Nodes:
    """Raylets of this test."""

    def __init__(self, ray_cluster: Cluster, directory: Path) -> None:
        self._cluster = ray_cluster
        self._directory = directory
        self._added: list[Any] = []

    def add(self, role: str) -> str:
        flash = self._directory / f"flash-{len(self._added)}"
        flash.mkdir()
        node = self._cluster.add_node(
            num_cpus=1,
            object_store_memory=80 << 20,
            labels={names.ROLE_LABEL: role},
            env_vars={"HIFC_FLASH_DIR": str(flash)},
        )
        self._added.append(node)
        return str(node.node_id)

    def flash_of(self, index: int) -> Path:
        return self._directory / f"flash-{index}"

    def remove_all(self) -> None:
        for node in self._added:
            self._cluster.remove_node(node)


@pytest.fixture
def nodes(ray_cluster: Cluster, stage: Stage, tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(ray_cluster, tmp_path)
    yield nodes
    cluster.down(stage.namespace, flush=False)  # tiers of nodes that are gone leave their arenas behind
    nodes.remove_all()


def test_a_tier_on_each_node_with_the_role(nodes: Nodes, stage: Stage, tmp_path: Path) -> None:
    gpu, cache = nodes.add("gpu"), nodes.add("cache")
    config = TierConfig(HostConfig(arena_bytes=16 * SLOT_BYTES), FlashConfig((tmp_path / "elsewhere",), 4 << 20))
    assert set(cluster.up(config, SLOT_BYTES, stage.namespace)) == {gpu, cache}
    assert set(cluster.find(stage.namespace).tiers) == {gpu, cache}

    tiers = {node: stage.find_tier(node) for node in (gpu, cache)}
    arenas = {ask(tier.arena_path.remote(), WAIT_S) for tier in tiers.values()}
    assert len(arenas) == 2
    assert len({pid(tier) for tier in tiers.values()}) == 2
    assert all(len(list(nodes.flash_of(index).iterdir())) > 0 for index in (0, 1))
    assert not (tmp_path / "elsewhere").exists()

    later = nodes.add("cache")
    joined = time.monotonic()
    eventually(lambda: stage.find_tier(later))
    assert time.monotonic() - joined < _START_S
    eventually(lambda: ask(stage.find_tier(later).arena_path.remote(), WAIT_S))
    assert set(cluster.find(stage.namespace).tiers) == {gpu, cache, later}
    assert stage.find_tier() is None  # this node, the head, has no role

    _comes_back(stage, gpu)


def _comes_back(stage: Stage, node: str) -> None:
    """Killed for good, a tier is started again; killed like a process, Ray does it; the manager itself comes back."""
    manager = cluster.find(stage.namespace).manager
    first = stage.find_tier(node)
    killed = kill_process(manager)
    ray.kill(first)
    eventually(lambda: pid(manager) != killed)
    second = eventually(lambda: stage.find_tier(node))
    assert second._actor_id != first._actor_id
    eventually(lambda: ask(second.arena_path.remote(), WAIT_S))


def test_where_nobody_has_a_role_every_node_has_a_tier(stage: Stage) -> None:
    config = TierConfig(HostConfig(arena_bytes=16 * SLOT_BYTES))
    up = cluster.up(config, SLOT_BYTES, stage.namespace)
    assert up == [stage.node]
    assert cluster.up(config, SLOT_BYTES, stage.namespace) == up  # again: nothing changes
    client = stage.client()
    assert store(client, [0]) == [0]

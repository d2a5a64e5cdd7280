"""A tier client in a process of its own, for tests that share a tier between processes and kill one."""

from __future__ import annotations

from typing import Any

import ray

from hifc_ray.actors.calls import ask
from tests.fakes.driven import Driven
from tests.fakes.stage import WAIT_S, Stage, kill_process


class RemoteClient:
    """A `RayTierClient` in a process of its own, driven from here; slots are read and written through its mapping."""

    def __init__(self, namespace: str, node: str) -> None:
        self._actor = ray.remote(Driven).options(num_cpus=0).remote(namespace, node)  #
        self._leases: dict[int, Any] = {}
        self._grants: dict[int, Any] = {}
        assert ask(self._actor.connected.remote(), WAIT_S)
        self.window = ask(self._actor.get.remote("window"), WAIT_S)

    def lookup(self, query: Any, deadline_s: float) -> Any:
        number, reply = ask(self._actor.lookup.remote(query, deadline_s), WAIT_S)
        self._leases[id(reply.lease)] = number
        return reply

    def reserve(self, request: Any, deadline_s: float) -> Any:
        number, grant = ask(self._actor.reserve.remote(request, deadline_s), WAIT_S)
        self._grants[id(grant)] = number
        return grant

    def commit(self, grant: Any, attention: Any, deadline_s: float) -> int:
        return int(ask(self._actor.commit.remote(self._grants[id(grant)], attention, deadline_s), WAIT_S))

    def abort(self, grant: Any) -> None:
        ask(self._actor.abort.remote(self._grants[id(grant)]), WAIT_S)

    def wait(self, reply: Any, deadline_s: float) -> Any:
        return ask(self._actor.wait.remote(self._leases[id(reply.lease)], deadline_s), WAIT_S)

    def holds(self, lease: Any) -> Any:
        return ask(self._actor.holds.remote(self._leases[id(lease)]), WAIT_S)

    def release(self, lease: Any) -> None:
        ask(self._actor.release.remote(self._leases[id(lease)]), WAIT_S)

    def slot(self, index: int) -> memoryview:
        return memoryview(ask(self._actor.slot.remote(index), WAIT_S))

    def flush(self) -> None:
        ask(self._actor.flush.remote(), WAIT_S)

    def kill(self) -> None:
        """kill -9 of its process."""
        kill_process(self._actor)

    def close(self) -> None:
        ray.kill(self._actor)


def remote_client(stage: Stage) -> Any:
    return RemoteClient(stage.namespace, stage.node)

"""What runs inside actors for tests. It imports no torch, which costs a process seconds: nothing of the engine."""

from __future__ import annotations

from typing import Any

from hifc_ray.actors import names
from hifc_ray.actors.client import RayTierClient
from tests.fakes.tier import push_out

CONNECT_S = 30.0


def open_anew(actor: Any) -> None:
    """An empty tier in the same process, with the next incarnation."""
    actor._cache.close(flush=False)
    for path in actor._config.flash.directories[0].iterdir():
        path.unlink()
    actor._cache = None
    assert actor._open()


def push_out_of(actor: Any, numbers: list[int]) -> None:
    """Make these blocks leave host memory for flash."""
    push_out(actor._cache, numbers)


class Driven:
    """A `RayTierClient` as an actor: what its methods return stays here too, by number."""

    def __init__(self, namespace: str, node: str) -> None:
        self._client = RayTierClient(lambda: names.find(names.tier(node), namespace))
        self._things: list[Any] = []

    def connected(self) -> bool:
        return self._client.connected(CONNECT_S)

    def get(self, name: str) -> Any:
        return getattr(self._client, name)

    def lookup(self, query: Any, deadline_s: float) -> tuple[int, Any]:
        self._things.append(self._client.lookup(query, deadline_s))
        return len(self._things) - 1, self._things[-1]

    def reserve(self, request: Any, deadline_s: float) -> tuple[int, Any]:
        self._things.append(self._client.reserve(request, deadline_s))
        return len(self._things) - 1, self._things[-1]

    def commit(self, number: int, attention: Any, deadline_s: float) -> int:
        return self._client.commit(self._things[number], attention, deadline_s)

    def abort(self, number: int) -> None:
        self._client.abort(self._things[number])

    def wait(self, number: int, deadline_s: float) -> Any:
        return self._client.wait(self._things[number], deadline_s)

    def holds(self, number: int) -> Any:
        return self._client.holds(self._things[number].lease)

    def release(self, number: int) -> None:
        self._client.release(self._things[number].lease)

    def slot(self, index: int) -> bytes:
        return bytes(self._client.slot(index))

    def flush(self) -> None:
        self._client.flush()


def hold_slots(engine_actor: Any, cached: list[int], fresh: list[int]) -> tuple[int, int]:
    """Lease what is cached of one prompt, reserve slots for blocks of another; how many of each. Never given back."""
    import numpy as np

    from hifc_ray import keys
    from hifc_ray.client import ChainQuery, StoreRequest

    client, engine = engine_actor._client, engine_actor._engine
    chain = tuple(keys.chain(engine.namespace, cached, engine.layout.block_tokens))
    query = ChainQuery(engine.namespace, chain, np.zeros(len(chain), np.bool_), engine.layout)
    new = tuple(keys.chain(engine.namespace, fresh[::-1], engine.layout.block_tokens))[:3]
    reply = client.lookup(query, 1.0)
    grant = client.reserve(StoreRequest(engine.namespace, new, np.arange(3), engine.layout), 1.0)
    client.wait(reply, 2.0)
    engine_actor.kept = reply, grant
    return len(reply.lease), len(grant.granted)


def num_remembered(engine_actor: Any) -> int:
    """Requests that the actor and its engine know of."""
    return len(engine_actor._events) + len(engine_actor._engine._results)


def watch_batches(engine_actor: Any) -> None:
    """Note how many sequences decode together, step by step."""
    forward = engine_actor._engine._forward
    engine_actor.sizes, batch = [], forward.batch

    def watched(sequences: list[Any]) -> Any:
        engine_actor.sizes.append(len(sequences))
        return batch(sequences)

    forward.batch = watched


def watched_batches(engine_actor: Any) -> list[int]:
    return list(engine_actor.sizes)


def fail_next_chunk(engine_actor: Any) -> None:
    """The next step that computes a piece of a prompt raises."""
    forward = engine_actor._engine._forward
    chunk = forward.chunk

    def failing(*_: Any) -> Any:
        forward.chunk = chunk
        raise RuntimeError("out of luck")

    forward.chunk = failing


def linked_to(engine_actor: Any) -> int:
    """Incarnation of the tier that an engine is linked to; 0 for none."""
    link = engine_actor._client._link
    return 0 if link is None else int(link.info.incarnation)


def eviction_version(tier_actor: Any) -> int:
    """Version of the weights that the tier's eviction policy uses."""
    return int(tier_actor._cache._eviction.weights.version)

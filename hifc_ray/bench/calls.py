"""Lookup through the cache-tier actor: what it costs beside an empty call of the same actor."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray

from hifc_ray.actors import connection, names, placement
from hifc_ray.actors.calls import ask
from hifc_ray.actors.client import RayTierClient
from hifc_ray.bench import blocks
from hifc_ray.bench.computing import Computing
from hifc_ray.bench.lookup import NUM_KEYS
from hifc_ray.bench.report import Figure
from hifc_ray.bench.rounds import Progress
from hifc_ray.client import ChainQuery
from hifc_ray.errors import TierUnavailable
from hifc_ray.health.readings import num_cores
from hifc_ray.layout import BlockLayout

NUM_ROUNDS = 5  # of each state; the ratio is that of the round's medians
_STATES = {
    "idle": "nothing else running",
    "busy": "an engine in another process prefilling and decoding on all cores",
}
_CONNECT_S = 30.0
_LOAD_S = 120.0  # for the computing engine to load its model
# A lookup costs the same whatever the size of the blocks: only keys travel. These take 2 MiB instead of 6 GiB.
_LAYOUT = BlockLayout(layers=1, kv_heads=1, head_dim=16, block_tokens=16)
_NUM_SLOTS = 512  # a default window, an eighth of it, is the whole chain


def measure(model: str, progress: Progress, num_calls: int, least_s: float) -> list[Figure]:
    """`lookup_call_ratio.idle` and `.busy`, over at least so many calls of each kind and so many seconds."""
    progress("lookup: starting Ray and a cache tier")
    with _local_ray() as namespace, _tier(namespace) as tier:
        client = RayTierClient(lambda: names.find(names.tier(_node()), namespace))
        try:
            if not client.connected(_CONNECT_S):
                raise TierUnavailable(f"the cache-tier actor did not come up within {_CONNECT_S:.0f} s")
            chained = blocks.chain(_LAYOUT, (0, NUM_KEYS))
            blocks.store(client, _LAYOUT, chained)
            query = blocks.query(_LAYOUT, chained)
            progress("lookup: calls of the actor, nothing else running")
            figures = [_figure("idle", tier, client, query, num_calls, least_s)]
            progress("lookup: calls of the actor beside an engine that computes")
            with _computing_engine(model):
                figures.append(_figure("busy", tier, client, query, num_calls, least_s))
            return figures
        finally:
            client.close()


def _figure(state: str, tier: Any, client: RayTierClient, query: ChainQuery, num_calls: int, least_s: float) -> Figure:
    for _ in range(20):
        _empty_call(tier)
        _lookup(client, query)
    lookups: list[float] = []
    empties: list[float] = []
    end = time.monotonic() + least_s
    while len(lookups) < num_calls or time.monotonic() < end:
        if len(lookups) % 2:
            lookups.append(_lookup(client, query))
            empties.append(_empty_call(tier))
        else:
            empties.append(_empty_call(tier))
            lookups.append(_lookup(client, query))
    rounds = zip(np.array_split(lookups, NUM_ROUNDS), np.array_split(empties, NUM_ROUNDS), strict=True)
    samples = [float(np.median(of_lookup) / np.median(of_empty)) for of_lookup, of_empty in rounds]
    parts = {
        "lookup_p50_s": float(np.median(lookups)),
        "empty_p50_s": float(np.median(empties)),
        "lookup_p99_s": float(np.percentile(lookups, 99)),
        "empty_p99_s": float(np.percentile(empties, 99)),
        "calls": len(lookups),
    }
    what = f"p50 of lookup, lease and release of {NUM_KEYS} blocks through the actor ÷ of an empty call"
    return Figure(f"lookup_call_ratio.{state}", samples, f"{what}; {_STATES[state]}", parts)


def _lookup(client: RayTierClient, query: ChainQuery) -> float:
    begun = time.perf_counter()
    reply = client.lookup(query, blocks.CALL_S)
    client.release(reply.lease)
    took_s = time.perf_counter() - begun
    if len(reply.lease) != NUM_KEYS:
        raise TierUnavailable(f"the tier leased {len(reply.lease)} of {NUM_KEYS} blocks that it has")
    return took_s


def _empty_call(tier: Any) -> float:
    begun = time.perf_counter()
    ask(tier.ping.remote(), blocks.CALL_S)
    return time.perf_counter() - begun


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


@contextmanager
def _local_ray() -> Iterator[str]:
    """A Ray of this process's own for as long as this lasts, or the one it is connected to; yields a namespace."""
    namespace = f"hifc-bench-{secrets.token_hex(4)}"
    if ray.is_initialized():
        yield namespace
        return
    with tempfile.TemporaryDirectory(prefix="hifc-", dir="/tmp", ignore_cleanup_errors=True) as short:
        connection.start_local(namespace, Path(short))
        try:
            yield namespace
        finally:
            connection.leave()


@contextmanager
def _tier(namespace: str) -> Iterator[Any]:
    config = blocks.tier_config(_LAYOUT, _NUM_SLOTS, 1 / 8, None)
    tier = placement.tier(config, _LAYOUT.block_bytes, _node(), namespace)
    try:
        yield tier
    finally:
        ask(tier.close.remote(flush=False), blocks.CALL_S)
        ray.kill(tier)


@contextmanager
def _computing_engine(model: str) -> Iterator[None]:
    """Within the block an engine computes without pause; raises `TierUnavailable` if it did not after all."""
    engine = ray.remote(Computing).options(num_cpus=0, max_concurrency=2).remote(model, num_cores())
    try:
        before = _wait_for_step(engine)
        yield
        if ask(engine.num_steps.remote(), _LOAD_S) == before:
            raise TierUnavailable("the engine beside the lookups computed nothing")
    finally:
        ray.kill(engine)


def _wait_for_step(engine: Any) -> int:
    end = time.monotonic() + _LOAD_S
    while not (num_steps := ask(engine.num_steps.remote(), _LOAD_S)):
        if time.monotonic() > end:
            raise TierUnavailable(f"the engine beside the lookups made no step within {_LOAD_S:.0f} s")
        time.sleep(0.05)
    return int(num_steps)

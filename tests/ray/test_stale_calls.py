"""Calls that arrive twice, late, or from nobody: the actor changes nothing for them, and says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hifc_ray.actors import wire
from hifc_ray.actors.calls import ask
from hifc_ray.messages import CallHeader, GrantName, Held
from tests.fakes.blocks import SOON, fill, query, request, store
from tests.fakes.stage import WAIT_S, Stage, kill_process, pid
from tests.fakes.stage import eventually as eventually_
from tests.fakes.tier import serve

pytestmark = pytest.mark.timeout(60)


def state(stage: Stage) -> tuple[dict[str, int], int]:
    summary = stage.summary()
    return summary["host"]["slots"], int(summary["counters"].get("stored_blocks{host}", 0))


def test_each_call_counts_once_and_in_its_order(stage: Stage) -> None:
    tier = stage.small_tier()
    client = stage.client()
    store(client, range(3))
    open_grant = client.reserve(request([7]), SOON)
    reply = client.lookup(query(range(3)), SOON)
    link = client._link
    assert link is not None
    lookups, stores = client._lookup_sequence, client._store_sequence
    before = state(stage)
    assert before[0]["leased"] == 3
    assert before[0]["reserved"] == 1

    def header(sequence: int, **changes: int) -> CallHeader:
        return replace(CallHeader(link.info.holder, link.info.incarnation, sequence), **changes)

    nothing = Held()
    stale = [
        # A lookup that says nothing is held would release all leases, were it new.
        tier.lookup.remote(wire.pack_lookup(header(lookups), nothing, query([0]))),
        tier.lookup.remote(wire.pack_lookup(header(1), nothing, None)),
        tier.lookup.remote(wire.pack_lookup(header(lookups + 9, incarnation=1), nothing, query([0]))),
        tier.lookup.remote(wire.pack_lookup(header(lookups + 9, holder=link.info.holder + 64), nothing, query([0]))),
        # The same for grants.
        tier.reserve.remote(header(stores), nothing, request([8])),
        tier.reserve.remote(header(stores + 9, incarnation=1), nothing, request([8])),
        tier.commit.remote(header(stores), nothing, GrantName(link.info.incarnation, open_grant.sequence), None),
        tier.commit.remote(header(1), nothing, GrantName(link.info.incarnation, open_grant.sequence), None),
    ]
    assert [ask(call, WAIT_S) or None for call in stale] == [None] * len(stale)
    assert state(stage) == before
    assert client.holds(reply.lease).all()

    fill(client, open_grant, [7])
    assert client.commit(open_grant, np.array([0.5], np.float32), SOON) == 1
    done = GrantName(link.info.incarnation, open_grant.sequence)
    again = tier.commit.remote(header(client._store_sequence + 1), nothing, done, None)
    assert ask(again, WAIT_S) == 1  # said again in its order: done, and not done twice
    assert state(stage)[1] == before[1] + 1
    client.release(reply.lease)
    client.flush()
    assert serve(client, [0, 1, 2]) == [0, 1, 2]
    stage.check()


def test_a_call_to_the_life_before(stage: Stage) -> None:
    tier = stage.small_tier()
    client = stage.client()
    grant = client.reserve(request([5]), SOON)
    link: Any = client._link
    killed = kill_process(tier)
    eventually_(lambda: pid(tier) != killed)
    before = state(stage)
    assert before[0]["reserved"] == 1
    old = CallHeader(link.info.holder, link.info.incarnation, 99)
    name = GrantName(link.info.incarnation, grant.sequence)
    assert ask(tier.commit.remote(old, Held(), name, None), WAIT_S) is None
    assert ask(tier.reserve.remote(old, Held(), request([6])), WAIT_S) is None
    assert ask(tier.lookup.remote(wire.pack_lookup(old, Held(), query([0]))), WAIT_S) == b""
    assert state(stage) == before
    fill(client, grant, [5])
    assert client.commit(grant, None, SOON) == 0
    assert client.connected(WAIT_S)
    client.flush()
    assert eventually_(lambda: state(stage)[0]["reserved"] == 0)
    assert store(client, [5]) == [5]
    stage.check()


def test_a_dead_tier_costs_each_thread_one_call(stage: Stage) -> None:
    """Counted, not timed: after the first call that fails no other is made until the tier is back."""
    tier = stage.small_tier()
    client = stage.client()
    store(client, range(4))
    import ray

    ray.kill(tier)
    for _ in range(50):
        client.lookup(query(range(4)), 0.5)
        client.reserve(request([9]), 0.5)
        client.flush()
    assert client.stats.get("calls_failed") == 1
    assert not client.connected()
    stage.small_tier()
    assert client.connected(WAIT_S)
    assert serve(client, range(4)) == [0, 1, 2, 3]  # out of the arena that the dead one left
    stage.check()

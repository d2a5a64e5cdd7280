"""Guards of the tiers that no other test takes on alone; README.md has the whole list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hifc_ray.tiering import TieredCache
from hifc_ray.types import KEY_BYTES, NO_SLOT, BlockState, Key, Lookup, Namespace
from tests.fakes.blocks import LAYOUT, OURS, SOON, holds_bytes, key, payload, query, request, store
from tests.fakes.tier import faulty, open_tier, push_out, serve, words

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[TieredCache]:
    made = open_tier(tmp_path, flash=faulty())
    yield made
    made.check()
    made.close(flush=False)


def neighbour(place: int) -> Key:
    """The key of block 0 with one bit flipped in one byte."""
    other = bytearray(key(0))
    other[place] ^= 1
    return Key(bytes(other))


@pytest.mark.parametrize("where", ["host", "flash", "host after a restart"])
def test_a_key_that_differs_in_any_one_byte_is_another_block(tier: TieredCache, tmp_path: Path, where: str) -> None:
    store(tier, [0])
    if where == "flash":
        push_out(tier, [0])
    if where == "host after a restart":
        tier.close(flush=False, keep_arena=True)
        tier = open_tier(tmp_path)
    for place in range(KEY_BYTES):
        reply = tier.lookup(replace(query([0]), keys=(neighbour(place),)), SOON)
        assert words(reply) == "M", place
    assert serve(tier, [0]) == [0]
    tier.close(flush=False)


@pytest.mark.parametrize("place", range(8))
def test_a_namespace_that_differs_in_a_byte_of_its_tag_is_another_model(tier: TieredCache, place: int) -> None:
    store(tier, [0])
    other = bytearray(OURS)
    other[place] ^= 1
    reply = tier.lookup(replace(query([0]), namespace=Namespace(bytes(other))), SOON)
    assert (words(reply), reply.slots.tolist()) == ("M", [NO_SLOT])
    assert tier.stats.get("namespace_mismatches") == 1


def test_a_waiter_never_takes_the_next_owner_s_block_for_its_own(tier: TieredCache) -> None:
    grant = tier.reserve(request([0]), SOON)
    reply = tier.lookup(query([0]), SOON)
    tier.abort(grant)
    assert store(tier, [1]) == [1]
    assert tier._books.find([key(1)]).tolist() == reply.slots.tolist()
    assert tier._books.table.state[reply.slots[0]] == BlockState.RESIDENT
    assert tier.wait(reply, 0.0).tolist() == [Lookup.MISS]
    assert not tier.holds(reply.lease).any()
    tier.release(reply.lease)


def test_a_victim_that_was_replaced_while_it_was_scored_stays(tier: TieredCache) -> None:
    store(tier, [0])
    slots = tier._books.find([key(0)])
    seen = tier._books.table.generation[slots].astype(np.int64)
    push_out(tier, [0])
    store(tier, [1])
    assert tier._books.find([key(1)]).tolist() == slots.tolist()
    tier._demoter._evict(slots, seen)
    assert tier.idle(SOON)
    assert tier._books.find([key(1)]).tolist() == slots.tolist()


def test_a_victim_that_was_leased_while_it_was_scored_stays(tier: TieredCache) -> None:
    store(tier, [0])
    slots = tier._books.find([key(0)])
    reply = tier.lookup(query([0]), SOON)
    tier._demoter._evict(slots, tier._books.table.generation[slots].astype(np.int64))
    assert tier.idle(SOON)
    store(tier, range(10, 30))  # whoever gets a slot writes into it
    assert holds_bytes(tier, int(reply.slots[0]), 0)
    assert bytes(tier.slot(int(slots[0]))[: LAYOUT.block_bytes]) == payload(0)
    tier.release(reply.lease)


def test_a_grant_whose_slot_has_another_owner_publishes_nothing_of_it(tier: TieredCache) -> None:
    grant = tier.reserve(request([0]), SOON)
    tier._books.abort(grant.slots)  # as if it had been taken back without closing the grant
    other = tier.reserve(request([1]), SOON)
    assert other.slots.tolist() == grant.slots.tolist()
    assert tier.commit(grant, None, SOON) == 0
    assert tier._books.table.state[other.slots[0]] == BlockState.RESERVED
    assert tier.commit(other, None, SOON) == 1

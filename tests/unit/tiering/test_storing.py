from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hifc_ray.errors import StorageError
from hifc_ray.layout import BlockLayout
from hifc_ray.tiering import TieredCache
from hifc_ray.types import NO_SLOT, Fate, Reserve, Tier
from tests.fakes.blocks import LAYOUT, SOON, fill, query, request, store
from tests.fakes.tier import in_host, open_tier, serve, words

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[TieredCache]:
    made = open_tier(tmp_path, slots=8)
    yield made
    made.check()
    made.close(flush=False)


def test_reserve_answers_each_key(tier: TieredCache) -> None:
    store(tier, [0])
    other = tier.reserve(request([1]), SOON)
    grant = tier.reserve(request([0, 1, 2]), SOON)
    assert grant.answers.tolist() == [Reserve.PRESENT, Reserve.PRESENT, Reserve.GRANTED]
    assert grant.slots[:2].tolist() == [NO_SLOT] * 2
    assert (grant.granted, grant.refused) == ([2], [])
    tier.abort(grant)
    tier.abort(other)
    assert in_host(tier, range(3)) == [0]


def test_a_key_named_twice_gets_one_slot(tier: TieredCache) -> None:
    grant = tier.reserve(request([4, 4, 5]), SOON)
    assert grant.answers.tolist() == [Reserve.GRANTED, Reserve.PRESENT, Reserve.GRANTED]
    assert tier.commit(grant, None, SOON) == 2


def test_what_does_not_fit_is_refused_counted_and_remembered(tier: TieredCache) -> None:
    grant = tier.reserve(request(range(11)), SOON)
    assert (len(grant.granted), grant.refused) == (8, [8, 9, 10])
    assert tier.stats.get("stores_refused", reason="no_room") == 3
    fill(tier, grant, list(range(11)))
    assert tier.commit(grant, None, SOON) == 8
    reply = tier.lookup(query([9]), SOON)
    assert reply.missed is not None
    assert reply.missed.fate == Fate.STORE_REFUSED


def test_nothing_is_visible_before_commit(tier: TieredCache) -> None:
    grant = tier.reserve(request([0]), SOON)
    fill(tier, grant, [0])
    reply = tier.lookup(query([0]), SOON)
    assert words(reply) == "P"
    tier.release(reply.lease)
    assert tier.commit(grant, None, SOON) == 1
    assert serve(tier, [0]) == [0]


def test_commit_twice_is_commit_once(tier: TieredCache) -> None:
    grant = tier.reserve(request([0, 1]), SOON)
    assert [tier.commit(grant, None, SOON) for _ in range(3)] == [2, 2, 2]
    assert tier.stats.get("stored_blocks", tier=Tier.HOST) == 2
    assert tier.stats.get("stored_bytes", tier=Tier.HOST) == 2 * LAYOUT.block_bytes
    assert tier.stats.get("commits_refused") == 0


def test_commit_after_abort_is_refused_and_counted(tier: TieredCache) -> None:
    grant = tier.reserve(request([0]), SOON)
    tier.abort(grant)
    tier.abort(grant)
    assert tier.commit(grant, None, SOON) == 0
    assert tier.stats.get("commits_refused") == 1
    assert in_host(tier, [0]) == []
    taken = tier.reserve(request([7]), SOON)  # the same slot, another owner
    assert taken.slots.tolist() == grant.slots.tolist()
    assert tier.commit(grant, None, SOON) == 0
    assert words(tier.lookup(query([7]), SOON)) == "P"
    assert tier.commit(taken, None, SOON) == 1


def test_abort_after_commit_changes_nothing(tier: TieredCache) -> None:
    grant = tier.reserve(request([0]), SOON)
    tier.commit(grant, None, SOON)
    tier.abort(grant)
    assert in_host(tier, [0]) == [0]


def test_a_commit_of_an_old_incarnation_is_refused_and_counted(tier: TieredCache) -> None:
    grant = tier.reserve(request([0]), SOON)
    old = replace(grant, incarnation=grant.incarnation + 2)
    assert tier.commit(old, None, SOON) == 0
    assert tier.stats.get("commits_refused") == 1
    assert tier.commit(grant, None, SOON) == 1
    assert tier.commit(old, None, SOON) == 0


def test_attention_is_folded_into_the_history(tier: TieredCache) -> None:
    grant = tier.reserve(request([0, 1, 2]), SOON)
    tier.commit(grant, np.array([2.0, np.nan, 0.5], np.float32), SOON)
    attention = tier._books.hotness.attention[grant.slots]
    assert attention.tolist()[0::2] == [2.0, 0.5]
    assert np.isnan(attention[1])


def test_a_block_larger_than_a_slot_is_a_typed_error(tier: TieredCache) -> None:
    large = replace(request([0]), layout=BlockLayout(3, 1, 8, 64))
    with pytest.raises(StorageError, match=rf"{large.layout.block_bytes} bytes.*{tier.slot_bytes}"):
        tier.reserve(large, SOON)


def test_a_closed_tier_takes_nothing_and_touches_nothing(tmp_path: Path) -> None:
    made = open_tier(tmp_path, slots=8, name="closed")
    store(made, [0])
    lease = made.lookup(query([0]), SOON).lease
    open_grant, other = made.reserve(request([1]), SOON), made.reserve(request([2]), SOON)
    made.close(flush=False, keep_arena=True)
    heir = open_tier(tmp_path, slots=8, name="closed")  # the same memory, and the same holder number
    assert in_host(heir, range(3)) == [0]
    reply = heir.lookup(query([0]), SOON)
    mine = heir.reserve(request([1, 2]), SOON)
    made.release(lease)
    assert made.commit(open_grant, None, SOON) == 0
    made.abort(other)
    assert made.reserve(request([3]), SOON).refused == [0]
    heir.check()
    assert not len(heir._books.evictable())  # what the heir has leased stays leased
    assert heir.commit(mine, None, SOON) == 2
    heir.release(reply.lease)
    heir.check()
    heir.close(flush=False)

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hifc_ray.tiering import TieredCache
from hifc_ray.types import NO_SLOT, BlockState, Fate, Lookup, Tier
from tests.fakes.blocks import OURS, SOON, THEIRS, fill, holds_bytes, key, query, request, store
from tests.fakes.flash import FaultyDevice
from tests.fakes.tier import Held, answers, faulty, in_host, on_flash, open_tier, push_out, serve, words

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def device() -> FaultyDevice:
    return faulty()


@pytest.fixture
def tier(tmp_path: Path, device: FaultyDevice) -> Iterator[TieredCache]:
    """16 slots, a window of 8, flash in memory."""
    made = open_tier(tmp_path, flash=device)
    yield made
    made.check()
    made.close(flush=False)


def state(tier: TieredCache, slot: int) -> BlockState:
    return BlockState(int(tier._books.table.state[slot]))


def test_the_longest_run_is_leased_and_the_first_miss_ends_it(tier: TieredCache) -> None:
    store(tier, [0, 1, 3])
    reply = tier.lookup(query(range(5)), SOON)
    assert words(reply) == "HHMMM"
    assert reply.num_usable == 2
    assert reply.tiers[:2].tolist() == [Tier.HOST] * 2
    assert (reply.slots[:2] >= 0).all()
    assert reply.slots[2:].tolist() == [NO_SLOT] * 3  # 3 is here, and useless without 2
    assert len(reply.lease) == 2
    assert reply.missed is not None
    assert (reply.missed.index, reply.missed.key, reply.missed.fate) == (2, key(2), Fate.UNKNOWN)
    for number in (0, 1):
        assert holds_bytes(tier, int(reply.slots[number]), number)
    assert [state(tier, int(slot)) for slot in reply.lease.slots] == [BlockState.LEASED] * 2
    tier.release(reply.lease)
    assert tier._books.counts()["leased"] == 0


def test_nothing_asked_nothing_answered(tier: TieredCache) -> None:
    reply = tier.lookup(query([]), SOON)
    assert (len(reply.answers), len(reply.lease), reply.missed, reply.num_usable) == (0, 0, None, 0)
    tier.release(reply.lease)


def test_the_window_bounds_what_is_leased_and_the_rest_is_for_later(tier: TieredCache) -> None:
    store(tier, range(12))
    reply = tier.lookup(query(range(12)), SOON)
    assert words(reply) == "H" * 8 + "R" * 4
    assert (len(reply.lease), reply.missed) == (tier.window, None)
    tier.release(reply.lease)
    rest = tier.lookup(query(range(12), in_gpu=[True] * 8, continued=True), SOON)
    assert words(rest) == "H" * 12
    assert rest.slots[:8].tolist() == [NO_SLOT] * 8
    assert len(rest.lease) == 4
    tier.release(rest.lease)


def test_blocks_that_the_caller_has_are_noted_and_not_lent(tier: TieredCache) -> None:
    store(tier, [0, 1])
    slots = tier._books.find(query([0, 1]).keys)
    before = tier._books.hotness.last[slots].copy()
    reply = tier.lookup(query([0, 1, 2, 3], in_gpu=[True, True, True]), SOON)
    assert words(reply) == "HHHM"
    assert (len(reply.lease), reply.slots.tolist()) == (0, [NO_SLOT] * 4)
    assert reply.missed is not None
    assert reply.missed.index == 3
    assert (tier._books.hotness.last[slots] > before).all()


def test_further_windows_of_a_request_are_no_further_accesses(tier: TieredCache) -> None:
    store(tier, [0, 1])
    tier.release(tier.lookup(query([0, 1]), SOON).lease)
    slots = tier._books.find(query([0, 1]).keys)
    before, counted = tier._books.hotness.last[slots].copy(), tier.stats.get("lookup_keys")
    tier.release(tier.lookup(query([0, 1], continued=True), SOON).lease)
    assert (tier._books.hotness.last[slots] == before).all()
    assert tier.stats.get("lookup_keys") == counted
    assert tier.report(1).accesses == 2


def test_a_block_on_flash_is_pending_and_comes(tier: TieredCache, device: FaultyDevice) -> None:
    store(tier, range(3))
    push_out(tier, [1, 2])
    held = Held()
    device.on_read = held
    reply = tier.lookup(query(range(4)), SOON)
    assert words(reply) == "HPPM"
    assert reply.tiers[:3].tolist() == [Tier.HOST, Tier.FLASH, Tier.FLASH]
    assert reply.num_usable == 3
    assert len(reply.lease) == 3
    assert tier.wait(reply, 0.0).tolist() == reply.answers.tolist()  # 0 only looks
    assert [state(tier, int(slot)) for slot in reply.slots[:3]] == [
        BlockState.LEASED,
        BlockState.RESERVED,
        BlockState.RESERVED,
    ]
    held.let_go()
    resolved = tier.wait(reply, SOON)
    assert resolved.tolist() == [Lookup.HIT] * 3 + [Lookup.MISS]
    assert tier.holds(reply.lease).all()
    for number in range(3):
        assert holds_bytes(tier, int(reply.slots[number]), number)
        assert state(tier, int(reply.slots[number])) == BlockState.LEASED
    tier.release(reply.lease)
    assert in_host(tier, range(3)) == [0, 1, 2]
    assert on_flash(tier, range(3)) == [1, 2]  # promotion keeps the copy


def test_two_who_ask_for_a_block_on_flash_share_one_read(tier: TieredCache, device: FaultyDevice) -> None:
    store(tier, [0])
    push_out(tier, [0])
    held = Held()
    device.on_read = held
    first, second = tier.lookup(query([0]), SOON), tier.lookup(query([0]), SOON)
    assert first.slots.tolist() == second.slots.tolist()
    assert second.tiers.tolist() == [Tier.FLASH]
    held.let_go()
    assert tier.wait(second, SOON).tolist() == [Lookup.HIT]
    tier.release(first.lease)
    assert state(tier, int(second.slots[0])) == BlockState.LEASED
    tier.release(second.lease)
    assert tier.stats.get("promoted_blocks") == 1


def test_no_free_slot_for_a_block_on_flash_is_retry_and_holds_nothing_behind_it(tier: TieredCache) -> None:
    store(tier, range(3))
    push_out(tier, [1])
    grant = tier.reserve(request(range(100, 100 + tier._books.num_free)), SOON)
    reply = tier.lookup(query(range(4)), SOON)
    assert words(reply) == "HRRM"
    assert len(reply.lease) == 1
    assert tier._shared.pressure.is_set()  # somebody makes room
    tier.release(reply.lease)
    tier.abort(grant)
    assert serve(tier, range(3)) == [0, 1, 2]


def test_no_place_in_the_read_queue_is_retry(tmp_path: Path) -> None:
    device = faulty()
    made = open_tier(tmp_path, flash=device, flash_options={"queue_blocks": 2, "read_threads": 1})
    store(made, range(4))
    push_out(made, range(4))
    held = Held()
    device.on_read = held
    running = made.lookup(query([0]), SOON)
    held.wait_entered()
    reply = made.lookup(query([1, 2, 3]), SOON)
    assert words(reply) == "PPR"
    held.let_go()
    assert made.wait(reply, SOON)[:2].tolist() == [Lookup.HIT] * 2
    for lease in (running.lease, reply.lease):
        made.release(lease)
    assert serve(made, range(4)) == [0, 1, 2, 3]
    made.check()
    made.close(flush=False)


def test_a_block_that_another_is_writing_is_pending_until_committed(tier: TieredCache) -> None:
    grant = tier.reserve(request([0, 1]), SOON)
    reply = tier.lookup(query([0, 1]), SOON)
    assert words(reply) == "PP"
    assert reply.tiers.tolist() == [Tier.HOST] * 2
    assert tier.wait(reply, 0.0).tolist() == [Lookup.PENDING] * 2
    fill(tier, grant, [0, 1])
    tier.commit(grant, None, SOON)
    assert tier.wait(reply, 0.0).tolist() == [Lookup.HIT] * 2
    assert not len(tier._books.evictable())  # leased from the first moment
    tier.release(reply.lease)
    assert len(tier._books.evictable()) == 2


def test_a_block_whose_writer_gives_up_is_a_miss_for_who_waits(tier: TieredCache) -> None:
    grant = tier.reserve(request([0]), SOON)
    reply = tier.lookup(query([0]), SOON)
    tier.abort(grant)
    assert tier.wait(reply, SOON).tolist() == [Lookup.MISS]
    again = tier.reserve(request([5]), SOON)  # another owner in the same slot
    assert again.slots.tolist() == reply.slots.tolist()
    fill(tier, again, [5])
    tier.commit(again, None, SOON)
    assert tier.wait(reply, 0.0).tolist() == [Lookup.MISS]
    assert not tier.holds(reply.lease).any()
    tier.release(reply.lease)
    assert in_host(tier, [5]) == [5]


def test_a_lease_counts_by_caller_not_by_slot(tier: TieredCache) -> None:
    store(tier, [0])
    first, second = tier.lookup(query([0]), SOON), tier.lookup(query([0]), SOON)
    tier.release(first.lease)
    assert not len(tier._books.evictable())
    tier.release(second.lease)
    assert len(tier._books.evictable()) == 1
    with pytest.raises(ValueError, match="1 slots was given back twice"):
        tier.release(second.lease)


def test_a_key_of_another_namespace_is_served_from_no_tier(tier: TieredCache) -> None:
    ours = query([0, 1])
    wrong = query([0, 1]).__class__(THEIRS, ours.keys, ours.in_gpu, ours.layout)
    store(tier, [0, 1])
    push_out(tier, [0, 1])
    assert serve(tier, [0, 1]) == [0, 1]  # now in host memory and on flash
    reply = tier.lookup(wrong, SOON)
    assert answers(reply) == [Lookup.MISS] * 2
    assert len(reply.lease) == 0
    assert reply.missed is not None
    assert reply.missed.fate == Fate.OTHER_NAMESPACE
    assert tier.stats.get("namespace_mismatches") == 2
    tier.check()
    assert serve(tier, [0, 1]) == [0, 1]


def test_lookups_after_close_miss(tmp_path: Path) -> None:
    made = open_tier(tmp_path)
    store(made, [0])
    made.close(flush=False)
    reply = made.lookup(query([0, 1], in_gpu=[True]), SOON)
    assert words(reply) == "HM"
    assert reply.missed is not None
    assert reply.missed.fate == Fate.UNREACHABLE


def test_many_random_chains_agree_with_a_dictionary(tier: TieredCache) -> None:
    random = np.random.default_rng(3)
    for _ in range(150):
        start, length = int(random.integers(0, 30)), int(random.integers(1, 9))
        chain = list(range(start, start + length))
        if random.random() < 0.5:
            store(tier, chain)
            tier.tick()
            assert tier.idle(SOON)
        here = {*in_host(tier, chain), *on_flash(tier, chain)}
        run = next((i for i, number in enumerate(chain) if number not in here), length)
        reply = tier.lookup(query(chain, OURS), SOON)
        assert (reply.missed.index if reply.missed is not None else length) == run
        assert reply.num_usable <= run
        resolved = tier.wait(reply, SOON)
        for row in range(reply.num_usable):
            assert resolved[row] == Lookup.HIT
            assert holds_bytes(tier, int(reply.slots[row]), chain[row])
        tier.release(reply.lease)
        tier.check()
    assert tier.stats.get("promoted_blocks") > 20

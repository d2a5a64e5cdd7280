"""The contract of a `TierClient`, for every implementation: inherit from `TierClientContract` and give it a `rig`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from unittest.mock import ANY

import numpy as np
import pytest

from hifc_ray.client import TierClient
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.messages import Purge, PurgeReport
from hifc_ray.types import NO_SLOT, Fate, Lookup, Owner, Reserve, Tier
from tests.fakes.blocks import OURS, SLOT_BYTES, SOON, THEIRS, fill, holds_bytes, key, query, request, store
from tests.fakes.tier import WAIT_S, serve, words

ALICE, BOB = Owner(tenant=1, session=10), Owner(tenant=2, session=20)
NUM_SLOTS = 16
WINDOW = 8


@dataclass
class Rig:
    """One client of a fresh, empty tier of `NUM_SLOTS` slots with a window of `WINDOW`.

    `push_out` makes published blocks leave host memory for flash, and waits until they have. Where several engines
    can share a tier, `second` gives another client of it, and `kill_second` ends its process without a word and
    returns when the tier has noticed.
    """

    client: TierClient
    push_out: Callable[[Iterable[int]], None]
    check: Callable[[], None]
    purge: Callable[[Purge], PurgeReport]
    second: Callable[[], TierClient] | None = None
    kill_second: Callable[[], None] | None = None


class TierClientContract:
    """Every test that any tier client passes."""

    @pytest.fixture
    def client(self, rig: Rig) -> TierClient:
        return rig.client

    @pytest.fixture
    def second(self, rig: Rig) -> TierClient:
        if rig.second is None:
            pytest.skip("one process, one client")
        return rig.second()

    def test_it_answers_to_the_protocol(self, client: TierClient) -> None:
        assert isinstance(client, TierClient)
        assert (client.num_slots, client.window) == (NUM_SLOTS, WINDOW)
        assert client.slot_bytes % PAGE_BYTES == 0
        assert client.slot_bytes >= SLOT_BYTES

    def test_slots_are_writable_aligned_and_apart(self, client: TierClient) -> None:
        grant = client.reserve(request(range(4)), SOON)
        views = [client.slot(int(slot)) for slot in grant.slots]
        assert all(len(view) == client.slot_bytes and not view.readonly for view in views)
        starts = [np.frombuffer(view, np.uint8).ctypes.data for view in views]
        assert all(start % PAGE_BYTES == 0 for start in starts)
        assert len(set(starts)) == 4
        client.abort(grant)

    def test_an_empty_tier_misses_everything(self, client: TierClient) -> None:
        reply = client.lookup(query(range(3)), SOON)
        assert words(reply) == "MMM"
        assert (len(reply.lease), reply.num_usable) == (0, 0)
        assert reply.missed is not None
        assert (reply.missed.index, reply.missed.key, reply.missed.fate) == (0, key(0), Fate.UNKNOWN)

    def test_an_empty_chain_is_answered(self, client: TierClient) -> None:
        reply = client.lookup(query([]), SOON)
        assert (len(reply.answers), len(reply.lease), reply.missed) == (0, 0, None)
        client.release(reply.lease)

    def test_what_was_stored_is_served_byte_for_byte(self, client: TierClient) -> None:
        assert store(client, range(5)) == list(range(5))
        assert serve(client, range(5)) == list(range(5))
        assert serve(client, range(5)) == list(range(5))

    def test_the_first_miss_ends_the_run(self, client: TierClient) -> None:
        store(client, [0, 1, 3])
        reply = client.lookup(query(range(4)), SOON)
        assert words(reply)[:3] == "HHM"
        assert reply.num_usable == 2
        assert reply.slots[2:].tolist() == [NO_SLOT] * 2
        assert sorted(reply.lease.slots.tolist()) == sorted(reply.slots[:2].tolist())
        assert reply.missed is not None
        assert reply.missed.index == 2
        client.release(reply.lease)

    def test_what_the_caller_has_is_not_lent(self, client: TierClient) -> None:
        store(client, range(3))
        reply = client.lookup(query(range(4), in_gpu=[True, True]), SOON)
        assert words(reply) == "HHHM"
        assert reply.slots[:2].tolist() == [NO_SLOT] * 2
        assert reply.lease.slots.tolist() == [reply.slots[2]]
        client.release(reply.lease)

    def test_a_window_at_a_time(self, client: TierClient) -> None:
        store(client, range(12))
        reply = client.lookup(query(range(12)), SOON)
        assert words(reply) == "H" * WINDOW + "R" * (12 - WINDOW)
        assert (len(reply.lease), reply.missed) == (WINDOW, None)
        client.release(reply.lease)
        rest = client.lookup(query(range(12), in_gpu=[True] * WINDOW, continued=True), SOON)
        assert words(rest) == "H" * 12
        assert len(rest.lease) == 12 - WINDOW
        client.release(rest.lease)

    def test_nothing_is_visible_before_commit(self, client: TierClient) -> None:
        grant = client.reserve(request([0]), SOON)
        fill(client, grant, [0])
        reply = client.lookup(query([0]), SOON)
        assert client.wait(reply, 0.0).tolist() != [Lookup.HIT]
        client.release(reply.lease)
        assert client.commit(grant, None, SOON) == 1
        assert serve(client, [0]) == [0]

    def test_who_waits_gets_the_block_leased_when_it_is_committed(self, client: TierClient) -> None:
        grant = client.reserve(request([0]), SOON)
        reply = client.lookup(query([0]), SOON)
        assert words(reply) == "P"
        fill(client, grant, [0])
        client.commit(grant, None, SOON)
        assert client.wait(reply, WAIT_S).tolist() == [Lookup.HIT]
        assert client.holds(reply.lease).all()
        assert holds_bytes(client, int(reply.slots[0]), 0)
        client.release(reply.lease)

    def test_who_waits_for_what_is_given_back_misses(self, client: TierClient) -> None:
        grant = client.reserve(request([0]), SOON)
        reply = client.lookup(query([0]), SOON)
        client.abort(grant)
        client.flush()
        store(client, range(1, 5))  # over Ray an abort rides on the next store; some block takes the slot
        assert client.wait(reply, WAIT_S).tolist() == [Lookup.MISS]
        client.release(reply.lease)
        assert serve(client, range(1, 5)) == [1, 2, 3, 4]

    def test_waiting_ends_at_the_deadline(self, client: TierClient) -> None:
        grant = client.reserve(request([0]), SOON)
        reply = client.lookup(query([0]), SOON)
        assert client.wait(reply, 0.01).tolist() == [Lookup.PENDING]
        client.release(reply.lease)
        client.abort(grant)

    def test_a_waiter_in_one_thread_and_a_writer_in_another(self, client: TierClient) -> None:
        grant = client.reserve(request([0]), SOON)
        reply = client.lookup(query([0]), SOON)

        def write() -> None:
            fill(client, grant, [0])
            client.commit(grant, None, SOON)

        writer = threading.Thread(target=write)
        writer.start()
        resolved = client.wait(reply, WAIT_S)
        writer.join()
        if client.wait(reply, 0.0).tolist() == [Lookup.HIT]:
            assert holds_bytes(client, int(reply.slots[0]), 0)
        assert resolved.tolist() == [Lookup.HIT]
        client.release(reply.lease)

    def test_reserve_answers_each_key(self, client: TierClient) -> None:
        store(client, [0])
        open_grant = client.reserve(request([1]), SOON)
        grant = client.reserve(request([0, 1, 2, 2]), SOON)
        assert grant.answers.tolist() == [Reserve.PRESENT, Reserve.PRESENT, Reserve.GRANTED, Reserve.PRESENT]
        assert (grant.slots[[0, 1, 3]] == NO_SLOT).all()
        client.abort(grant)
        client.abort(open_grant)

    def test_what_does_not_fit_is_refused_and_the_rest_is_granted(self, client: TierClient) -> None:
        chain = list(range(NUM_SLOTS + 3))
        grant = client.reserve(request(chain), SOON)
        assert len(grant.granted) == NUM_SLOTS
        assert grant.refused == chain[NUM_SLOTS:]
        fill(client, grant, chain)
        assert client.commit(grant, None, SOON) == NUM_SLOTS
        reply = client.lookup(query(chain[NUM_SLOTS:]), SOON)
        assert reply.missed is not None
        assert reply.missed.fate == Fate.STORE_REFUSED

    def test_commit_twice_is_commit_once(self, client: TierClient, rig: Rig) -> None:
        grant = client.reserve(request([0, 1]), SOON)
        fill(client, grant, [0, 1])
        assert client.commit(grant, None, SOON) == 2
        assert client.commit(grant, None, SOON) in (0, 2)  # a client may know that it has been said
        assert serve(client, [0, 1]) == [0, 1]
        rig.check()

    def test_commit_after_abort_publishes_nothing(self, client: TierClient) -> None:
        grant = client.reserve(request([0]), SOON)
        client.abort(grant)
        assert client.commit(grant, None, SOON) == 0
        assert serve(client, [0]) == []
        taken = client.reserve(request([7]), SOON)
        assert client.commit(grant, None, SOON) == 0
        reply = client.lookup(query([7]), SOON)
        assert client.wait(reply, 0.0).tolist() != [Lookup.HIT]
        client.release(reply.lease)
        client.abort(taken)

    def test_abort_after_commit_and_abort_twice_change_nothing(self, client: TierClient) -> None:
        store(client, [0])
        grant = client.reserve(request([1]), SOON)
        fill(client, grant, [1])
        client.commit(grant, None, SOON)
        client.abort(grant)
        client.abort(grant)
        assert serve(client, [0, 1]) == [0, 1]

    def test_a_commit_that_was_lost_publishes_nothing(self, client: TierClient) -> None:
        grant = client.reserve(request([0]), SOON)
        fill(client, grant, [0])
        client.abort(grant)  # all that a client can do that has no answer to its commit
        again = client.reserve(request([0]), SOON)
        assert again.granted == [0]
        fill(client, again, [0])
        assert client.commit(again, None, SOON) == 1
        assert serve(client, [0]) == [0]

    def test_a_commit_of_an_old_incarnation_publishes_nothing(self, client: TierClient) -> None:
        grant = client.reserve(request([0]), SOON)
        old = replace(grant, incarnation=grant.incarnation + 2)
        assert client.commit(old, None, SOON) == 0
        reply = client.lookup(query([0]), SOON)
        assert client.wait(reply, 0.0).tolist() != [Lookup.HIT]
        client.release(reply.lease)
        client.abort(grant)

    def test_a_grant_without_slots_is_nothing_to_commit(self, client: TierClient) -> None:
        store(client, [0])
        grant = client.reserve(request([0]), SOON)
        assert client.commit(grant, None, SOON) == 0
        client.abort(grant)
        empty = client.reserve(request([]), SOON)
        assert (len(empty.answers), client.commit(empty, None, SOON)) == (0, 0)

    def test_release_twice_is_refused(self, client: TierClient) -> None:
        store(client, [0])
        lease = client.lookup(query([0]), SOON).lease
        client.release(lease)
        with pytest.raises((ValueError, KeyError)):
            client.release(lease)

    def test_two_leases_of_one_block_are_two(self, client: TierClient, rig: Rig) -> None:
        store(client, [0])
        first, second = client.lookup(query([0]), SOON), client.lookup(query([0]), SOON)
        client.release(first.lease)
        client.flush()
        store(client, range(10, 10 + NUM_SLOTS))  # everything else that there is room for
        assert client.holds(second.lease).all()
        assert holds_bytes(client, int(second.slots[0]), 0)
        client.release(second.lease)
        client.flush()
        rig.check()

    def test_a_leased_block_outlives_any_pressure(self, client: TierClient) -> None:
        store(client, range(4))
        reply = client.lookup(query(range(4)), SOON)
        for start in range(100, 200, 10):
            store(client, range(start, start + 10))
        assert client.holds(reply.lease).all()
        for number in range(4):
            assert holds_bytes(client, int(reply.slots[number]), number)
        client.release(reply.lease)

    def test_what_left_for_flash_comes_back(self, client: TierClient, rig: Rig) -> None:
        store(client, range(5))
        rig.push_out([2, 3])
        reply = client.lookup(query(range(5)), SOON)
        assert reply.num_usable == 5
        assert reply.tiers[:2].tolist() == [Tier.HOST] * 2
        assert reply.tiers[2:4].tolist() == [Tier.FLASH] * 2
        assert client.wait(reply, WAIT_S).tolist() == [Lookup.HIT] * 5
        for number in range(5):
            assert holds_bytes(client, int(reply.slots[number]), number)
        client.release(reply.lease)
        client.flush()
        rig.check()

    def test_pending_blocks_are_released_like_others(self, client: TierClient, rig: Rig) -> None:
        store(client, range(3))
        rig.push_out(range(3))
        reply = client.lookup(query(range(3)), SOON)
        client.release(reply.lease)
        client.flush()
        assert serve(client, range(3)) == [0, 1, 2]

    def test_namespaces_are_apart(self, client: TierClient) -> None:
        store(client, range(3))
        store(client, range(2), THEIRS)
        assert serve(client, range(3), THEIRS) == [0, 1]
        assert serve(client, range(3)) == [0, 1, 2]
        ours = query(range(3))
        stolen = replace(ours, namespace=THEIRS)  # our keys, asked for in their name
        reply = client.lookup(stolen, SOON)
        assert words(reply) == "MMM"
        assert len(reply.lease) == 0

    def test_what_is_purged_is_found_nowhere_and_all_else_is(self, client: TierClient, rig: Rig) -> None:
        store(client, range(4), owner=ALICE)
        store(client, range(4, 8), owner=BOB)
        rig.push_out([2, 3, 6])
        assert rig.purge(Purge(session=ALICE.session)) == PurgeReport(2, 2, ANY)
        assert [words(client.lookup(query([number]), SOON)) for number in range(4)] == ["M"] * 4
        assert serve(client, range(4, 8)) == [4, 5, 6, 7]
        assert rig.purge(Purge(session=ALICE.session)) == PurgeReport(0, 0, 0)
        assert store(client, range(4), owner=ALICE) == [0, 1, 2, 3]  # a new store
        assert serve(client, range(8)) == list(range(8))
        client.flush()
        rig.check()

    @pytest.mark.parametrize("what", [Purge(tenant=1), Purge(session=10), Purge(namespace=OURS)])
    def test_tenants_conversations_and_namespaces_are_purged(self, client: TierClient, rig: Rig, what: Purge) -> None:
        store(client, range(2), owner=ALICE)
        store(client, range(2), THEIRS, BOB)
        rig.push_out([1])
        assert rig.purge(what) == PurgeReport(1, 1, ANY)
        assert words(client.lookup(query(range(2)), SOON)) == "MM"
        assert serve(client, range(2), THEIRS) == [0, 1]

    def test_what_came_back_from_flash_is_its_owners_still(self, client: TierClient, rig: Rig) -> None:
        store(client, range(2), owner=ALICE)
        rig.push_out(range(2))
        assert serve(client, range(2)) == [0, 1]
        client.flush()
        assert rig.purge(Purge(tenant=ALICE.tenant)).host_blocks == 2
        assert words(client.lookup(query(range(2)), SOON)) == "MM"
        rig.check()

    def test_a_block_that_is_held_when_it_is_purged_is_not_to_be_used(self, client: TierClient, rig: Rig) -> None:
        store(client, range(3), owner=ALICE)
        reply = client.lookup(query(range(3)), SOON)
        rig.purge(Purge(tenant=ALICE.tenant))
        assert not client.holds(reply.lease).any()
        for number in range(3):  # the slots are not given away as long as they are held
            assert holds_bytes(client, int(reply.slots[number]), number)
        grant = client.reserve(request(range(20, 20 + NUM_SLOTS)), SOON)
        assert not {*grant.slots.tolist()} & {*reply.slots.tolist()}
        client.abort(grant)
        client.release(reply.lease)
        client.flush()
        rig.check()
        again = client.reserve(request(range(20, 20 + NUM_SLOTS)), SOON)
        assert again.refused == []
        client.abort(again)

    def test_a_store_that_is_under_way_when_it_is_purged_publishes_nothing(self, client: TierClient, rig: Rig) -> None:
        grant = client.reserve(request(range(2), owner=ALICE), SOON)
        waiting = client.lookup(query(range(2)), SOON)
        assert words(waiting) == "PP"
        rig.purge(Purge(tenant=ALICE.tenant))
        assert client.wait(waiting, WAIT_S).tolist() == [Lookup.MISS] * 2
        client.release(waiting.lease)
        again = client.reserve(request([0], owner=ALICE), SOON)
        assert again.granted == [0]
        assert again.slots[0] not in grant.slots  # which its writer may be writing into
        fill(client, grant, [0, 1])
        assert client.commit(grant, None, SOON) == 0
        assert serve(client, [0]) == []
        fill(client, again, [0])
        assert client.commit(again, None, SOON) == 1
        assert serve(client, range(2)) == [0]
        client.flush()
        rig.check()

    def test_an_abort_of_what_was_purged_gives_its_slots_back(self, client: TierClient, rig: Rig) -> None:
        grant = client.reserve(request(range(NUM_SLOTS), owner=ALICE), SOON)
        rig.purge(Purge(tenant=ALICE.tenant))
        client.abort(grant)
        client.flush()
        again = client.reserve(request(range(NUM_SLOTS)), SOON)
        assert again.refused == []
        client.abort(again)
        client.flush()
        rig.check()

    def test_attention_is_taken_with_nan_for_unknown(self, client: TierClient) -> None:
        grant = client.reserve(request([0, 1]), SOON)
        fill(client, grant, [0, 1])
        assert client.commit(grant, np.array([0.5, np.nan], np.float32), SOON) == 2
        assert serve(client, [0, 1]) == [0, 1]

    def test_random_use_serves_only_what_was_stored(self, client: TierClient, rig: Rig) -> None:
        random = np.random.default_rng(11)
        for _ in range(60):
            start = int(random.integers(0, 30))
            chain = range(start, start + int(random.integers(1, 7)))
            if random.random() < 0.5:
                store(client, chain)
            else:
                serve(client, chain)  # checks every byte of what it gets
        client.flush()
        rig.check()

    def test_flush_and_close_may_be_said_at_any_time(self, client: TierClient) -> None:
        client.flush()
        store(client, [0])
        lease = client.lookup(query([0]), SOON).lease
        client.flush()
        assert client.holds(lease).all()
        client.release(lease)
        client.flush()

    def test_what_one_engine_stores_another_is_served(self, client: TierClient, second: TierClient) -> None:
        store(client, range(4))
        assert serve(second, range(4)) == [0, 1, 2, 3]
        reply = second.lookup(query([0]), SOON)
        grant = client.reserve(request([9]), SOON)
        client.abort(grant)
        assert second.holds(reply.lease).all()
        second.release(reply.lease)

    def test_what_a_killed_engine_held_comes_back(self, client: TierClient, second: TierClient, rig: Rig) -> None:
        if rig.kill_second is None:
            pytest.skip("its process cannot be killed")
        store(client, range(3))
        second.lookup(query(range(3)), SOON)
        second.reserve(request([50]), SOON)
        waiting = client.lookup(query([50]), SOON)
        assert words(waiting) == "P"
        rig.kill_second()
        assert client.wait(waiting, WAIT_S).tolist() == [Lookup.MISS]
        client.release(waiting.lease)
        assert serve(client, range(3)) == [0, 1, 2]
        grant = client.reserve(request(range(60, 60 + NUM_SLOTS - 3)), SOON)
        assert grant.refused == []
        client.abort(grant)
        client.flush()
        rig.check()

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hifc_ray.client import Grant, LookupReply
from hifc_ray.clock import ManualClock
from hifc_ray.errors import StorageError
from hifc_ray.messages import PROTOCOL_VERSION, GrantName, Held
from hifc_ray.tiering import TieredCache
from hifc_ray.tiering.cache import SWEEP_S
from hifc_ray.types import BlockState, Reserve
from tests.fakes.blocks import OURS, THEIRS, fill, query, request, store
from tests.fakes.remote import Remote
from tests.fakes.tier import in_host, open_tier, serve, words

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tier(tmp_path: Path, clock: ManualClock) -> Iterator[TieredCache]:
    """16 slots, blocks 0 to 3 in host memory."""
    made = open_tier(tmp_path, clock=clock)
    store(made, range(4))
    yield made
    made.check()
    made.close(flush=False)


@pytest.fixture
def engine(tier: TieredCache) -> Iterator[Remote]:
    made = Remote(tier)
    yield made
    made.lock.release(unlink=True)


def given(answer: LookupReply | None) -> LookupReply:
    assert answer is not None
    return answer


def granted(answer: Grant | None) -> Grant:
    assert answer is not None
    return answer


def leased(tier: TieredCache, engine: Remote) -> list[int]:
    return tier._books.held_by(engine.number).tolist()


def test_attach_tells_what_an_engine_needs_and_is_safe_to_repeat(tier: TieredCache, engine: Remote) -> None:
    info = engine.info
    assert (info.protocol, info.incarnation) == (PROTOCOL_VERSION, tier._arena.incarnation)
    assert (info.arena_path, info.holder_path) == (str(tier._arena.path), str(engine.lock.path))
    assert (info.window, info.node) == (tier.window, "local")
    given(engine.lookup(query(range(2))))
    assert tier.attach(info.holder_path) == info
    assert len(leased(tier, engine)) == 2


def test_a_process_without_its_lock_is_not_attached(tier: TieredCache, tmp_path: Path) -> None:
    unlocked = tmp_path / "hifc-test.holder-1-x"
    unlocked.touch()
    with pytest.raises(StorageError, match="not locked"):
        tier.attach(str(unlocked))


def test_a_file_that_no_later_tier_would_look_for_is_refused_and_untouched(
    tier: TieredCache, engine: Remote, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "precious"
    elsewhere.write_text("text")
    with pytest.raises(StorageError, match="beside arena"):
        tier.attach(str(elsewhere))
    assert elsewhere.read_text() == "text"


def test_as_many_holders_as_there_are_bits(tier: TieredCache) -> None:
    engines = [Remote(tier) for _ in range(63)]  # the tier itself is one
    assert sorted(engine.number for engine in engines) == list(range(1, 64))
    with pytest.raises(StorageError, match="64 processes"):
        Remote(tier)
    reply = given(engines[62].lookup(query([0])))
    assert leased(tier, engines[62]) == reply.slots.tolist()
    tier.detach(engines[10].info.holder)
    Remote(tier).lock.release(unlink=True)
    for engine in engines:
        engine.lock.release(unlink=True)
    for path in tier._arena.path.parent.glob("*.holder-*"):
        if path != tier._lock_file.path:
            path.unlink()


def test_leases_that_are_not_named_are_released(tier: TieredCache, engine: Remote) -> None:
    first, second = given(engine.lookup(query(range(2)))), given(engine.lookup(query([2])))
    assert len(leased(tier, engine)) == 3
    engine.ledger.remove(first.lease)
    assert engine.lookup(None) is None
    assert leased(tier, engine) == second.slots.tolist()
    assert tier.stats.get("calls_refused") == 0


def test_a_reply_that_was_lost_holds_nothing_after_the_next_call(tier: TieredCache, engine: Remote) -> None:
    given(engine.lookup(query(range(3)), lost=True))
    assert len(leased(tier, engine)) == 3
    kept = given(engine.lookup(query([3])))
    assert leased(tier, engine) == kept.slots.tolist()


def test_a_lease_is_named_by_its_generation_too(tier: TieredCache, engine: Remote) -> None:
    reply = given(engine.lookup(query([0]), lost=True))
    engine.lookups += 1
    held = Held(reply.lease.slots, reply.lease.generations - np.uint64(1))
    tier.serve_lookup(engine._header(engine.lookups), held, None)
    assert leased(tier, engine) == []


def test_a_waiting_pin_that_is_not_named_is_released(tier: TieredCache, engine: Remote) -> None:
    grant = tier.reserve(request([9]), 1.0)
    reply = given(engine.lookup(query([9]), lost=True))
    assert words(reply) == "P"
    engine.lookup(None)
    tier.commit(grant, None, 1.0)
    slot = int(grant.slots[0])
    assert tier._books.table.state[slot] == BlockState.RESIDENT


@pytest.mark.parametrize("sequence", [1, 2])
def test_calls_that_were_overtaken_are_refused_and_change_nothing(
    tier: TieredCache, engine: Remote, sequence: int
) -> None:
    given(engine.lookup(query(range(2))))
    reply = given(engine.lookup(query([2])))
    engine.ledger = type(engine.ledger)(tier.num_slots)  # an old call names what was held then: nothing
    assert engine.lookup(query([3]), sequence=sequence) is None
    assert len(leased(tier, engine)) == 3
    grant = granted(engine.reserve(request([20])))
    other = granted(engine.reserve(request([21])))
    engine.open.clear()
    assert engine.reserve(request([22]), sequence=sequence) is None
    assert engine.commit(grant, sequence=sequence) is None
    assert in_host(tier, [20, 21, 22]) == [20, 21]
    assert tier.stats.get("calls_refused", reason="lookup") == 1
    assert tier.stats.get("calls_refused", reason="store") == 2
    assert tier.holds(reply.lease).all()
    engine.open[:] = [grant, other]
    assert (engine.commit(grant), engine.commit(other)) == (1, 1)


def test_lookups_and_stores_are_numbered_apart(tier: TieredCache, engine: Remote) -> None:
    for _ in range(5):
        given(engine.lookup(query([0])))
    grant = granted(engine.reserve(request([20])))
    assert engine.commit(grant) == 1


@pytest.mark.parametrize("which", ["name", "bare number", "incarnation", "detached"])
def test_unknown_callers_are_refused_and_counted(tier: TieredCache, engine: Remote, which: str) -> None:
    grant = granted(engine.reserve(request([20])))
    if which == "name":
        engine.info = engine.info.__class__(**{**vars(engine.info), "holder": engine.info.holder + 1})
    if which == "bare number":
        engine.info = engine.info.__class__(**{**vars(engine.info), "holder": engine.number})
    if which == "incarnation":
        engine.incarnation -= 2
    if which == "detached":
        tier.detach(engine.info.holder)
    assert engine.lookup(query([0])) is None
    assert engine.reserve(request([21])) is None
    assert engine.commit(grant) is None
    assert tier.stats.get("calls_refused") == 3
    assert in_host(tier, [20, 21]) == ([] if which == "detached" else [20])


def test_store_through_calls(tier: TieredCache, engine: Remote) -> None:
    grant = granted(engine.reserve(request([10, 11])))
    fill(tier, grant, [10, 11])
    attention = np.array([1.0, 2.0], np.float32)
    assert engine.commit(grant, attention) == 2
    assert engine.commit(grant) == 2  # sent again
    engine.open.clear()
    assert serve(tier, [10, 11]) == [10, 11]
    assert tier._books.hotness.attention[grant.slots].tolist() == [1.0, 2.0]


def test_a_grant_that_was_lost_is_taken_back_with_the_next_call(tier: TieredCache, engine: Remote) -> None:
    lost = granted(engine.reserve(request([10, 11]), lost=True))
    again = granted(engine.reserve(request([10, 11])))
    assert again.answers.tolist() == [Reserve.GRANTED] * 2
    assert tier.stats.get("grants_taken_back", reason="unnamed") == 2
    assert engine.commit(lost) == 0
    assert tier.stats.get("commits_refused") == 1
    assert engine.commit(again) == 2


def test_a_grant_that_the_commit_does_not_name_is_not_published(tier: TieredCache, engine: Remote) -> None:
    grant = granted(engine.reserve(request([10])))
    assert engine.commit(grant, named=False) == 0
    assert in_host(tier, [10]) == []
    assert tier.stats.get("commits_refused") == 1


def test_a_commit_that_was_lost_frees_its_slots_with_the_next_call(tier: TieredCache, engine: Remote) -> None:
    grant = granted(engine.reserve(request([10])))
    engine.open.remove(grant)  # its commit was sent and never arrived
    granted(engine.reserve(request([11])))
    assert in_host(tier, [10, 11]) == [11]
    assert engine.commit(grant) == 0  # and arrives after all


def test_a_grant_is_named_by_its_generation_too(tier: TieredCache, engine: Remote) -> None:
    old = granted(engine.reserve(request([10])))
    engine.open.clear()
    new = granted(engine.reserve(request([11]), lost=True))  # takes 10 back, and gives its slot for 11
    assert new.slots.tolist() == old.slots.tolist()
    engine.open.append(old)  # a confused engine still names what it had
    granted(engine.reserve(request([12])))
    assert in_host(tier, [10, 11, 12]) == [12]


def test_grants_of_others_are_nobody_s_business(tier: TieredCache, engine: Remote) -> None:
    other = Remote(tier)
    granted(other.reserve(request([])))
    grant = granted(other.reserve(request([10])))  # its second; the engine has no second one
    granted(engine.reserve(request([11])))
    assert engine.commit(grant) == 0
    assert in_host(tier, [10, 11]) == [10, 11]
    assert other.commit(grant) == 1
    other.lock.release(unlink=True)


def test_detach_gives_everything_back(tier: TieredCache, engine: Remote) -> None:
    given(engine.lookup(query(range(4))))
    granted(engine.reserve(request([10, 11])))
    waited = tier.reserve(request([12]), 1.0)
    given(engine.lookup(query([12])))
    tier.detach(engine.info.holder)
    assert tier._books.counts()["leased"] == 0
    assert in_host(tier, [10, 11, 12]) == [12]
    tier.commit(waited, None, 1.0)
    assert len(tier._books.evictable()) == 5
    assert not engine.lock.path.exists()
    tier.detach(engine.info.holder)


def test_a_silent_holder_that_lives_loses_nothing(tier: TieredCache, engine: Remote, clock: ManualClock) -> None:
    given(engine.lookup(query(range(4))))
    grant = granted(engine.reserve(request([10])))
    for _ in range(5):
        clock.advance(1e6)
        tier.tick()
        store(tier, range(100, 130))
    assert len(leased(tier, engine)) == 4
    assert engine.commit(grant) == 1


def test_what_the_dead_held_comes_back_within_a_sweep(tier: TieredCache, engine: Remote, clock: ManualClock) -> None:
    tier.tick()
    given(engine.lookup(query(range(4))))
    granted(engine.reserve(request([10, 11])))
    engine.die()
    tier.tick()
    assert tier._books.counts()["leased"] == 4  # not asked yet
    clock.advance(SWEEP_S)
    tier.tick()
    assert tier._books.counts() == {**tier._books.counts(), "leased": 0, "reserved": 0, "resident": 4}
    assert tier.stats.get("holders_lost") == 1
    assert engine.lookup(query([0])) is None


def test_a_number_used_again_inherits_nothing(tier: TieredCache, engine: Remote, clock: ManualClock) -> None:
    given(engine.lookup(query(range(2))))
    number, old = engine.number, engine.info.holder
    lost = granted(engine.reserve(request([10])))
    done = granted(engine.reserve(request([11])))
    assert engine.commit(done) == 1
    engine.die()
    clock.advance(SWEEP_S)
    tier.tick()
    heir = Remote(tier)
    assert heir.number == number
    assert leased(tier, heir) == []
    reply = given(heir.lookup(query(range(3))))
    grant = granted(heir.reserve(request([20])))
    # What the dead one had sent arrives only now.
    assert engine.lookup(None) is None
    assert engine.reserve(request([30])) is None
    assert engine.commit(lost) is None
    tier.detach(old)
    assert leased(tier, heir) == sorted(reply.slots.tolist())
    assert heir.commit(done) == 0  # another's sequence number
    assert heir.commit(grant) == 1
    heir.lock.release(unlink=True)


def test_after_a_restart_of_the_tier_its_holders_keep_what_they_have(tmp_path: Path) -> None:
    first = open_tier(tmp_path, name="again")
    store(first, range(4))
    engine = Remote(first)
    other = Remote(first)
    reply = given(engine.lookup(query(range(2))))
    given(other.lookup(query([2])))
    grant = granted(engine.reserve(request([10])))
    other.die()
    first.close(flush=False, keep_arena=True)
    second = open_tier(tmp_path, name="again")
    table = second._books.table
    assert (table.state[reply.slots] == BlockState.LEASED).all()
    assert table.state[grant.slots[0]] == BlockState.RESERVED
    assert second._books.counts()["leased"] == 2  # what the dead one had is free to go
    assert second.serve_lookup(engine._header(99), engine.ledger.held(), query([0])) is None
    assert second.serve_commit(engine._header(99), engine.grants(), _name(grant), None) is None
    engine.tier, engine.info = second, second.attach(str(engine.lock.path))
    engine.incarnation = engine.info.incarnation
    assert sorted(leased(second, engine)) == sorted(reply.slots.tolist())
    assert engine.commit(grant) == 0  # of an old incarnation
    engine.open.clear()
    granted(engine.reserve(request([11])))
    assert in_host(second, [10, 11]) == [11]
    given(engine.lookup(query([3])))
    assert len(leased(second, engine)) == 3
    second.detach(engine.info.holder)
    second.check()
    second.close(flush=False)


def test_a_namespace_of_any_holder_is_in_use(tier: TieredCache, engine: Remote) -> None:
    store(tier, [0], OURS)
    granted(engine.reserve(request([5], THEIRS)))
    named = tier._books.find([*query(range(4)).keys, *query([5], THEIRS).keys])
    assert not tier._books.hotness.foreign[named].any()
    assert tier._serving._holders.namespaces() == {OURS, THEIRS}


def test_a_closed_tier_refuses_other_processes(tmp_path: Path) -> None:
    made = open_tier(tmp_path, name="closed")
    engine = Remote(made)
    grant = granted(engine.reserve(request([0])))
    made.close(flush=False)
    assert engine.lookup(query([0])) is None
    assert engine.reserve(request([1])) is None
    assert engine.commit(grant) is None
    with pytest.raises(StorageError, match="closed"):
        made.attach(str(engine.lock.path))
    made.detach(engine.info.holder)
    engine.lock.release(unlink=True)


def _name(grant: Grant) -> GrantName:
    return GrantName(grant.incarnation, grant.sequence)

"""`RayTierClient` against a tier in this process: the contract, and every way in which a call can be lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hifc_ray.actors.calls import CallTimedOut
from hifc_ray.actors.client import MAX_TIMEOUTS, RayTierClient
from hifc_ray.errors import ConfigError, StorageError, TierUnavailable
from hifc_ray.flash import MemoryDevice
from hifc_ray.messages import PROTOCOL_VERSION
from hifc_ray.tiering import TieredCache
from hifc_ray.types import Fate, Lookup
from tests.contracts.tier_client import NUM_SLOTS, WINDOW, Rig, TierClientContract
from tests.fakes.blocks import SLOT_BYTES, SOON, fill, holds_bytes, query, request, store
from tests.fakes.door import Call, Door, connected, die, never_ran, ran_but, without_ray
from tests.fakes.tier import WAIT_S, open_tier, push_out, serve, words

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("no_need_of_ray")]


@pytest.fixture
def no_need_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ray(monkeypatch)


def eventually(what: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.002)


def slots_in(cache: TieredCache, state: str) -> int:
    return cache._books.counts()[state]


class TestThroughTheDoor(TierClientContract):
    @pytest.fixture
    def rig(self, tmp_path: Path, no_need_of_ray: None) -> Iterator[Rig]:
        cache = open_tier(
            tmp_path, slots=NUM_SLOTS, flash=MemoryDevice(), background=True, window_share=WINDOW / NUM_SLOTS
        )
        door = Door(cache)
        others: list[RayTierClient] = []

        def second() -> RayTierClient:
            others.append(RayTierClient(lambda: door))
            assert others[-1].connected(SOON)
            return others[-1]

        def kill_second() -> None:
            die(others[-1])
            eventually(lambda: cache.stats.get("holders_lost") == 1)

        with connected(lambda: door) as client:
            yield Rig(client, lambda numbers: push_out(cache, numbers), cache.check, cache.purge, second, kill_second)
        for other in others:
            other.close()
        cache.check()
        assert slots_in(cache, "leased") == slots_in(cache, "reserved") == 0
        cache.close(flush=False)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[TieredCache]:
    tier = open_tier(tmp_path, slots=NUM_SLOTS, window_share=0.5)
    yield tier
    tier.check()
    tier.close(flush=False)


@pytest.fixture
def door(cache: TieredCache) -> Door:
    return Door(cache)


@pytest.fixture
def client(door: Door) -> Iterator[RayTierClient]:
    with connected(lambda: door) as client:
        yield client


def test_a_lookup_whose_answer_is_lost_leaves_no_lease(client: RayTierClient, door: Door) -> None:
    store(client, range(4))
    door.fault = ran_but(CallTimedOut("late"))
    reply = client.lookup(query(range(4)), SOON)
    assert words(reply) == "MMMM"
    assert reply.missed is not None
    assert reply.missed.fate == Fate.UNREACHABLE
    assert slots_in(door.cache, "leased") == 4
    door.fault = None
    client.flush()
    assert slots_in(door.cache, "leased") == 0
    assert client.stats.get("calls_failed") == 1


def test_a_grant_whose_answer_is_lost_comes_back(client: RayTierClient, door: Door) -> None:
    store(client, range(4))
    door.fault = ran_but(CallTimedOut("late"))
    assert client.reserve(request(range(10, 14)), SOON).granted == []
    assert slots_in(door.cache, "reserved") == 4
    door.fault = None
    client.flush()
    assert slots_in(door.cache, "reserved") == 0
    assert store(client, range(10, 14)) == [10, 11, 12, 13]


@pytest.mark.parametrize("fault", [ran_but(CallTimedOut("late")), never_ran(CallTimedOut("late"))])
def test_a_commit_without_an_answer_holds_no_slot(client: RayTierClient, door: Door, fault: Any) -> None:
    grant = client.reserve(request(range(2)), SOON)
    fill(client, grant, [0, 1])
    door.fault = fault
    assert client.commit(grant, None, SOON) == 0
    door.fault = None
    client.flush()
    assert slots_in(door.cache, "reserved") == 0
    assert serve(client, [0, 1]) in ([0, 1], [])
    assert client.commit(grant, None, SOON) == 0


def test_an_abort_is_said_at_once(client: RayTierClient, door: Door) -> None:
    client.abort(client.reserve(request(range(1, 5)), SOON))
    assert slots_in(door.cache, "reserved") == 0


def test_an_abort_that_was_not_heard_is_said_again_when_the_engine_is_idle(client: RayTierClient, door: Door) -> None:
    kept = client.reserve(request([0]), SOON)
    lost = client.reserve(request(range(1, 5)), SOON)
    door.fault = never_ran(CallTimedOut("late"))
    client.abort(lost)
    door.fault = None
    assert slots_in(door.cache, "reserved") == 5
    client.flush()
    assert slots_in(door.cache, "reserved") == 1
    fill(client, kept, [0])
    assert client.commit(kept, None, SOON) == 1


def test_flushing_what_is_known_makes_no_call(client: RayTierClient, door: Door) -> None:
    store(client, range(2))
    serve(client, range(2))
    client.flush()
    before = list(door.calls)
    for _ in range(5):
        client.flush()
    assert door.calls == before


def test_a_call_that_arrives_after_a_later_one_is_refused(client: RayTierClient, door: Door) -> None:
    store(client, range(4))
    late: list[Call] = []

    def keep(method: str, call: Call) -> Any:
        late.append(call)
        raise CallTimedOut("late")

    door.fault = keep
    client.lookup(query(range(4)), SOON)
    client.reserve(request(range(10, 14)), SOON)
    door.fault = None
    client.flush()
    store(client, [5])
    assert [call() for call in late] == [b"", None]
    assert slots_in(door.cache, "leased") == slots_in(door.cache, "reserved") == 0
    assert client.connected()


def test_a_dead_tier_costs_one_call_and_then_none(client: RayTierClient, door: Door) -> None:
    store(client, range(4))
    door.fault = never_ran(TierUnavailable("dead"))
    before = len(door.calls)
    for _ in range(20):
        assert words(client.lookup(query(range(4)), SOON)) == "MMMM"
        assert client.reserve(request([9]), SOON).granted == []
        client.flush()
    asked = [call for call in door.calls[before:] if call not in ("arena_path", "attach")]
    assert asked == ["lookup"]
    assert client.stats.get("calls_failed") == 1
    door.fault = None
    assert client.connected(SOON)
    assert serve(client, range(4)) == [0, 1, 2, 3]


def test_a_tier_whose_lock_is_free_is_dead_at_the_first_deadline(tmp_path: Path) -> None:
    cache = open_tier(tmp_path, slots=NUM_SLOTS)
    door = Door(cache)
    with connected(lambda: door) as client:
        door.fault = never_ran(CallTimedOut("no answer"))
        cache.close(flush=False, keep_arena=True)
        client.lookup(query([0]), SOON)
        assert not client.connected()
        assert door.calls.count("lookup") == 1


def test_a_hung_tier_costs_a_few_deadlines(client: RayTierClient, door: Door) -> None:
    door.fault = never_ran(CallTimedOut("no answer"))
    for _ in range(20):
        client.lookup(query([0]), SOON)
    assert door.calls.count("lookup") == MAX_TIMEOUTS


def test_slow_calls_among_others_break_no_link(client: RayTierClient, door: Door) -> None:
    for _ in range(3 * MAX_TIMEOUTS):
        door.fault = never_ran(CallTimedOut("slow"))
        client.lookup(query([0]), SOON)
        door.fault = None
        client.lookup(query([0]), SOON)
    assert door.calls.count("attach") == 1
    assert door.calls.count("lookup") == 6 * MAX_TIMEOUTS
    assert client.connected()


def test_a_tier_that_has_forgotten_us_is_attached_to_again(client: RayTierClient, door: Door) -> None:
    store(client, [0])
    link = client._link
    assert link is not None
    door.cache.detach(link.info.holder)
    assert words(client.lookup(query([0]), SOON)) == "M"
    assert client.connected(SOON)
    assert serve(client, [0]) == [0]
    assert door.calls.count("attach") == 3  # its file was gone, so that it had to make another


def test_any_error_of_the_tier_is_a_miss(client: RayTierClient, door: Door) -> None:
    door.fault = never_ran(StorageError("flash directory is gone"))
    assert words(client.lookup(query([0]), SOON)) == "M"
    assert client.reserve(request([0]), SOON).granted == []


class TestStartedAgain:
    """The tier's process dies and another one takes arena and holders over."""

    @pytest.fixture
    def doors(self, tmp_path: Path) -> Iterator[list[Door]]:
        doors = [Door(open_tier(tmp_path, slots=NUM_SLOTS, window_share=0.5))]
        yield doors
        doors[-1].cache.check()
        doors[-1].cache.close(flush=False)

    @pytest.fixture
    def client(self, doors: list[Door]) -> Iterator[RayTierClient]:
        with connected(lambda: doors[-1]) as client:
            yield client

    def restart(self, doors: list[Door], tmp_path: Path, name: str = "hifc-test") -> None:
        old = doors[-1]
        old.cache.close(flush=False, keep_arena=name == "hifc-test")
        doors.append(Door(open_tier(tmp_path, slots=NUM_SLOTS, window_share=0.5, name=name)))
        old.fault = never_ran(TierUnavailable("dead"))

    def test_a_grant_of_the_old_one_is_refused_and_comes_back(
        self, client: RayTierClient, doors: list[Door], tmp_path: Path
    ) -> None:
        store(client, range(3))
        grant = client.reserve(request([7]), SOON)
        self.restart(doors, tmp_path)
        new = doors[-1].cache
        assert slots_in(new, "reserved") == 1  # its holder lives, and may be writing
        assert words(client.lookup(query([0]), SOON)) == "M"
        assert client.connected(SOON)
        fill(client, grant, [7])
        assert client.commit(grant, None, SOON) == 0
        assert new.stats.get("commits_refused") == 1
        client.flush()
        assert slots_in(new, "reserved") == 0
        assert serve(client, [7]) == []
        assert serve(client, range(3)) == [0, 1, 2]

    def test_a_commit_with_the_old_incarnation_finds_the_new_tier(
        self, client: RayTierClient, doors: list[Door], tmp_path: Path
    ) -> None:
        grant = client.reserve(request([7]), SOON)
        fill(client, grant, [7])
        old_door = doors[-1]
        self.restart(doors, tmp_path)
        old_door.fault = None
        old_door.cache = doors[-1].cache  # the same name answers, as another incarnation
        assert client.commit(grant, None, SOON) == 0
        assert client.stats.get("calls_failed") == 1
        assert client.connected(SOON)
        client.flush()
        assert slots_in(doors[-1].cache, "reserved") == 0
        assert store(client, [7]) == [7]

    def test_an_idle_engine_finds_the_new_one_without_a_call_to_the_old(
        self, client: RayTierClient, doors: list[Door], tmp_path: Path
    ) -> None:
        store(client, [0])
        calls = list(doors[-1].calls)
        self.restart(doors, tmp_path)
        client.flush()
        eventually(lambda: client.connected() and client._link is not None and client._link.handle is doors[-1])
        assert doors[0].calls == calls
        assert serve(client, [0]) == [0]

    def test_leases_survive_and_are_given_back_to_the_new_one(
        self, client: RayTierClient, doors: list[Door], tmp_path: Path
    ) -> None:
        store(client, range(4))
        kept = client.lookup(query(range(2)), SOON)
        lost = client.lookup(query(range(4), in_gpu=[True, True]), SOON)
        self.restart(doors, tmp_path)
        new = doors[-1].cache
        assert slots_in(new, "leased") == 4
        client.lookup(query([0]), SOON)
        client.release(lost.lease)
        assert client.connected(SOON)
        client.flush()
        assert slots_in(new, "leased") == 2
        assert client.holds(kept.lease).all()
        assert holds_bytes(client, int(kept.slots[1]), 1)
        client.release(kept.lease)
        client.flush()
        assert slots_in(new, "leased") == 0

    def test_another_arena_waits_until_nothing_of_the_old_one_is_in_use(
        self, client: RayTierClient, doors: list[Door], tmp_path: Path
    ) -> None:
        store(client, range(4))
        reply = client.lookup(query(range(4)), SOON)
        grant = client.reserve(request([9]), SOON)
        self.restart(doors, tmp_path, "hifc-test.another")
        new = doors[-1].cache
        theirs = new.reserve(request(range(20, 20 + NUM_SLOTS)), SOON)
        fill(new, theirs, range(20, 20 + NUM_SLOTS))
        new.commit(theirs, None, SOON)
        assert words(client.lookup(query([0]), SOON)) == "M"
        assert not client.connected(0.1)
        assert client.holds(reply.lease).all()
        assert all(holds_bytes(client, int(reply.slots[number]), number) for number in range(4))
        client.release(reply.lease)
        assert not client.connected(0.1)
        fill(client, grant, [9])  # into the old arena: nothing in the new one may change
        assert client.commit(grant, None, SOON) == 0
        assert client.connected(SOON)
        assert serve(client, range(20, 28)) == list(range(20, 28))


def test_another_protocol_is_refused_by_name(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    attach = door.cache.attach
    door.cache.attach = lambda holder_path: replace(attach(holder_path), protocol=99)  # type: ignore[method-assign]
    client = RayTierClient(lambda: door)
    with caplog.at_level(logging.WARNING):
        with pytest.raises(ConfigError, match=f"protocol 99; allowed here: {PROTOCOL_VERSION}$"):
            client.connected(SOON)
        eventually(lambda: door.calls.count("attach") > 5)
    assert len(caplog.records) == 1
    assert words(client.lookup(query([0]), SOON)) == "M"
    client.close()


def test_slots_that_are_too_small_are_refused_by_name(door: Door) -> None:
    with connected(lambda: door) as client:
        client.require(SLOT_BYTES)
        assert client.connected()
        client.require(SLOT_BYTES + 1)
        assert not client.connected()
        with pytest.raises(ConfigError, match=f"are {SLOT_BYTES} bytes; a block of this model is {SLOT_BYTES + 1} "):
            client.connected(SOON)
        assert client.reserve(request([0]), SOON).granted == []


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError("no such file"), TierUnavailable("the head is gone")])
def test_whatever_goes_wrong_the_search_goes_on(door: Door, error: Exception) -> None:
    tries = 0

    def find() -> Door | None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise error
        return door if tries > 6 else None

    with connected(find) as client:
        assert tries == 7
        assert store(client, [0]) == [0]


def test_a_holder_file_that_was_swept_is_made_again(door: Door) -> None:
    swept: list[Path] = []

    def sweep_once(method: str, call: Call) -> Any:
        if method == "attach" and not swept:
            for path in door.cache._arena.path.parent.glob("*.holder-*"):
                if path != door.cache._lock_file.path:
                    swept.append(path)
                    path.unlink()
        return call()

    door.fault = sweep_once
    with connected(lambda: door) as client:
        assert len(swept) == 1
        assert store(client, [0]) == [0]


def test_without_a_tier_everything_misses_and_nothing_raises() -> None:
    client = RayTierClient(lambda: None)
    reply = client.lookup(query(range(3), in_gpu=[True]), SOON)
    assert words(reply) == "HMM"
    assert client.wait(reply, SOON).tolist() == [Lookup.HIT, Lookup.MISS, Lookup.MISS]
    grant = client.reserve(request([0]), SOON)
    assert (grant.granted, client.commit(grant, None, SOON)) == ([], 0)
    client.abort(grant)
    client.release(reply.lease)
    client.flush()
    assert (client.slot_bytes, client.num_slots, client.window) == (0, 0, 1)
    with pytest.raises(TierUnavailable):
        client.slot(0)
    client.close()
    client.close()


def test_closing_gives_everything_back(door: Door) -> None:
    with connected(lambda: door) as client:
        store(client, range(2))
        client.lookup(query(range(2)), SOON)
        client.reserve(request([5]), SOON)
    assert slots_in(door.cache, "leased") == slots_in(door.cache, "reserved") == 0
    assert holder_files(door) == [door.cache._lock_file.path]
    assert words(client.lookup(query(range(2)), SOON)) == "MM"


def test_closing_ends_a_holder_though_the_tier_does_not_hear(door: Door) -> None:
    with connected(lambda: door) as client:
        store(client, range(2))
        client.lookup(query(range(2)), SOON)
        door.fault = never_ran(CallTimedOut("hung"))
    assert holder_files(door) == [door.cache._lock_file.path]
    door.cache.tick()
    assert slots_in(door.cache, "leased") == 0


def holder_files(door: Door) -> list[Path]:
    arena = door.cache._arena.path
    return list(arena.parent.glob(f"{arena.name}.holder-*"))

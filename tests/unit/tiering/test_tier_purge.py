"""Purging a tier while blocks are written, read, lent and stored; each held at a named point or by its device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hifc_ray import points
from hifc_ray.clock import ManualClock
from hifc_ray.errors import FlashFault, StorageError
from hifc_ray.messages import Purge, PurgeReport
from hifc_ray.tiering import TieredCache
from hifc_ray.types import BlockState, Fate, Lookup, Owner, Tier
from tests.contracts.tier_client import ALICE, BOB
from tests.fakes.blocks import SOON, fill, query, request, store
from tests.fakes.flash import FaultyDevice
from tests.fakes.remote import Remote
from tests.fakes.tier import WAIT_S, Held, faulty, in_host, keep_up, on_flash, open_tier, push_out, serve, words

WHAT = Purge(tenant=ALICE.tenant)
pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def device() -> FaultyDevice:
    return faulty()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tier(tmp_path: Path, device: FaultyDevice, clock: ManualClock) -> Iterator[TieredCache]:
    made = open_tier(tmp_path, flash=device, clock=clock)
    yield made
    assert made.idle(WAIT_S)
    made.check()
    made.close(flush=False)


class Purging:
    """A purge on a thread of its own."""

    def __init__(self, tier: TieredCache, what: Purge = WHAT) -> None:
        self.report: PurgeReport | None = None
        self._thread = threading.Thread(target=self._run, args=(tier, what))
        self._thread.start()

    def _run(self, tier: TieredCache, what: Purge) -> None:
        self.report = tier.purge(what)

    def done(self, timeout_s: float = WAIT_S) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


def begin_demotion(tier: TieredCache, *numbers: int) -> None:
    slots = tier._books.find(request(numbers).keys)
    tier._demoter._evict(slots, tier._books.table.generation[slots].astype("int64"))


def asked(tier: TieredCache, *numbers: int) -> str:
    """What a lookup of each of these blocks says; nothing stays leased."""
    replies = [tier.lookup(query([number]), SOON) for number in numbers]
    for reply in replies:
        tier.release(reply.lease)
    return "".join(words(reply) for reply in replies)


def test_what_flash_still_has_is_not_served_while_a_purge_is_under_way(tier: TieredCache) -> None:
    store(tier, [0, 1], owner=ALICE)
    store(tier, [2], owner=BOB)
    push_out(tier, range(3))
    held = Held()
    with points.at("tier.purge.withdrawn", held):
        purging = Purging(tier)
        held.wait_entered()
        assert on_flash(tier, range(3)) == [0, 1, 2]
        assert asked(tier, 0, 1, 2) == "MMP"
        held.let_go()
        assert purging.done()
    assert purging.report is not None
    assert purging.report.flash_blocks == 2
    assert on_flash(tier, range(3)) == [2]
    assert not tier._shared.barred
    assert serve(tier, [2]) == [2]


def test_a_write_that_is_under_way_is_waited_for_and_what_it_wrote_is_purged(
    tier: TieredCache, device: FaultyDevice
) -> None:
    store(tier, range(3), owner=ALICE)
    device.on_write = held = Held()
    begin_demotion(tier, 0, 1)
    held.wait_entered()
    reply = tier.lookup(query([1]), SOON)  # a hit: its demotion is cancelled, its write is not
    purging = Purging(tier)
    while in_host(tier, range(3)):
        pass
    assert not purging.done(0.02)
    assert asked(tier, 0, 1, 2) == "MMM"
    assert not tier.holds(reply.lease).any()
    device.on_write = lambda: None
    held.let_go()
    assert purging.done()
    assert purging.report is not None
    assert (purging.report.host_blocks, purging.report.flash_blocks) == (3, 2)
    assert asked(tier, 0, 1, 2) == "MMM"
    tier.release(reply.lease)
    assert tier._books.num_free == tier.num_slots
    assert tier.stats.get("purged_blocks", tier=Tier.HOST) == 3


def test_a_write_that_hangs_is_purged_when_it_has_returned(tmp_path: Path, device: FaultyDevice) -> None:
    tier = open_tier(tmp_path, flash=device, flash_options={"write_deadline_s": 0.05})
    store(tier, [0], owner=ALICE)
    device.on_write = held = Held()
    begin_demotion(tier, 0)
    held.wait_entered()
    assert tier.purge(WHAT) == PurgeReport(1, unfinished=True)
    keep_up(tier)
    assert tier._shared.barred == [WHAT]
    held.let_go()
    assert tier.idle(WAIT_S)
    assert on_flash(tier, [0]) == [0]
    assert asked(tier, 0) == "M"
    keep_up(tier)
    assert on_flash(tier, [0]) == []
    assert not tier._shared.barred
    tier.check()
    tier.close(flush=False)


def test_a_demotion_given_up_before_the_purge_is_not_found_after_it(
    tier: TieredCache, device: FaultyDevice, clock: ManualClock
) -> None:
    store(tier, [0], owner=ALICE)
    device.on_write = held = Held()
    begin_demotion(tier, 0)
    held.wait_entered()
    clock.advance(tier.config.flash.write_deadline_s + 1)
    tier.tick()
    assert in_host(tier, [0]) == []
    purging = Purging(tier)
    assert not purging.done(0.02)
    held.let_go()
    assert purging.done()
    assert (asked(tier, 0), on_flash(tier, [0])) == ("M", [])


def test_a_read_that_is_under_way_publishes_nothing(tier: TieredCache, device: FaultyDevice) -> None:
    store(tier, [0], owner=ALICE)
    push_out(tier, [0])
    device.on_read = held = Held()
    reply = tier.lookup(query([0]), SOON)
    assert words(reply) == "P"
    held.wait_entered()
    purging = Purging(tier)
    assert tier.wait(reply, WAIT_S).tolist() == [Lookup.MISS]
    held.let_go()
    assert purging.done()
    tier.release(reply.lease)
    assert (asked(tier, 0), tier._books.num_free) == ("M", tier.num_slots)


def test_flash_that_fails_to_forget_stays_barred_until_it_does(
    tier: TieredCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tier, [0], owner=ALICE)
    push_out(tier, [0])
    flash = tier._shared.flash
    assert flash is not None
    forget = flash.purge

    def failing(**_: Any) -> tuple[int, int]:
        raise FlashFault("the device is gone")

    monkeypatch.setattr(flash, "purge", failing)
    with pytest.raises(FlashFault, match="the device is gone"):
        tier.purge(WHAT)
    keep_up(tier)
    assert tier.stats.get("purge_failures", reason="FlashFault") == 1
    assert asked(tier, 0) == "M"
    monkeypatch.setattr(flash, "purge", forget)
    keep_up(tier)
    assert not tier._shared.barred
    assert on_flash(tier, [0]) == []


def test_why_a_purged_block_is_missing_is_not_told(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    store(tier, [0], owner=ALICE)
    tier.purge(WHAT)
    reply = tier.lookup(query([0]), SOON)
    assert reply.missed is not None
    assert reply.missed.fate == Fate.UNKNOWN
    tier.close()
    with pytest.raises(StorageError, match="is closed; nothing was purged"):
        tier.purge(WHAT)


def test_slots_of_a_writer_that_dies_after_a_purge_come_back(tier: TieredCache, clock: ManualClock) -> None:
    remote = Remote(tier)
    grant = remote.reserve(request(range(3), owner=ALICE))
    store(tier, [7], owner=ALICE)
    assert remote.lookup(query([7])) is not None
    assert grant is not None
    assert tier.purge(WHAT).host_blocks == 4
    assert tier._books.counts()["doomed"] == 3
    assert remote.reserve(request([9], owner=BOB)) is not None  # the slots of an open grant are kept for it
    assert tier._books.counts()["doomed"] == 3
    remote.die()
    clock.advance(10)
    tier.tick()
    assert tier._books.num_free == tier.num_slots


def test_what_was_purged_is_not_there_when_the_tier_starts_again(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    store(tier, [0, 1], owner=ALICE)
    store(tier, [2], owner=BOB)
    tier.purge(WHAT)
    tier.close(flush=False, keep_arena=True)
    again = open_tier(tmp_path)
    assert serve(again, [2]) == [2]
    assert asked(again, 0, 1) == "MM"
    assert again.purge(Purge(session=BOB.session)).host_blocks == 1  # owners outlive the process
    again.check()
    again.close()


def test_an_owner_is_the_one_who_stored_a_block_first(tier: TieredCache) -> None:
    store(tier, [0], owner=ALICE)
    assert store(tier, [0, 1], owner=BOB) == [1]
    grant = tier.reserve(request([2], owner=Owner(ALICE.tenant, 99)), SOON)
    fill(tier, grant, [2])
    tier.commit(grant, None, SOON)
    assert tier.purge(WHAT).host_blocks == 2
    assert asked(tier, 0, 1, 2) == "MHM"
    assert tier._books.counts()[BlockState.RESIDENT.name.lower()] == 1

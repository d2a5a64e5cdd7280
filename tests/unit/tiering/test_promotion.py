from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hifc_ray.clock import ManualClock
from hifc_ray.flash import MemoryDevice
from hifc_ray.flash.address import unpack
from hifc_ray.tiering import TieredCache
from hifc_ray.types import BlockState, Fate, Lookup, Tier
from tests.fakes.blocks import SOON, holds_bytes, query, request, store
from tests.fakes.flash import FaultyDevice, broken
from tests.fakes.tier import WAIT_S, Held, faulty, in_host, on_flash, open_tier, push_out, serve, words

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def device() -> FaultyDevice:
    return faulty()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tier(tmp_path: Path, device: FaultyDevice, clock: ManualClock) -> Iterator[TieredCache]:
    """16 slots, blocks 0 to 3 on flash only; one thread reads."""
    options = {"read_threads": 1, "queue_blocks": 8}
    made = open_tier(tmp_path, flash=device, clock=clock, flash_options=options)
    store(made, range(4))
    push_out(made, range(4))
    yield made
    made.check()
    made.close(flush=False)


def fate(tier: TieredCache, number: int) -> Fate:
    return tier._shared.fate(query([number]).keys[0])


def test_a_read_that_fails_is_a_miss_and_counted(tier: TieredCache, device: FaultyDevice) -> None:
    device.on_read = broken
    reply = tier.lookup(query(range(2)), SOON)
    assert words(reply) == "PP"
    assert tier.wait(reply, WAIT_S).tolist() == [Lookup.MISS] * 2
    tier.release(reply.lease)
    assert fate(tier, 0) == Fate.READ_FAILED
    assert tier.idle(WAIT_S)
    assert tier.stats.get("read_failures", tier=Tier.FLASH, reason="OSError") == 2
    assert tier._books.num_free == 16
    device.on_read = lambda: None
    assert serve(tier, range(4)) == [0, 1, 2, 3]


def test_a_flipped_bit_is_a_miss_and_the_block_is_forgotten(tier: TieredCache, device: FaultyDevice) -> None:
    inner = device.inner
    assert isinstance(inner, MemoryDevice)
    largest = max(inner.files.values(), key=len)
    place = tier._shared.flash.locate(query([1]).keys)[0]  # type: ignore[union-attr]
    assert place is not None
    largest[unpack(place).offset + 5000] ^= 1
    assert serve(tier, range(4)) == [0]
    reply = tier.lookup(query(range(4)), SOON)
    assert reply.missed is not None
    assert (reply.missed.index, reply.missed.fate) == (1, Fate.CORRUPT)
    tier.release(reply.lease)
    assert tier.stats.get("corrupt") == 1
    store(tier, [1])
    assert serve(tier, range(4)) == [0, 1, 2, 3]


def test_a_block_whose_segment_went_meanwhile_is_dropped(tier: TieredCache, device: FaultyDevice) -> None:
    held = Held()
    device.on_read = held
    first = tier.lookup(query([0]), SOON)
    held.wait_entered()
    second = tier.lookup(query([1]), SOON)  # queued behind it
    flash = tier._shared.flash
    assert flash is not None
    flash.seal()
    with flash._lock:  # as `make_room` does it
        segments = flash.volumes[0].log._segments
        number = next(iter(segments))
        del segments[number]
        flash._index.remove(flash._index.rows_of(number), Fate.DROPPED)
    held.let_go()
    assert tier.wait(second, WAIT_S).tolist() == [Lookup.MISS]
    assert tier.wait(first, WAIT_S).tolist() == [Lookup.HIT]
    assert fate(tier, 1) == Fate.DROPPED
    for reply in (first, second):
        tier.release(reply.lease)


def test_a_late_read_is_a_miss_and_its_slot_waits_for_it(
    tier: TieredCache, device: FaultyDevice, clock: ManualClock
) -> None:
    held = Held()
    device.on_read = held
    reply = tier.lookup(query([0]), SOON)
    slot = int(reply.slots[0])
    held.wait_entered()
    clock.advance(2.5)
    tier.tick()
    assert tier.wait(reply, WAIT_S).tolist() == [Lookup.MISS]
    assert tier._books.table.state[slot] == BlockState.QUARANTINED
    assert fate(tier, 0) == Fate.LATE
    assert tier.stats.get("read_deadlines", reason="running") == 1
    tier.release(reply.lease)
    tier.check()
    grant = tier.reserve(request(range(100, 116)), SOON)  # everything there is
    assert slot not in grant.slots[grant.granted]
    assert (len(grant.granted), grant.refused) == (15, [15])
    for row in grant.granted:
        tier.slot(int(grant.slots[row]))[:] = b"\xaa" * tier.slot_bytes
    assert tier.commit(grant, None, SOON) == 15
    held.let_go()  # now the bytes of block 0 land
    assert tier.idle(WAIT_S)
    assert all(set(bytes(tier.slot(int(grant.slots[row])))) == {0xAA} for row in grant.granted)
    assert holds_bytes(tier, slot, 0)
    assert tier._books.table.state[slot] == BlockState.ABSENT
    again = tier.reserve(request([116]), SOON)
    assert again.slots.tolist() == [slot]
    tier.abort(again)


def test_who_asks_again_for_a_late_block_gets_it_in_another_slot(
    tier: TieredCache, device: FaultyDevice, clock: ManualClock
) -> None:
    held = Held()
    device.on_read = held
    late = tier.lookup(query([0]), SOON)
    held.wait_entered()
    clock.advance(2.5)
    tier.tick()
    again = tier.lookup(query([0]), SOON)
    assert words(again) == "P"
    assert again.slots.tolist() != late.slots.tolist()
    tier.release(late.lease)
    held.let_go()
    assert tier.wait(again, WAIT_S).tolist() == [Lookup.HIT]
    assert holds_bytes(tier, int(again.slots[0]), 0)
    tier.release(again.lease)
    assert tier.idle(WAIT_S)
    assert tier._books.num_free == 15


def test_reads_that_wait_too_long_are_withdrawn(tier: TieredCache, device: FaultyDevice, clock: ManualClock) -> None:
    held = Held()
    device.on_read = held
    replies = [tier.lookup(query([number]), SOON) for number in range(4)]
    held.wait_entered()
    clock.advance(2.5)
    tier.tick()
    assert [tier.wait(reply, 0.0).tolist() for reply in replies] == [[Lookup.MISS]] * 4
    assert tier.stats.get("read_deadlines", reason="queued") == 3
    counts = tier._books.counts()
    assert (counts["quarantined"], counts["absent"]) == (1, 15)
    for reply in replies:
        tier.release(reply.lease)
    held.let_go()
    assert tier.idle(WAIT_S)
    assert serve(tier, range(4)) == [0, 1, 2, 3]


def test_with_a_hung_device_everything_still_answers(
    tier: TieredCache, device: FaultyDevice, clock: ManualClock
) -> None:
    reads, writes = Held(), Held()
    device.on_read, device.on_write = reads, writes
    store(tier, range(10, 20))
    tier._demoter._evict(*_rows(tier, range(18, 20)))
    writes.wait_entered()
    for _ in range(20):
        for reply in (tier.lookup(query(range(4)), SOON), tier.lookup(query(range(10, 14)), SOON)):
            tier.wait(reply, 0.0)
            tier.release(reply.lease)
        grant = tier.reserve(request(range(50, 60)), SOON)
        assert len(grant.answers) == 10
        tier.commit(grant, None, SOON)
        clock.advance(3.0)
        tier.tick()
        tier.check()
    assert serve(tier, range(10, 14)) == [10, 11, 12, 13]
    reads.let_go()
    writes.let_go()
    device.on_read = device.on_write = lambda: None
    assert tier.idle(WAIT_S)
    tier.check()
    assert tier._books.counts()["quarantined"] == 0
    assert serve(tier, range(4)) == [0, 1, 2, 3]


def test_an_asker_that_leaves_does_not_stop_the_read(tier: TieredCache, device: FaultyDevice) -> None:
    held = Held()
    device.on_read = held
    reply = tier.lookup(query([0]), SOON)
    tier.release(reply.lease)
    held.let_go()
    assert tier.idle(WAIT_S)
    assert in_host(tier, [0]) == [0]
    assert len(tier._books.evictable()) == 1


def test_what_was_read_is_counted(tier: TieredCache) -> None:
    serve(tier, range(4))
    assert tier.idle(WAIT_S)
    assert tier.stats.get("promoted_blocks", tier=Tier.FLASH) == 4
    assert tier.stats.get("served_blocks") == 4
    assert on_flash(tier, range(4)) == [0, 1, 2, 3]


def test_a_device_without_room_still_serves(tier: TieredCache, device: FaultyDevice) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    device.on_write = device.on_create = full
    assert serve(tier, range(4)) == [0, 1, 2, 3]


def _rows(tier: TieredCache, numbers: range) -> tuple:
    slots = tier._books.find(query(numbers).keys)
    return slots, tier._books.table.generation[slots].astype("int64")

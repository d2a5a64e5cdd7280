"""What is purged from flash cannot come back: not by a restart, not from a device that drains."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable
from dataclasses import replace

import pytest

from hifc_ray import points
from hifc_ray.errors import CorruptRecord
from hifc_ray.flash import FlashStore, MemoryDevice, keys_as_words, log
from hifc_ray.flash.filters import MAGIC as FILTER_MAGIC
from hifc_ray.flash.format import FAULTS_NAME
from hifc_ray.stats import Stats
from hifc_ray.types import Owner, Tier
from tests.fakes.blocks import THEIRS
from tests.fakes.flash import BLOCK_BYTES, abandon, block, config, key, load, open_store, payload, stored_numbers
from tests.fakes.tier import Held

ALICE, BOB = Owner(1, 10), Owner(2, 20)
pytestmark = pytest.mark.timeout(30)


def store(flash: FlashStore, numbers: Iterable[int], owner: Owner, volume: int | None = None) -> None:
    flash.append([replace(block(number), owner=owner) for number in numbers], volume)


def lies_on(device: MemoryDevice, number: int) -> bool:
    """Are the bytes of a block anywhere on the device?"""
    head = payload(number)[:64]
    for name, size in device.sizes().items():
        try:
            extent = device.open(name)
        except OSError:
            continue
        data = bytearray(size)
        extent.preadv([memoryview(data)], 0)
        if head in data:
            return True
    return False


@pytest.mark.parametrize(
    ("what", "left"),
    [
        ({"tenant": 1}, [3, 4, 5]),
        ({"session": 20}, [0, 1, 2, 5]),
        ({"tenant": 0}, [0, 1, 2, 3, 4]),
        ({"namespace": THEIRS}, [0, 1, 2, 3, 4, 5]),
    ],
)
@pytest.mark.parametrize("killed", [True, False])
def test_purged_blocks_are_gone_now_and_after_a_restart(what: dict[str, int], left: list[int], killed: bool) -> None:
    device, stats = MemoryDevice(), Stats()
    flash = open_store(device, stats)
    store(flash, range(3), ALICE)
    store(flash, (3, 4), BOB)
    flash.append([block(5)])
    gone = [number for number in range(6) if number not in left]
    num_blocks, num_bytes = flash.purge(**what)  # type: ignore[arg-type]
    assert (num_blocks, num_bytes >= len(gone) * BLOCK_BYTES) == (len(gone), True)
    assert stats.get("purged_blocks", tier=Tier.FLASH) == len(gone)
    assert stored_numbers(flash, range(6)) == left
    assert [lies_on(device, number) for number in gone] == [False] * len(gone)
    abandon(flash) if killed else flash.close()
    again = open_store(device)
    assert stored_numbers(again, range(6)) == left
    store(again, gone, ALICE)  # later, it is a new store
    assert stored_numbers(again, range(6)) == list(range(6))
    again.close()
    third = open_store(device)
    assert stored_numbers(third, range(6)) == list(range(6))
    third.close()


def purge_while_held_at(point: str, flash: FlashStore, mover: threading.Thread) -> tuple[int, int]:
    """Purge ALICE while `mover` stands at a point with blocks of hers in its hands."""
    held = Held()
    reports: list[tuple[int, int]] = []
    with points.at(point, held):
        mover.start()
        held.wait_entered()
        purging = threading.Thread(target=lambda: reports.append(flash.purge(tenant=ALICE.tenant)))
        purging.start()
        purging.join(0.05)
        held.let_go()
        mover.join()
        purging.join()
    return reports[0]


def test_what_a_device_that_drains_was_giving_away_does_not_come_back() -> None:
    devices = [MemoryDevice(), MemoryDevice()]
    half = config()
    both = replace(half, limit_bytes=2 * half.limit_bytes)
    flash = FlashStore(both, BLOCK_BYTES, Stats(), devices=devices)
    store(flash, range(4), ALICE, 0)
    store(flash, range(4, 8), BOB, 0)
    flash.volumes[0].retire(drain=True)
    purge_while_held_at("flash.append.written", flash, threading.Thread(target=flash.drain, args=[flash.volumes[0]]))
    assert stored_numbers(flash, range(8)) == [4, 5, 6, 7]
    abandon(flash)
    again = FlashStore(both, BLOCK_BYTES, Stats(), devices=devices)
    assert stored_numbers(again, range(8)) == [4, 5, 6, 7]
    again.close()


def test_a_purge_waits_for_what_was_read_from_one_device_to_be_written_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Were it written when the purge is over, it would be a new block, of which the purge says nothing."""
    devices = [MemoryDevice(), MemoryDevice()]
    flash = open_store(devices)
    store(flash, range(4), ALICE, 0)
    flash.volumes[0].retire(drain=True)
    purging = threading.Thread(target=lambda: flash.purge(tenant=ALICE.tenant))
    draw = flash.draw

    def draw_late(num_bytes: int) -> int | None:
        purging.start()
        purging.join(0.2)
        return draw(num_bytes)

    monkeypatch.setattr(flash._drainer, "_draw", draw_late)
    flash.drain(flash.volumes[0])
    purging.join()
    assert stored_numbers(flash, range(4)) == []
    abandon(flash)
    with open_store(devices) as again:
        assert stored_numbers(again, range(4)) == []


def test_what_was_being_written_when_a_purge_began_is_purged_too() -> None:
    device = MemoryDevice()
    flash = open_store(device)
    store(flash, range(3), ALICE)
    report = purge_while_held_at(
        "flash.append.part", flash, threading.Thread(target=lambda: store(flash, range(3, 6), ALICE))
    )
    assert report[0] == 6
    assert stored_numbers(flash, range(6)) == []
    assert not any(lies_on(device, number) for number in range(6))
    abandon(flash)
    with open_store(device) as again:
        assert stored_numbers(again, range(6)) == []


def test_what_was_being_carried_over_when_a_purge_began_is_purged_too() -> None:
    device = MemoryDevice()
    flash = open_store(device, carry_share=0.25)
    store(flash, range(20), ALICE)
    store(flash, range(20, 120), BOB)
    flash.look_up(keys_as_words([key(number) for number in range(5)]), 1)
    mover = threading.Thread(target=lambda: store(flash, [120], BOB))
    purge_while_held_at("flash.append.part", flash, mover)
    assert stored_numbers(flash, range(20)) == []
    assert not any(lies_on(device, number) for number in range(20))
    abandon(flash)
    with open_store(device) as again:
        assert stored_numbers(again, range(20)) == []


def test_a_purge_leaves_no_bytes_among_what_is_kept_of_faults() -> None:
    device = MemoryDevice()
    with open_store(device) as flash:
        store(flash, range(3), ALICE)
        segment = next(name for name in device.files if name.endswith(".segment"))
        at = device.files[segment].index(payload(1)[4096:4160])
        device.files[segment][at] ^= 1
        with pytest.raises(CorruptRecord, match="stripe"):
            load(flash, 1)
        (fault,) = flash.volumes[0].quarantine.all()
        assert base64.b64decode(fault.stripe)[1:] == payload(1)[4097:8192]
        flash.purge(tenant=ALICE.tenant)
        (kept,) = flash.volumes[0].quarantine.all()
        assert (kept.key, kept.reason, kept.header, kept.stripe) == (fault.key, "stripe", "", "")
        assert fault.stripe.encode() not in bytes(device.files[FAULTS_NAME])


def test_a_purge_leaves_no_bytes_in_the_file_of_a_dropped_segment() -> None:
    device = MemoryDevice()
    with open_store(device) as flash:
        for first in range(0, 240, 20):
            store(flash, range(first, first + 20), ALICE)
        assert flash.purge(tenant=1)[0] == 120
        assert not [number for number in range(240) if lies_on(device, number)]


def test_a_segment_that_is_dropped_during_a_purge_leaves_no_file() -> None:
    device = MemoryDevice()
    with open_store(device) as flash:
        for first in range(0, 240, 20):
            store(flash, range(first, first + 20), ALICE)

        def go_on() -> None:  # what was withdrawn and is not overwritten yet is dropped
            for first in range(240, 300, 20):
                store(flash, range(first, first + 20), BOB)

        with points.at("flash.purge.barred", go_on):
            flash.purge(tenant=1)
        assert not [number for number in range(240) if lies_on(device, number)]
        assert stored_numbers(flash, range(300)) == list(range(240, 300))


def test_a_purge_leaves_no_filter_that_tells_what_was_there() -> None:
    device = MemoryDevice()
    with open_store(device) as flash:
        store(flash, range(3), ALICE)
        store(flash, range(3, 6), BOB)
        assert flash.seal()
        filters = [name for name, data in device.files.items() if FILTER_MAGIC in data]
        assert filters
        flash.purge(tenant=ALICE.tenant)
        assert not [name for name, data in device.files.items() if FILTER_MAGIC in data]
        assert stored_numbers(flash, range(6)) == [3, 4, 5]
    with open_store(device) as again:
        assert stored_numbers(again, range(6)) == [3, 4, 5]


def test_purges_of_others_leave_the_open_segment_open() -> None:
    device = MemoryDevice()
    with open_store(device) as flash:
        for number in range(10):
            store(flash, [number], BOB)
            assert flash.purge(tenant=ALICE.tenant) == (0, 0)
        assert flash.num_segments == 1
        store(flash, [20], ALICE)
        assert flash.purge(tenant=ALICE.tenant)[0] == 1
        store(flash, [21], ALICE)
        assert flash.num_segments == 2
        assert stored_numbers(flash, range(30)) == [*range(10), 21]
        abandon(flash)
    with open_store(device) as again:
        assert stored_numbers(again, range(30)) == [*range(10), 21]


def test_many_purges_and_restarts_leave_a_bounded_number_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SHORT_SEGMENTS", 4)
    device = MemoryDevice()
    for number in range(40):
        with open_store(device) as flash:
            most = 2 * (flash.limit_bytes // flash.segment_bytes) + 4
            store(flash, [number], BOB)
            assert flash.num_segments <= most + 1
    assert stored_numbers(open_store(device), range(40))[-10:] == list(range(30, 40))

"""A full log writes over the file of the segment that it dropped last; nothing of what that held comes back."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hifc_ray import points
from hifc_ray.flash import FlashStore, MemoryDevice
from hifc_ray.flash.format import hint_of, segment_of
from hifc_ray.stats import Stats
from hifc_ray.types import Tier
from tests.fakes.flash import FaultyDevice, abandon, blocks, config, key, open_store, stored_numbers

PER_SEGMENT = 20

pytestmark = pytest.mark.timeout(60)


class CountingDevice(MemoryDevice):
    """Knows how often an extent was allocated, and how often one was taken over."""

    def __init__(self) -> None:
        super().__init__()
        self.created = self.reused = 0

    def create(self, name: str, size_bytes: int):  # type: ignore[no-untyped-def]
        self.created += 1
        return super().create(name, size_bytes)

    def reuse(self, old: str, new: str, size_bytes: int):  # type: ignore[no-untyped-def]
        self.reused += 1
        return super().reuse(old, new, size_bytes)


@pytest.fixture
def device() -> CountingDevice:
    return CountingDevice()


@pytest.fixture
def full(device: CountingDevice) -> Iterator[FlashStore]:
    """Filled twice over, a segment at a time."""
    with open_store(device) as store:
        fill(store, 12)
        yield store


def fill(store: FlashStore, num_segments: int, first: int = 0) -> None:
    for number in range(first, first + num_segments):
        store.append(blocks(range(number * PER_SEGMENT, (number + 1) * PER_SEGMENT)))


def test_a_full_log_allocates_nothing(device: CountingDevice, full: FlashStore) -> None:
    created = device.created
    fill(full, 6, 12)
    assert device.created == created
    assert device.reused >= 6


def test_what_lies_on_the_device_never_exceeds_the_limit(device: CountingDevice, full: FlashStore) -> None:
    for number in range(12, 20):
        fill(full, 1, number)
        assert sum(device.sizes().values()) <= full.used_bytes <= full.limit_bytes


def test_after_a_kill_in_a_reused_file_only_new_blocks_are_found_in_it(
    device: CountingDevice, full: FlashStore
) -> None:
    full.append(blocks(range(240, 245)))
    known = stored_numbers(full, range(260))
    abandon(full)
    stats = Stats()
    with open_store(device, stats) as store:
        assert stored_numbers(store, range(260)) == known
        assert (store.recovered.num_scanned, store.recovered.num_cut) == (1, 0)
    assert stats.get("corrupt", tier=Tier.FLASH) == 0


@pytest.mark.parametrize("point", ["flash.drop.hint", "flash.drop.blank", "flash.segment.renamed"])
def test_a_kill_on_the_way_loses_no_more_than_the_segment_that_goes(
    device: CountingDevice, full: FlashStore, point: str
) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    newest = set(range(200, 240))
    with points.at(point, kill), pytest.raises(Killed):
        fill(full, 6, 12)
    abandon(full)
    with open_store(device) as store:
        assert newest <= set(stored_numbers(store, range(400)))
        fill(store, 6, 30)
        assert set(range(680, 720)) <= set(stored_numbers(store, range(600, 720)))


def test_a_closed_store_leaves_no_spare_file(device: CountingDevice, full: FlashStore) -> None:
    full.close()
    named = {segment_of(name) for name in device.sizes()} - {None}
    assert len(named) == sum(hint_of(name) is not None for name in device.sizes())
    with open_store(device) as store:
        assert store.recovered.num_removed == 0


def test_a_small_file_takes_the_room_of_the_spare(device: CountingDevice, full: FlashStore) -> None:
    volume = full.volumes[0]
    room = volume.log.limit_bytes - volume.log.used_bytes
    volume.files.put("state.checkpoint", bytes(room + 4096))
    assert sum(device.sizes().values()) <= full.limit_bytes
    fill(full, 3, 12)
    assert set(range(260, 300)) <= set(stored_numbers(full, range(300)))


def test_a_file_that_cannot_be_taken_over_goes_and_a_new_one_is_made() -> None:
    memory = CountingDevice()
    device = FaultyDevice(memory)

    def refuse() -> None:
        raise OSError(errno.EIO, "injected")

    with open_store(device) as store:
        fill(store, 12)
        device.on_create = refuse
        with pytest.raises(OSError, match="injected"):
            fill(store, 2, 12)
        device.on_create = lambda: None
        assert sum(memory.sizes().values()) <= store.used_bytes <= store.limit_bytes
        fill(store, 4, 14)
        assert key(350) in store


def test_a_file_of_another_size_is_not_kept(device: CountingDevice, full: FlashStore) -> None:
    full.close()
    small = config(num_segments=12)
    half = replace(small, segment_bytes=small.segment_bytes * 2)
    with FlashStore(half, 3 * 4096, Stats(), devices=[device]) as store:
        fill(store, 12, 12)
        assert sum(device.sizes().values()) <= store.used_bytes <= store.limit_bytes
        assert set(range(400, 480)) <= set(stored_numbers(store, range(480)))

"""What every device promises: in a directory, in memory, and with no fault planned."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from hifc_ray.errors import DirectoryLocked
from hifc_ray.flash import Device, FaultyDevice, FileDevice, MemoryDevice
from hifc_ray.flash.device import METADATA_BYTES, pages
from hifc_ray.flash.format import LOCK_NAME

EXTENT = "0000000000000001.segment"
OTHER = "0000000000000002.segment"
HINT = "0000000000000001.hint"
SIZE = 16 * 4096


@pytest.fixture(params=["file", "memory", "faulty"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Device]:
    """Opens the same device again, as another process would."""
    if request.param == "file":
        return lambda: FileDevice(tmp_path)
    if request.param == "faulty":
        return lambda: FaultyDevice(FileDevice(tmp_path))
    memory = MemoryDevice()
    return lambda: memory


@pytest.fixture
def device(reopen: Callable[[], Device]) -> Device:
    return reopen()


def filled(byte: int, size: int = 4096) -> memoryview:
    view = pages(size)
    view[:] = bytes([byte]) * size
    return view


def test_a_new_extent_is_whole_and_reads_as_zeros(device: Device) -> None:
    extent = device.create(EXTENT, SIZE)
    out = filled(1, SIZE)
    assert extent.size_bytes == SIZE
    assert extent.preadv([out], 0) == SIZE
    assert not any(out)
    assert SIZE <= device.sizes()[EXTENT] <= SIZE + METADATA_BYTES
    extent.close()


def test_what_is_written_from_several_buffers_is_read_into_several(reopen: Callable[[], Device]) -> None:
    extent = reopen().create(EXTENT, SIZE)
    assert extent.pwritev([filled(1), filled(2, 8192)], 4096) == 3 * 4096
    extent.close()
    again = reopen().open(EXTENT)
    first, second = pages(8192), pages(4096)
    assert again.preadv([first, second], 4096) == 3 * 4096
    assert bytes(first) + bytes(second) == b"\1" * 4096 + b"\2" * 8192
    again.close()


def test_reading_beyond_the_end_is_short(device: Device) -> None:
    extent = device.create(EXTENT, SIZE)
    assert extent.preadv([pages(8192)], SIZE - 4096) == 4096
    assert extent.preadv([pages(4096)], SIZE) == 0
    extent.close()


def test_truncate_gives_the_rest_back(device: Device) -> None:
    extent = device.create(EXTENT, SIZE)
    extent.pwritev([filled(7)], 0)
    extent.truncate(4096)
    assert extent.size_bytes == 4096
    assert device.sizes()[EXTENT] <= 4096 + METADATA_BYTES
    extent.close()


def test_an_open_extent_outlives_its_name(device: Device) -> None:
    extent = device.create(EXTENT, SIZE)
    extent.pwritev([filled(9)], 0)
    device.delete(EXTENT)
    out = pages(4096)
    assert extent.preadv([out], 0) == 4096
    assert bytes(out) == b"\x09" * 4096
    assert EXTENT not in device.sizes()
    extent.close()


def test_a_reused_extent_has_its_new_name_and_size_and_its_old_bytes(device: Device) -> None:
    extent = device.create(EXTENT, SIZE)
    extent.pwritev([filled(9), filled(8)], 0)
    extent.truncate(8192)
    extent.close()
    for size in (SIZE, 4096):
        again = device.reuse(EXTENT, OTHER, size)
        out = filled(1, size)
        assert again.size_bytes == again.preadv([out], 0) == size
        assert bytes(out) == (b"\x09" * 4096 + b"\x08" * 4096 + bytes(SIZE))[:size]
        again.close()
        assert EXTENT not in device.sizes()
        assert size <= device.sizes()[OTHER] <= size + METADATA_BYTES
        device.reuse(OTHER, EXTENT, size).close()


def test_reuse_never_takes_over_another_extent(device: Device) -> None:
    for name in (EXTENT, OTHER):
        device.create(name, SIZE).close()
    with pytest.raises(FileExistsError):
        device.reuse(EXTENT, OTHER, SIZE)
    assert {EXTENT, OTHER} <= device.sizes().keys()
    with pytest.raises(FileNotFoundError):
        device.reuse("0000000000000003.segment", "0000000000000004.segment", SIZE)


def test_deleting_what_is_not_there_does_nothing(device: Device) -> None:
    device.delete(EXTENT)


def test_create_never_takes_over_an_extent(device: Device) -> None:
    device.create(EXTENT, SIZE).close()
    with pytest.raises(FileExistsError):
        device.create(EXTENT, SIZE)
    device.open(EXTENT).close()


def test_opening_what_is_not_there(device: Device) -> None:
    with pytest.raises(FileNotFoundError):
        device.open(EXTENT)
    with pytest.raises(FileNotFoundError):
        device.get(HINT)


def test_an_extent_that_does_not_fit_leaves_nothing(device: Device) -> None:
    with pytest.raises(OSError) as caught:
        device.create(EXTENT, device.free_bytes() + (1 << 30))
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert EXTENT not in device.sizes()


def test_room_is_part_of_capacity(device: Device) -> None:
    device.create(EXTENT, SIZE).close()
    assert SIZE <= device.free_bytes() + SIZE <= device.capacity_bytes()


def test_a_small_file_is_replaced_whole(reopen: Callable[[], Device]) -> None:
    reopen().put(HINT, b"first, and longer")
    reopen().put(HINT, b"second")
    assert reopen().get(HINT) == b"second"
    assert set(reopen().sizes()) == {HINT}


def test_one_owner_at_a_time(reopen: Callable[[], Device]) -> None:
    first, second = reopen(), reopen()
    first.lock()
    with pytest.raises(DirectoryLocked, match="allowed"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()
    assert LOCK_NAME in second.sizes()

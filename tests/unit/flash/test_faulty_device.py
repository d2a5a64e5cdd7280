from __future__ import annotations

import errno
import threading

import pytest

from hifc_ray.flash import Extent, MemoryDevice
from hifc_ray.flash.device import pages
from hifc_ray.flash.faulty_device import FaultyDevice, Op

EXTENT = "0000000000000001.segment"
HINT = "0000000000000001.hint"
PAGE = 4096


@pytest.fixture
def device() -> FaultyDevice:
    return FaultyDevice(MemoryDevice())


@pytest.fixture
def extent(device: FaultyDevice) -> Extent:
    return device.create(EXTENT, 8 * PAGE)


def filled(byte: int, num_pages: int = 1) -> memoryview:
    view = pages(num_pages * PAGE)
    view[:] = bytes([byte]) * len(view)
    return view


def content(device: FaultyDevice) -> bytes:
    assert isinstance(device.inner, MemoryDevice)
    return bytes(device.inner.files[EXTENT])


def call(device: FaultyDevice, extent: Extent, op: Op) -> object:
    calls = {
        "read": lambda: extent.preadv([pages(PAGE)], 0),
        "write": lambda: extent.pwritev([pages(PAGE)], 0),
        "sync": extent.sync,
        "truncate": lambda: extent.truncate(4 * PAGE),
        "create": lambda: device.create("0000000000000002.segment", PAGE),
        "open": lambda: device.open(EXTENT),
        "put": lambda: device.put(HINT, b"hint"),
        "get": lambda: device.get(HINT),
        "delete": lambda: device.delete(HINT),
    }
    return calls[op]()


OPS: tuple[Op, ...] = ("read", "write", "sync", "truncate", "create", "open", "put", "get", "delete")


@pytest.mark.parametrize("op", OPS)
def test_any_call_can_fail_and_then_does_nothing(device: FaultyDevice, extent: Extent, op: Op) -> None:
    device.put(HINT, b"before")
    inner = device.inner
    assert isinstance(inner, MemoryDevice)
    before = {name: bytes(data) for name, data in inner.files.items()}
    device.fail(op, errno.EROFS)
    with pytest.raises(OSError, match="Read-only") as caught:
        call(device, extent, op)
    assert caught.value.errno == errno.EROFS
    assert inner.files == before
    call(device, extent, op)
    assert device.calls[op] == 2 + (op in ("create", "put"))


def test_count_and_after_say_which_calls(device: FaultyDevice, extent: Extent) -> None:
    device.fail("read", count=2, after=1)
    struck = []
    for number in range(5):
        try:
            extent.preadv([pages(PAGE)], 0)
        except OSError as error:
            struck.append((number, error.errno))
    assert struck == [(1, errno.EIO), (2, errno.EIO)]


def test_no_space_lasts_until_it_is_healed(device: FaultyDevice, extent: Extent) -> None:
    device.no_space()
    for op in ("write", "create", "put", "write"):
        with pytest.raises(OSError, match="No space"):
            call(device, extent, op)  # type: ignore[arg-type]
    call(device, extent, "read")
    device.heal()
    for op in ("write", "create", "put"):
        call(device, extent, op)  # type: ignore[arg-type]


def test_a_short_write_leaves_the_rest_of_the_extent(device: FaultyDevice, extent: Extent) -> None:
    extent.pwritev([filled(1, 8)], 0)
    device.short("write", 2 * PAGE)
    assert extent.pwritev([filled(2), filled(3, 3)], PAGE) == 2 * PAGE
    assert content(device) == bytes(filled(1)) + bytes(filled(2)) + bytes(filled(3)) + bytes(filled(1, 5))
    assert extent.pwritev([filled(4)], 0) == PAGE


def test_a_short_read_leaves_the_rest_of_the_buffers(device: FaultyDevice, extent: Extent) -> None:
    extent.pwritev([filled(1, 8)], 0)
    device.short("read", PAGE)
    first, second = filled(9, 2), filled(9)
    assert extent.preadv([first, second], 0) == PAGE
    assert bytes(first) + bytes(second) == bytes(filled(1)) + bytes(filled(9, 2))
    device.short("read", 0)
    assert extent.preadv([first], 0) == 0
    with pytest.raises(ValueError, match="allowed: whole pages"):
        device.short("read", 100)


def test_a_slow_call_sleeps_first() -> None:
    slept: list[float] = []
    device = FaultyDevice(MemoryDevice(), slept.append)
    extent = device.create(EXTENT, PAGE)
    device.slow("read", 0.25)
    for _ in range(3):
        extent.preadv([pages(PAGE)], 0)
    extent.pwritev([pages(PAGE)], 0)
    assert slept == [0.25] * 3


@pytest.mark.timeout(30)
def test_a_hanging_read_returns_late_with_its_bytes(device: FaultyDevice, extent: Extent) -> None:
    extent.pwritev([filled(5)], 0)
    out = filled(0)
    with device.hang("read") as hang:
        thread = threading.Thread(target=extent.preadv, args=([out], 0))
        thread.start()
        assert hang.entered.wait(20)
        assert thread.is_alive()
        assert not any(out)
        assert extent.preadv([filled(0)], 0) == PAGE  # only one was to hang
        hang.let_go()
        thread.join(20)
        assert not thread.is_alive()
    assert bytes(out) == bytes(filled(5))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("way", ["leaving", "healing"])
def test_nothing_hangs_for_ever(device: FaultyDevice, extent: Extent, way: str) -> None:
    with device.hang("sync", count=None) as hang:
        threads = [threading.Thread(target=extent.sync) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert hang.entered.wait(20)
        if way == "healing":
            device.heal()
            for thread in threads:
                thread.join(20)
    for thread in threads:
        thread.join(20)
    extent.sync()


def test_a_byte_flips_on_the_way_in_and_nobody_says_so(device: FaultyDevice, extent: Extent) -> None:
    mine = filled(0, 2)
    device.corrupt("write", offset=3 * PAGE + 7)
    extent.pwritev([filled(0)], 0)  # does not cover it
    assert extent.pwritev([filled(0), mine], 2 * PAGE) == 3 * PAGE
    assert not any(mine), "the caller's buffer is not touched"
    assert [at for at, byte in enumerate(content(device)) if byte] == [3 * PAGE + 7]


def test_a_byte_flips_on_the_way_out_and_is_well_on_the_device(device: FaultyDevice, extent: Extent) -> None:
    device.corrupt("read", offset=PAGE, count=1)
    first, second = filled(0), filled(0)
    assert extent.preadv([first, second], 0) == 2 * PAGE
    assert (bytes(first), second[0], any(second[1:])) == (bytes(PAGE), 0xFF, False)
    assert not any(content(device))
    extent.preadv([second], PAGE)
    assert not any(second)


def test_small_files_flip_too(device: FaultyDevice) -> None:
    device.corrupt("put", offset=1)
    device.put(HINT, b"\0\0")
    assert device.get(HINT) == b"\0\xff"
    device.corrupt("get", offset=0)
    assert device.get(HINT) == b"\xff\xff"
    assert device.get(HINT) == b"\0\xff"

"""Each guard of flash alone: bytes that only this guard can tell from good ones are never served."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hifc_ray.errors import CorruptRecord
from hifc_ray.flash import Extent, FaultyDevice, FlashStore, MemoryDevice
from hifc_ray.flash.device import pages
from hifc_ray.flash.format import hint_name, put_checksum, segment_name
from hifc_ray.flash.memory_device import MemoryExtent
from hifc_ray.flash.record import read_header, write_header
from hifc_ray.stats import Stats
from hifc_ray.types import Fate, Tier
from tests.fakes.flash import (
    BLOCK_BYTES,
    NUM_STRIPES,
    OURS,
    RECORD_BYTES,
    STRIPE_BYTES,
    THEIRS,
    abandon,
    block,
    blocks,
    key,
    load,
    open_store,
    payload,
    stored_numbers,
)

pytestmark = pytest.mark.timeout(60)


class BadPage(MemoryDevice):
    """What another device holds, but for a page of a file, which cannot be read."""

    def __init__(self, inner: MemoryDevice, name: str, offset: int) -> None:
        super().__init__()
        self.files = inner.files
        self._bad = name, offset

    def open(self, name: str) -> Extent:
        return BadExtent(self.files[name], self._bad[1]) if name == self._bad[0] else super().open(name)


class BadExtent(MemoryExtent):
    def __init__(self, data: bytearray, bad: int) -> None:
        super().__init__(data)
        self._bad = bad

    def preadv(self, buffers: Sequence[memoryview], offset: int) -> int:
        if offset <= self._bad < offset + sum(map(len, buffers)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().preadv(buffers, offset)


SEGMENT = segment_name(1)


def start_of(row: int) -> int:
    """Offset of the record of a block that was appended as number `row` of its segment."""
    return 4096 + row * RECORD_BYTES


def flip(device: MemoryDevice, name: str, byte: int, bit: int = 0) -> None:
    device.files[name][byte] ^= 1 << bit


def rewrite_header(device: MemoryDevice, row: int, **changes: Any) -> None:
    """A header with other contents and a checksum that holds."""
    old = pages(4096)
    old[:] = device.files[SEGMENT][start_of(row) : start_of(row) + 4096]
    new = pages(4096)
    write_header(replace(read_header(old), **changes), new)
    device.files[SEGMENT][start_of(row) : start_of(row) + 4096] = new


def sealed(device: MemoryDevice, numbers: range = range(5)) -> None:
    with open_store(device) as store:
        store.append(blocks(numbers))


def assert_refused(store: FlashStore, stats: Stats, number: int, reason: str) -> None:
    """The block is corrupt for this reason, counted once, and then it is simply not here; the others are."""
    with pytest.raises(CorruptRecord, match=reason):
        load(store, number)
    assert stats.get("corrupt", tier=Tier.FLASH) == stats.get("corrupt", tier=Tier.FLASH, reason=reason) == 1
    assert store.locate([key(number)]) == [None]
    assert store.fate(key(number)) is Fate.CORRUPT
    assert stored_numbers(store, range(5)) == [other for other in range(5) if other != number]


@pytest.mark.parametrize("stripe", range(NUM_STRIPES))
@pytest.mark.parametrize("at", [0, 2048, STRIPE_BYTES - 1])
def test_a_flipped_bit_in_any_stripe(stripe: int, at: int) -> None:
    device, stats = MemoryDevice(), Stats()
    sealed(device)
    flip(device, SEGMENT, start_of(2) + 4096 + stripe * STRIPE_BYTES + at, bit=at % 8)
    with open_store(device, stats) as store:
        assert_refused(store, stats, 2, "stripe")


@pytest.mark.parametrize("byte", [0, 8, 12, 16, 20, 28, 40, 60, 90, 110, 150, 180, 230, 4000, 4095])
def test_a_flipped_bit_anywhere_in_a_header(byte: int) -> None:
    device, stats = MemoryDevice(), Stats()
    sealed(device)
    flip(device, SEGMENT, start_of(2) + byte, bit=byte % 8)
    with open_store(device, stats) as store:
        assert_refused(store, stats, 2, "header")


def test_a_header_without_our_magic() -> None:
    device, stats = MemoryDevice(), Stats()
    sealed(device)
    header = memoryview(device.files[SEGMENT])[start_of(2) : start_of(2) + 4096]
    header[:8] = b"SOMEBODY"
    put_checksum(header)
    header.release()
    with open_store(device, stats) as store:
        assert_refused(store, stats, 2, "header")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"keys": (key(99),)}, "key"),
        ({"keys": (bytes(31) + b"x",)}, "key"),
        ({"keys": (key(2)[:31] + bytes([key(2)[31] ^ 1]),)}, "key"),
        ({"keys": (key(2), key(3)), "positions": (2, 3), "num_stripes": 1}, "header"),
        ({"namespace": THEIRS}, "namespace"),
        ({"segment": 2}, "segment"),
        ({"segment_uuid": b"u" * 16}, "segment"),
        ({"offset": start_of(3)}, "segment"),
        ({"codec": 9}, "header"),
    ],
)
def test_a_whole_header_of_something_else(changes: dict[str, Any], reason: str) -> None:
    device, stats = MemoryDevice(), Stats()
    sealed(device)
    rewrite_header(device, 2, **changes)
    with open_store(device, stats) as store:
        assert_refused(store, stats, 2, reason)


def test_a_header_of_a_shorter_block() -> None:
    device, stats = MemoryDevice(), Stats()
    sealed(device)
    old = pages(4096)
    old[:] = device.files[SEGMENT][start_of(2) : start_of(2) + 4096]
    stripes = read_header(old).stripes[:2]
    rewrite_header(device, 2, num_stripes=2, stripes=stripes, payload_bytes=2 * STRIPE_BYTES)
    with open_store(device, stats) as store:
        assert_refused(store, stats, 2, "header")


def test_the_same_block_out_of_another_segment() -> None:
    """Key, namespace, sequence and offset are right, and every checksum holds: only the uuid tells."""
    device, other, stats = MemoryDevice(), MemoryDevice(), Stats()
    sealed(device)
    with open_store(other) as store:
        store.append([block(number, salt=1) for number in range(5)])
    span = slice(start_of(2), start_of(3))
    device.files[SEGMENT][span] = other.files[SEGMENT][span]
    with open_store(device, stats) as store:
        assert_refused(store, stats, 2, "segment")


def test_records_that_changed_places() -> None:
    device, stats = MemoryDevice(), Stats()
    sealed(device)
    data, (a, b, c) = device.files[SEGMENT], (start_of(1), start_of(2), start_of(3))
    data[a:c] = data[b:c] + data[a:b]
    with open_store(device, stats) as store:
        for number in (1, 2):
            with pytest.raises(CorruptRecord, match="key"):
                load(store, number)
        assert stored_numbers(store, range(5)) == [0, 3, 4]


def test_asking_in_the_name_of_another_model() -> None:
    stats = Stats()
    with open_store(MemoryDevice(), stats) as store:
        (address,) = store.append([block(1)])
        with pytest.raises(CorruptRecord, match="namespace"):
            store.read(key(1), THEIRS, address, pages(BLOCK_BYTES))
        assert stats.get("corrupt", tier=Tier.FLASH, reason="namespace") == 1


def test_a_flipped_bit_in_a_hint_costs_a_scan_and_no_block() -> None:
    size = len(sealed_hint())
    for byte in range(0, size, 5):
        device, stats = MemoryDevice(), Stats()
        sealed(device)
        flip(device, hint_name(1), byte, bit=byte % 8)
        with open_store(device, stats) as store:
            assert (store.recovered.num_hinted, store.recovered.num_scanned) == (0, 1)
            assert stats.get("corrupt", tier=Tier.FLASH, reason="hint") == 1
            assert stored_numbers(store, range(5)) == list(range(5))


def sealed_hint() -> bytearray:
    device = MemoryDevice()
    sealed(device)
    return device.files[hint_name(1)]


def test_a_hint_copied_from_another_segment_is_not_believed() -> None:
    device, stats = MemoryDevice(), Stats()
    with open_store(device) as store:
        store.append(blocks(range(5)))
        store.seal()
        store.append(blocks(range(5, 10)))
    device.files[hint_name(2)] = bytearray(device.files[hint_name(1)])
    with open_store(device, stats) as store:
        assert (store.recovered.num_hinted, store.recovered.num_scanned) == (1, 1)
        assert stored_numbers(store, range(10)) == list(range(10))
    assert stats.get("corrupt", tier=Tier.FLASH) == stats.get("corrupt", tier=Tier.FLASH, reason="hint") == 1


def test_the_hint_of_an_earlier_life_of_the_directory_is_not_believed() -> None:
    device, stats = MemoryDevice(), Stats()
    with open_store(device) as store:
        store.append(blocks(range(10, 15)))
    old_hint = device.files[hint_name(1)]
    device.files.clear()
    sealed(device)
    device.files[hint_name(1)] = old_hint
    with open_store(device, stats) as store:
        assert store.recovered.num_scanned == 1
        assert stored_numbers(store, range(15)) == list(range(5))


@pytest.mark.parametrize("byte", [0, 5, 8, 11, 12, 16, 31, 32, 33, 40, 47, 100, 4088, 4095])
def test_a_flipped_bit_in_a_segment_header(byte: int) -> None:
    device, stats = MemoryDevice(), Stats()
    with open_store(device) as store:
        store.append(blocks(range(5)))
        store.seal()
        store.append(blocks(range(5, 10)))
    flip(device, SEGMENT, byte, bit=byte % 8)
    with open_store(device, stats) as store:
        assert stored_numbers(store, range(10)) == list(range(5, 10))
        assert stats.get("corrupt", tier=Tier.FLASH, reason="segment") == 1
        assert store.recovered.num_cut == 1
        cut_bytes = start_of(5) + 4096  # with its filter
        assert store.recovered.cut_bytes == stats.get("cut_bytes", tier=Tier.FLASH) == cut_bytes


def test_a_segment_under_the_name_of_another() -> None:
    device, stats = MemoryDevice(), Stats()
    with open_store(device) as store:
        store.append(blocks(range(5)))
        store.seal()
        store.append(blocks(range(5, 10)))
    device.files[SEGMENT] = bytearray(device.files[segment_name(2)])
    with open_store(device, stats) as store:
        assert stored_numbers(store, range(10)) == list(range(5, 10))
        assert stats.get("corrupt", tier=Tier.FLASH, reason="segment") == 1


def cut_off(data: bytearray) -> None:
    del data[start_of(5) - 100 :]


def zero(data: bytearray) -> None:
    data[start_of(4) : start_of(5)] = bytes(RECORD_BYTES)


def zero_payload_end(data: bytearray) -> None:
    data[start_of(5) - 512 : start_of(5)] = bytes(512)


def garbage(data: bytearray) -> None:
    data[start_of(4) : start_of(5)] = payload(7) + payload(8)[: RECORD_BYTES - BLOCK_BYTES]


def garbage_payload(data: bytearray) -> None:
    data[start_of(4) + 4096 : start_of(5)] = payload(9)


def header_only(data: bytearray) -> None:
    data[start_of(4) + 4096 : start_of(5)] = bytes(BLOCK_BYTES)


@pytest.mark.parametrize("tear", [cut_off, zero, zero_payload_end, garbage, garbage_payload, header_only])
def test_a_torn_tail_is_cut_and_never_served(tear: Callable[[bytearray], None]) -> None:
    device, stats = MemoryDevice(), Stats()
    store = open_store(device)
    store.append(blocks(range(5)))
    abandon(store)
    tear(device.files[SEGMENT])
    with open_store(device, stats) as store:
        assert store.locate([key(4)]) == [None]
        assert stored_numbers(store, range(5)) == [0, 1, 2, 3]
        assert len(device.files[SEGMENT]) == start_of(4) + 4096  # with its filter
        cut = tear not in (zero, garbage)  # which hold nothing that looks like a record
        assert store.recovered.num_cut == cut
        assert (stats.get("cut_bytes", tier=Tier.FLASH) > 0) == cut
        store.append([block(4)])
        assert load(store, 4) == payload(4)


@pytest.mark.parametrize("tear", [zero, garbage, garbage_payload, header_only])
@pytest.mark.parametrize("row", range(5))
def test_a_record_that_does_not_hold_costs_only_itself(row: int, tear: Callable[[bytearray], None]) -> None:
    device = MemoryDevice()
    store = open_store(device)
    store.append(blocks(range(5)))
    abandon(store)
    torn = bytearray(device.files[SEGMENT])
    tear(torn)
    device.files[SEGMENT][start_of(row) : start_of(row + 1)] = torn[start_of(4) : start_of(5)]
    with open_store(device) as store:
        assert stored_numbers(store, range(5)) == [other for other in range(5) if other != row]


def test_a_corrupt_hint_and_a_corrupt_record_cost_only_that_record() -> None:
    device, stats = MemoryDevice(), Stats()
    sealed(device)
    flip(device, hint_name(1), 50)
    flip(device, SEGMENT, start_of(2) + 5000)
    with open_store(device, stats) as store:
        assert (store.recovered.num_hinted, store.recovered.num_scanned, store.recovered.num_cut) == (0, 1, 1)
        assert stored_numbers(store, range(5)) == [0, 1, 3, 4]
    with open_store(device) as store:
        assert (store.recovered.num_hinted, store.recovered.num_scanned) == (1, 0)
        assert stored_numbers(store, range(5)) == [0, 1, 3, 4]


def test_a_page_that_cannot_be_read_costs_a_scan_only_its_own_record() -> None:
    memory = MemoryDevice()
    store = open_store(memory)
    store.append(blocks(range(5)))
    abandon(store)
    with open_store(BadPage(memory, SEGMENT, start_of(2))) as store:
        assert stored_numbers(store, range(5)) == [0, 1, 3, 4]


def test_a_scan_takes_no_record_of_another_segment() -> None:
    device, other = MemoryDevice(), MemoryDevice()
    for each in (device, other):
        store = open_store(each)
        store.append(blocks(range(5)))
        abandon(store)
    device.files[SEGMENT][start_of(3) : start_of(4)] = other.files[SEGMENT][start_of(3) : start_of(4)]
    with open_store(device) as store:
        assert stored_numbers(store, range(5)) == [0, 1, 2, 4]


@pytest.mark.parametrize("pages_written", [1, 4, 8, 11])
def test_what_a_failed_write_left_behind_is_not_found_by_a_restart(pages_written: int) -> None:
    """The device wrote some of three records and then failed; what is stored next goes behind them."""
    memory = MemoryDevice()
    device = FaultyDevice(memory)
    store = open_store(device)
    store.append([block(0)])
    device.short("write", pages_written * 4096)
    with pytest.raises(OSError, match="wrote"):
        store.append(blocks([1, 2, 3]))
    assert stored_numbers(store, range(5)) == [0]
    store.append([block(4)])
    abandon(store)
    with open_store(memory) as store:
        assert stored_numbers(store, range(5)) == [0, 4]


@pytest.mark.parametrize("moved", [0, 4096, RECORD_BYTES - 4096])
def test_a_short_read_is_an_error_and_the_block_stays(moved: int) -> None:
    device = FaultyDevice(MemoryDevice())
    with open_store(device) as store:
        store.append([block(1)])
        device.short("read", moved)
        with pytest.raises(OSError, match=f"read {moved} of {RECORD_BYTES} bytes"):
            load(store, 1)
        assert load(store, 1) == payload(1)


def test_a_read_error_is_an_error_and_the_block_stays() -> None:
    stats = Stats()
    device = FaultyDevice(MemoryDevice())
    with open_store(device, stats) as store:
        store.append([block(1)])
        device.fail("read")
        with pytest.raises(OSError, match="Input/output"):
            load(store, 1)
        assert load(store, 1) == payload(1)
        assert stats.get("corrupt") == 0
        assert store.namespaces() == {OURS: 1}


def test_a_block_that_failed_may_be_stored_again() -> None:
    device = MemoryDevice()
    with open_store(device) as store:
        store.append(blocks(range(5)))
        flip(device, SEGMENT, start_of(2) + 5000)
        with pytest.raises(CorruptRecord):
            load(store, 2)
        store.append([block(2)])
        assert load(store, 2) == payload(2)
    with open_store(device) as store:
        assert stored_numbers(store, range(5)) == list(range(5))


def test_a_block_on_a_bad_page_goes_and_its_device_stays() -> None:
    device = FaultyDevice(MemoryDevice())
    with open_store(device, max_faults=4) as store:
        store.append(blocks(range(30)))
        for _ in range(10):
            if key(5) in store:
                device.fail("read", count=1)
                with pytest.raises(OSError, match="Input/output"):
                    load(store, 5)
            assert stored_numbers(store, [6, 29]) == [6, 29]
        assert key(5) not in store
        assert store.volumes[0].state == "ok"

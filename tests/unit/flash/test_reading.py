from __future__ import annotations

import numpy as np
import pytest

from hifc_ray import points
from hifc_ray.errors import CorruptRecord, StaleAddress
from hifc_ray.flash import BlockRead, FaultyDevice, FlashStore, MemoryDevice, merge
from hifc_ray.flash.address import Address, Place, pack, segment_number
from hifc_ray.flash.device import pages
from hifc_ray.flash.format import segment_name
from hifc_ray.stats import Stats
from hifc_ray.types import Fate, Tier
from tests.fakes.flash import (
    BLOCK_BYTES,
    NUM_STRIPES,
    OURS,
    RECORD_BYTES,
    STRIPE_BYTES,
    THEIRS,
    block,
    blocks,
    key,
    load,
    open_store,
    payload,
    stored_numbers,
)

pytestmark = pytest.mark.timeout(60)

MIB = 1 << 20


def at(segment: int, first_page: int, payload_pages: int = 3) -> Address:
    return pack(Place(segment, first_page * 4096, 4096, payload_pages * 4096))


@pytest.mark.parametrize(
    ("addresses", "groups"),
    [
        ([], []),
        ([at(1, 1)], [[0]]),
        ([at(1, 1), at(1, 5), at(1, 9)], [[0, 1, 2]]),
        ([at(1, 9), at(1, 5), at(1, 1)], [[2, 1, 0]]),  # read in the order in which they lie
        ([at(1, 1), at(1, 9), at(1, 5)], [[0, 2, 1]]),
        ([at(1, 1), at(1, 6)], [[0], [1]]),  # a page lies between them
        ([at(1, 1), at(2, 5)], [[0], [1]]),
        ([at(segment_number(1, 1), 1), at(segment_number(2, 1), 5)], [[0], [1]]),
        ([at(2, 1), at(1, 1), at(2, 5), at(1, 5)], [[0, 2], [1, 3]]),  # groups in the order of their first use
        ([at(1, 5), at(2, 1), at(1, 1)], [[2, 0], [1]]),
        ([at(1, 1), at(1, 1)], [[0], [1]]),  # twice the same block
        ([at(1, 1, 1023), at(1, 1025, 1023)], [[0, 1]]),  # 8 MiB together
        ([at(1, 1, 1023), at(1, 1025, 1024)], [[0], [1]]),
        ([at(1, 1, 4000), at(1, 4002)], [[0], [1]]),
        ([at(1, 1, 1023), at(1, 1025, 1023), at(1, 2049), at(1, 2053)], [[0, 1], [2, 3]]),
    ],
)
def test_neighbours_are_read_together(addresses: list[Address], groups: list[list[int]]) -> None:
    assert merge(addresses) == groups


def test_no_group_has_more_buffers_than_one_preadv_takes() -> None:
    groups = merge([at(1, 1 + 2 * row, 1) for row in range(1100)])
    assert [len(group) for group in groups] == [512, 512, 76]


def reads(store: FlashStore, numbers: range) -> list[BlockRead]:
    found = store.locate([key(number) for number in numbers])
    return [
        BlockRead(key(number), OURS, address, pages(BLOCK_BYTES))
        for number, address in zip(numbers, found, strict=True)
        if address is not None
    ]


def test_a_run_is_one_read_of_the_device_straight_into_place() -> None:
    device = FaultyDevice(MemoryDevice())
    with open_store(device) as store:
        store.append(blocks(range(8)))
        run = reads(store, range(8))
        before = device.calls["read"]
        assert store.read_run(run) == [BLOCK_BYTES] * 8
        assert device.calls["read"] == before + 1
        assert [bytes(read.out) for read in run] == [payload(number) for number in range(8)]


def test_a_bad_block_among_neighbours_costs_only_itself() -> None:
    device, stats = MemoryDevice(), Stats()
    with open_store(device, stats) as store:
        store.append(blocks(range(8)))
        device.files[segment_name(1)][4096 + 3 * RECORD_BYTES + 5000] ^= 1
        run = reads(store, range(8))
        results = store.read_run(run)
        assert isinstance(results[3], CorruptRecord)
        assert [result for row, result in enumerate(results) if row != 3] == [BLOCK_BYTES] * 7
        assert [bytes(read.out) == payload(number) for number, read in enumerate(run)].count(True) == 7
        assert store.fate(key(3)) is Fate.CORRUPT
        assert stored_numbers(store, range(8)) == [0, 1, 2, 4, 5, 6, 7]
        assert stats.get("corrupt", tier=Tier.FLASH) == 1
        assert [fault.offset for fault in store.volumes[0].quarantine.all()] == [4096 + 3 * RECORD_BYTES]


def test_a_page_that_cannot_be_read_costs_only_its_block() -> None:
    """The device says no to the whole run and then to one block of it."""
    device = FaultyDevice(MemoryDevice())
    with open_store(device) as store:
        store.append(blocks(range(4)))
        device.fail("read")
        device.fail("read", after=3)
        results = store.read_run(reads(store, range(4)))
        assert [isinstance(result, OSError) for result in results] == [False, False, True, False]
        assert stored_numbers(store, range(4)) == [0, 1, 2, 3]


def test_a_run_of_a_segment_that_is_gone_is_stale() -> None:
    with open_store(MemoryDevice()) as store:
        store.append(blocks(range(4)))
        run = reads(store, range(4))
        store.close()
        assert all(isinstance(result, StaleAddress) for result in store.read_run(run))


def test_stripes_come_in_any_order_and_any_number() -> None:
    with open_store(MemoryDevice()) as store:
        (address,) = store.append([block(1)])
        whole = payload(1)
        with store.stripes(key(1), OURS, address) as reader:
            for first in reversed(range(NUM_STRIPES)):
                for count in range(1, NUM_STRIPES - first + 1):
                    out = pages(NUM_STRIPES * STRIPE_BYTES)
                    reader.read(first, count, out)
                    wanted = whole[first * STRIPE_BYTES : (first + count) * STRIPE_BYTES]
                    assert bytes(out) == wanted.ljust(len(out), b"\0")


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 0), (0, 4), (3, 1), (2, 2), (0, -1)])
def test_stripes_that_a_block_does_not_have_are_refused(first: int, count: int) -> None:
    with open_store(MemoryDevice()) as store:
        (address,) = store.append([block(1)])
        with store.stripes(key(1), OURS, address) as reader, pytest.raises(ValueError, match="of 3"):
            reader.read(first, count, pages(BLOCK_BYTES))
        assert load(store, 1) == payload(1)


def test_a_buffer_too_short_for_its_stripes_is_refused() -> None:
    with open_store(MemoryDevice()) as store:
        (address,) = store.append([block(1)])
        with store.stripes(key(1), OURS, address) as reader, pytest.raises(ValueError, match="buffer of 4096"):
            reader.read(0, 2, pages(4096))


@pytest.mark.parametrize("bad", range(NUM_STRIPES))
def test_a_flipped_bit_in_one_stripe_spoils_only_reads_of_it_and_then_the_block_is_gone(bad: int) -> None:
    device, stats = MemoryDevice(), Stats()
    with open_store(device, stats) as store:
        (address,) = store.append([block(1)])
        device.files[segment_name(1)][8192 + bad * STRIPE_BYTES + 17] ^= 4
        out = pages(STRIPE_BYTES)
        for first in range(NUM_STRIPES):
            if first != bad:
                with store.stripes(key(1), OURS, address) as reader:
                    reader.read(first, 1, out)
                assert bytes(out) == payload(1)[first * STRIPE_BYTES :][:STRIPE_BYTES]
        with pytest.raises(CorruptRecord), store.stripes(key(1), OURS, address) as reader:
            reader.read(bad, 1, out)
        assert store.locate([key(1)]) == [None]
        assert stats.get("corrupt", tier=Tier.FLASH, reason="stripe") == 1


def test_stripes_of_another_key_or_namespace_are_refused() -> None:
    with open_store(MemoryDevice()) as store:
        first, _ = store.append(blocks([1, 2]))
        with pytest.raises(CorruptRecord, match="key"), store.stripes(key(2), OURS, first):
            raise AssertionError("no reader for the record of another key")
        with pytest.raises(CorruptRecord, match="namespace"), store.stripes(key(1), THEIRS, first):
            raise AssertionError("no reader for the record of another namespace")
        assert load(store, 2) == payload(2)


def test_stripes_of_a_segment_that_is_gone_are_stale() -> None:
    store = open_store(MemoryDevice())
    (address,) = store.append([block(1)])
    store.close()
    with pytest.raises(StaleAddress), store.stripes(key(1), OURS, address):
        raise AssertionError("no reader for a segment that is gone")


def test_a_segment_stays_while_its_stripes_are_read() -> None:
    with open_store(MemoryDevice()) as store:
        (address,) = store.append([block(0)])
        with store.stripes(key(0), OURS, address) as reader:
            store.append(blocks(range(1, 140)))
            out = pages(BLOCK_BYTES)
            reader.read(0, NUM_STRIPES, out)
            assert bytes(out) == payload(0)


def test_a_run_that_closes_under_way_still_gets_its_bytes() -> None:
    store = open_store(MemoryDevice())
    store.append(blocks(range(3)))
    run = reads(store, range(3))
    with points.at("flash.read.before", store.close):
        assert store.read_run(run) == [BLOCK_BYTES] * 3
    assert np.array_equal([bytes(read.out) for read in run], [payload(number) for number in range(3)])

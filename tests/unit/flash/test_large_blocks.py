"""A large block is written while it is checksummed, its header last: until then nothing of it counts."""

from __future__ import annotations

import errno
import hashlib

import numpy as np
import pytest

from hifc_ray import points
from hifc_ray.config import FlashConfig
from hifc_ray.flash import FlashBlock, FlashStore, MemoryDevice, record
from hifc_ray.flash.device import pages
from hifc_ray.stats import Stats
from hifc_ray.types import Key, Tier
from tests.fakes.flash import LAYOUT, OURS, FaultyDevice, abandon

STRIPE_BYTES, NUM_STRIPES = 256 << 10, 9
BLOCK_BYTES = STRIPE_BYTES * NUM_STRIPES

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _large_from_2_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_LARGE_BYTES", 2 << 20)


def key(number: int) -> Key:
    return Key(hashlib.blake2b(b"large %d" % number, digest_size=32).digest())


def large(number: int) -> FlashBlock:
    buffer = pages(BLOCK_BYTES)
    np.frombuffer(buffer, np.uint8)[:] = np.random.default_rng(number).integers(0, 256, BLOCK_BYTES, dtype=np.uint8)
    return FlashBlock(key(number), OURS, LAYOUT, STRIPE_BYTES, NUM_STRIPES, number, buffer)


def opened(device: MemoryDevice | FaultyDevice, stats: Stats | None = None) -> FlashStore:
    return FlashStore(FlashConfig(limit_bytes=512 << 20), BLOCK_BYTES, stats or Stats(), devices=[device])


def served(store: FlashStore, number: int) -> bool:
    (address,) = store.locate([key(number)])
    if address is None:
        return False
    out = pages(BLOCK_BYTES)
    store.read(key(number), OURS, address, out)
    assert out == large(number).buffer
    return True


def test_it_is_served_exactly_before_and_after_a_restart() -> None:
    device = MemoryDevice()
    with opened(device) as store:
        store.append([large(0)])
        store.append([large(1), large(2)])
        assert all(served(store, number) for number in range(3))
    with opened(device) as store:
        assert all(served(store, number) for number in range(3))


def test_a_kill_before_the_header_loses_this_block_only() -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    device, stats = MemoryDevice(), Stats()
    store = opened(device)
    store.append([large(0)])
    with points.at("flash.append.part", kill), pytest.raises(Killed):
        store.append([large(1)])
    store.append([large(2)])
    abandon(store)
    with opened(device, stats) as again:
        assert [served(again, number) for number in range(3)] == [True, False, True]
    assert stats.get("corrupt", tier=Tier.FLASH) == 0


@pytest.mark.parametrize("failing", [0, 1])
def test_a_write_that_fails_leaves_nothing_that_a_restart_would_find(failing: int) -> None:
    memory = MemoryDevice()
    device = FaultyDevice(memory)
    left = [failing]

    def fail() -> None:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(errno.EIO, "injected")

    with opened(device) as store:
        store.append([large(0)])
        device.on_write = fail
        with pytest.raises(OSError, match="injected"):
            store.append([large(1)])
        device.on_write = lambda: None
        assert not served(store, 1)
        store.append([large(1)])
        assert served(store, 1)
        abandon(store)
    with opened(memory) as store:
        assert served(store, 0)
        assert served(store, 1)


def test_a_payload_that_was_flipped_is_never_served() -> None:
    device, stats = MemoryDevice(), Stats()
    with opened(device, stats) as store:
        (address,) = store.append([large(0)])
        for data in device.files.values():
            if len(data) > BLOCK_BYTES:
                data[8192 + BLOCK_BYTES - 4096] ^= 1
        with pytest.raises(Exception, match="stripe 8 of 9"):
            store.read(key(0), OURS, address, pages(BLOCK_BYTES))
    assert stats.get("corrupt", tier=Tier.FLASH, reason="stripe") == 1

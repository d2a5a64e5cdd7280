"""Small blocks and devices that fail on demand, for tests of the flash room."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hifc_ray.clock import Clock
from hifc_ray.config import FlashConfig
from hifc_ray.flash import Device, Extent, FileDevice, FlashBlock, FlashStore
from hifc_ray.flash.device import pages
from hifc_ray.flash.log import SegmentLog
from hifc_ray.flash.sizing import BASE_BYTES, segment_cost
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.policy import Valuing
from hifc_ray.stats import Stats
from hifc_ray.types import NOBODY, Key, Namespace, Owner

STRIPE_BYTES = PAGE_BYTES
NUM_STRIPES = 3
BLOCK_BYTES = STRIPE_BYTES * NUM_STRIPES
RECORD_BYTES = PAGE_BYTES + BLOCK_BYTES
SEGMENT_BYTES = PAGE_BYTES + 20 * RECORD_BYTES  # room for 20 blocks
LAYOUT = "3x2x1x256x2:float32"
OURS = Namespace(b"n" * 32)
THEIRS = Namespace(b"m" * 32)


def key(number: int, namespace: Namespace = OURS) -> Key:
    return Key(hashlib.blake2b(namespace + number.to_bytes(4, "little"), digest_size=32).digest())


def payload(number: int, salt: int = 0) -> bytes:
    """The bytes of block `number`; all of them differ from those of any other."""
    return np.random.default_rng((number, salt)).bytes(BLOCK_BYTES)


def block(number: int, namespace: Namespace = OURS, salt: int = 0, owner: Owner = NOBODY) -> FlashBlock:
    buffer = pages(BLOCK_BYTES)
    buffer[:] = payload(number, salt)
    name = key(number, namespace)
    return FlashBlock(name, namespace, LAYOUT, STRIPE_BYTES, NUM_STRIPES, 0, buffer, owner=owner)


def blocks(numbers: Iterable[int], namespace: Namespace = OURS, owner: Owner = NOBODY) -> list[FlashBlock]:
    return [block(number, namespace, owner=owner) for number in numbers]


def config(*directories: Path, num_segments: int = 6, num_volumes: int = 1, **settings: Any) -> FlashConfig:
    """A limit that has room for this many segments of 20 blocks on each volume, besides the one that is kept free.

    Without a write budget and without carry-over, unless the settings say so.
    """
    volumes = max(num_volumes, len(directories))
    limit = volumes * ((num_segments + 1) * (segment_cost(SEGMENT_BYTES) + PAGE_BYTES) + BASE_BYTES)
    defaults: dict[str, Any] = {"segment_bytes": SEGMENT_BYTES, "drive_writes_per_day": 0.0, "carry_share": 0.0}
    return FlashConfig(directories, limit, **{**defaults, **settings})


def open_store(
    where: Path | Device | Sequence[Path] | Sequence[Device],
    stats: Stats | None = None,
    num_segments: int = 6,
    *,
    policy: Valuing | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> FlashStore:
    """A store in one or several directories, or on one or several devices."""
    places: list[Path | Device] = list(where) if isinstance(where, Sequence) else [where]
    devices: list[Device] = [
        place if not isinstance(place, Path) else FileDevice(place, read_only=settings.get("read_only", False))
        for place in places
    ]
    chosen = config(num_segments=num_segments, num_volumes=len(places), **settings)
    return FlashStore(chosen, BLOCK_BYTES, stats or Stats(), devices=devices, policy=policy, clock=clock)


def abandon(store: FlashStore) -> None:
    """Let go of a store's device as the death of its process would: nothing sealed, nothing synced."""
    for volume in store.volumes:
        volume.abandon()


def segment_log(store: FlashStore, volume: int = 0) -> SegmentLog:
    """The log of a volume."""
    return store.volumes[volume].log


def load(store: FlashStore, number: int, namespace: Namespace = OURS) -> bytes | None:
    """The bytes of a block as the store serves them, None if it does not know the key."""
    (address,) = store.locate([key(number, namespace)])
    if address is None:
        return None
    out = pages(BLOCK_BYTES)
    assert store.read(key(number, namespace), namespace, address, out) == BLOCK_BYTES
    return bytes(out)


def stored_numbers(store: FlashStore, numbers: Iterable[int]) -> list[int]:
    """Which of these blocks are served, each checked to be exactly what was stored."""
    found = []
    for number in numbers:
        data = load(store, number)
        if data is not None:
            assert data == payload(number)
            found.append(number)
    return found


class FaultyDevice:
    """Another device, whose calls run a hook first. Those for I/O may return how many bytes are really moved."""

    def __init__(self, inner: Device) -> None:
        self.inner = inner
        self.on_write: Callable[[], int | None] = lambda: None
        self.on_read: Callable[[], int | None] = lambda: None
        self.on_create: Callable[[], None] = lambda: None
        self.on_put: Callable[[], None] = lambda: None

    @property
    def path(self) -> str:
        return self.inner.path

    @property
    def direct(self) -> bool:
        return self.inner.direct

    def lock(self) -> None:
        self.inner.lock()

    def unlock(self) -> None:
        self.inner.unlock()

    def sizes(self) -> dict[str, int]:
        return self.inner.sizes()

    def free_bytes(self) -> int:
        return self.inner.free_bytes()

    def capacity_bytes(self) -> int:
        return self.inner.capacity_bytes()

    def create(self, name: str, size_bytes: int) -> Extent:
        self.on_create()
        return FaultyExtent(self, self.inner.create(name, size_bytes))

    def reuse(self, old: str, new: str, size_bytes: int) -> Extent:
        self.on_create()
        return FaultyExtent(self, self.inner.reuse(old, new, size_bytes))

    def open(self, name: str) -> Extent:
        return FaultyExtent(self, self.inner.open(name))

    def delete(self, name: str) -> None:
        self.inner.delete(name)

    def put(self, name: str, data: bytes) -> None:
        self.on_put()
        self.inner.put(name, data)

    def get(self, name: str) -> bytes:
        return self.inner.get(name)


class FaultyExtent:
    """An extent of a `FaultyDevice`."""

    def __init__(self, device: FaultyDevice, inner: Extent) -> None:
        self._device = device
        self._inner = inner

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def preadv(self, buffers: Sequence[memoryview], offset: int) -> int:
        limit = self._device.on_read()
        done = self._inner.preadv(buffers, offset)
        return done if limit is None else min(done, limit)

    def pwritev(self, buffers: Sequence[memoryview], offset: int) -> int:
        limit = self._device.on_write()
        if limit is None:
            return self._inner.pwritev(buffers, offset)
        joined = pages(sum(map(len, buffers)))
        joined[:] = b"".join(buffers)
        return self._inner.pwritev([joined[:limit]], offset)

    def truncate(self, size_bytes: int) -> None:
        self._inner.truncate(size_bytes)

    def sync(self) -> None:
        self._inner.sync()

    def close(self) -> None:
        self._inner.close()


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))

"""Small tiers over a device that tests hold, fail and let go."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hifc_ray.client import LookupReply, TierClient
from hifc_ray.clock import Clock
from hifc_ray.config import FlashConfig, HostConfig, TierConfig
from hifc_ray.flash import Device, MemoryDevice
from hifc_ray.host.table import tag_of
from hifc_ray.policies import registry
from hifc_ray.tiering import TieredCache
from hifc_ray.types import Lookup, Namespace
from tests.fakes.blocks import OURS, SLOT_BYTES, SOON, holds_bytes, keys, query
from tests.fakes.flash import FaultyDevice

WAIT_S = 10.0  # of real time; never waited for in a test that passes


def open_tier(
    directory: Path,
    *,
    slots: int = 16,
    flash: Device | Path | Sequence[Device] | None = None,
    clock: Clock | None = None,
    background: bool = False,
    policies: tuple[Any, Any] | None = None,
    name: str = "hifc-test",
    flash_options: dict[str, Any] | None = None,
    **host: float,
) -> TieredCache:
    """A tier of a few slots whose arena lies in `directory`; nothing moves but by `tick`, unless `background`.

    Its window is half of the arena, and eviction keeps one slot free, unless `host` says otherwise.
    """
    shares = {"low_watermark": 1 / slots, "high_watermark": 1 / slots, "window_share": 0.5, **host}
    on_disk = (flash,) if isinstance(flash, Path) else ()
    devices: Sequence[Device] = ()
    if flash is not None and not isinstance(flash, Path):
        devices = flash if isinstance(flash, Sequence) else (flash,)
    flash_config = FlashConfig(on_disk, **{"limit_bytes": max(1, len(devices)) * (4 << 20), **(flash_options or {})})
    eviction, admission = policies or (registry.eviction("lru"), registry.admission("always"))
    return TieredCache(
        TierConfig(HostConfig(arena_bytes=slots * SLOT_BYTES, **shares), flash_config),
        SLOT_BYTES,
        eviction,
        admission,
        arena_path=directory / name,
        clock=clock,
        devices=devices,
        background=background,
    )


def answers(reply: LookupReply) -> list[Lookup]:
    return [Lookup(answer) for answer in reply.answers.tolist()]


def words(reply: LookupReply) -> str:
    """Answers by their first letters: H, P, R, M."""
    return "".join(answer.name[0] for answer in answers(reply))


def serve(client: TierClient, numbers: Iterable[int], namespace: Namespace = OURS) -> list[int]:
    """Look up, wait, check every byte of what is served while it is leased, release; the numbers that were served."""
    chain = list(numbers)
    reply = client.lookup(query(chain, namespace), SOON)
    resolved = client.wait(reply, WAIT_S)
    run = next((row for row in range(len(chain)) if resolved[row] != Lookup.HIT), len(chain))
    for row in range(run):
        assert holds_bytes(client, int(reply.slots[row]), chain[row], namespace)
    client.release(reply.lease)
    return chain[:run]


def in_host(tier: TieredCache, numbers: Iterable[int], namespace: Namespace = OURS) -> list[int]:
    """Which of these blocks have a slot; asked without leaving a trace in the history of accesses."""
    chain = list(numbers)
    slots = tier._books.find(keys(chain, namespace))
    ours = (slots >= 0) & (tier._books.table.tag[slots] == tag_of(namespace))
    return [number for number, here in zip(chain, ours, strict=True) if here]


def on_flash(tier: TieredCache, numbers: Iterable[int], namespace: Namespace = OURS) -> list[int]:
    """Which of these blocks flash has."""
    chain = list(numbers)
    flash = tier._shared.flash
    assert flash is not None
    return [n for n, address in zip(chain, flash.locate(keys(chain, namespace)), strict=True) if address is not None]


def push_out(tier: TieredCache, numbers: Iterable[int], namespace: Namespace = OURS) -> None:
    """Make these resident blocks leave host memory, whatever the watermarks say, and wait until they have."""
    chain = list(numbers)
    slots = tier._books.find(keys(chain, namespace))
    assert (slots >= 0).all()
    tier._demoter._evict(slots, tier._books.table.generation[slots].astype(np.int64))
    assert tier._demoter.idle(WAIT_S)
    assert not in_host(tier, chain, namespace)


def keep_up(tier: TieredCache) -> None:
    """Do what is due of upkeep, and wait until it is done."""
    assert tier._upkeep is not None
    tier._upkeep.step()
    assert tier._upkeep._errands.wait(WAIT_S)


class Held:
    """A hook for a device or a point: threads stop in it until `let_go`."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self._let_go = threading.Event()

    def __call__(self) -> None:
        self.entered.release()
        assert self._let_go.wait(WAIT_S)

    def wait_entered(self) -> None:
        assert self.entered.acquire(timeout=WAIT_S)

    def let_go(self) -> None:
        self._let_go.set()


def faulty() -> FaultyDevice:
    """A device in memory whose reads and writes run a hook first."""
    return FaultyDevice(MemoryDevice())


@contextmanager
def closing(*tiers: TieredCache) -> Iterator[None]:
    """Check the conservation law of these tiers at the end, and let go of them without writing."""
    try:
        yield
        for tier in tiers:
            tier.check()
    finally:
        for tier in tiers:
            tier.close(flush=False)

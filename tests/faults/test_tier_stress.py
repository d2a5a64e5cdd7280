"""Three seconds of storers and lookers on a small arena: no wrong byte, no lost slot."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hifc_ray.client import Grant, LookupReply
from hifc_ray.flash import MemoryDevice
from hifc_ray.tiering import TieredCache
from hifc_ray.tiering.cache import wait_for
from hifc_ray.types import ByteArray, Lookup
from tests.fakes.blocks import SLOT_BYTES, SOON, payload, query, request
from tests.fakes.remote import Remote
from tests.fakes.tier import WAIT_S, open_tier

pytestmark = pytest.mark.timeout(60)

SECONDS = 3.0
BLOCKS = 60
PAYLOADS = [payload(number) for number in range(BLOCKS)]


@pytest.fixture(params=["memory", "disk"])
def tier(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TieredCache]:
    """12 slots for 60 blocks, all of which fit on flash."""
    directory = tmp_path / "flash"
    directory.mkdir()
    flash = MemoryDevice() if request.param == "memory" else directory
    options = {"queue_blocks": 8}
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # threads meet more often
    made = open_tier(
        tmp_path, slots=12, flash=flash, background=True, low_watermark=0.2, high_watermark=0.4, flash_options=options
    )
    yield made
    sys.setswitchinterval(switching)
    made.close(flush=False)


class Worker(threading.Thread):
    """Runs one step again and again until the time is over; what it raises is kept."""

    def __init__(self, step: Callable[[np.random.Generator], None], seed: int, end: float) -> None:
        super().__init__(daemon=True)
        self._step, self._random, self._end = step, np.random.default_rng(seed), end
        self.error: BaseException | None = None
        self.num_steps = 0

    def run(self) -> None:
        try:
            while time.monotonic() < self._end:
                self._step(self._random)
                self.num_steps += 1
        except BaseException as error:
            self.error = error


class Engine(Remote):
    """A holder that keeps some leases over several calls."""

    def __init__(self, tier: TieredCache) -> None:
        super().__init__(tier)
        self.kept: list[tuple[LookupReply, range]] = []


class Workload:
    """What the threads do, and what they have seen."""

    def __init__(self, tier: TieredCache) -> None:
        self.tier = tier
        self.num_verified = self.num_from_flash = 0

    def chain(self, random: np.random.Generator) -> range:
        start = int(random.integers(0, BLOCKS - 4))
        return range(start, start + int(random.integers(1, 5)))

    def fill(self, grant: Grant, chain: range) -> None:
        for row in grant.granted:
            self.tier.slot(int(grant.slots[row]))[:SLOT_BYTES] = PAYLOADS[chain[row]]

    def verify(self, reply: LookupReply, resolved: ByteArray, chain: range) -> None:
        for row in np.flatnonzero(resolved == Lookup.HIT).tolist():
            slot = int(reply.slots[row])
            assert self.tier.slot(slot)[:SLOT_BYTES] == PAYLOADS[chain[row]], (chain[row], slot)
            assert self.tier._arena.table.generation[slot] == reply.generations[row]
            self.num_verified += 1
            self.num_from_flash += int(reply.answers[row] == Lookup.PENDING)

    def store(self, random: np.random.Generator) -> None:
        chain = self.chain(random)
        grant = self.tier.reserve(request(chain), SOON)
        self.fill(grant, chain)
        if random.random() < 0.1:
            self.tier.abort(grant)
        else:
            assert self.tier.commit(grant, None, SOON) == len(grant.granted)

    def look(self, random: np.random.Generator) -> None:
        chain = self.chain(random)
        reply = self.tier.lookup(query(chain), SOON)
        self.verify(reply, self.tier.wait(reply, 1.0), chain)
        self.tier.release(reply.lease)

    def remote_look(self, engine: Engine, random: np.random.Generator) -> None:
        """Replies get lost, leases are kept over several calls."""
        chain = self.chain(random)
        lost = random.random() < 0.1
        reply = engine.lookup(query(chain), lost=lost)
        assert reply is not None
        if not lost:
            self.verify(reply, wait_for(self.tier._arena, reply, 1.0), chain)
            engine.kept.append((reply, chain))
        while len(engine.kept) > 2:
            old, its_chain = engine.kept.pop(0)
            self.verify(old, self.tier._arena.table.answers_now(old.slots, old.generations), its_chain)
            engine.ledger.remove(old.lease)

    def remote_store(self, engine: Engine, random: np.random.Generator) -> None:
        chain = self.chain(random)
        lost = random.random() < 0.1
        grant = engine.reserve(request(chain), lost=lost)
        assert grant is not None
        if lost:
            return
        self.fill(grant, chain)
        if random.random() < 0.9:
            assert engine.commit(grant) == len(grant.granted)
        engine.open.clear()


def test_storers_and_lookers_on_a_small_arena(tier: TieredCache) -> None:
    load = Workload(tier)
    engines = [Engine(tier), Engine(tier)]
    steps: list[Callable[[np.random.Generator], None]] = [
        load.store,
        load.look,
        lambda random: load.remote_look(engines[0], random),
        lambda random: load.remote_store(engines[1], random),
    ]
    end = time.monotonic() + SECONDS
    workers = [Worker(step, seed, end) for seed, step in enumerate(steps)]
    for worker in workers:
        worker.start()
    while time.monotonic() < end:
        time.sleep(0.05)
        tier.check()
    for worker in workers:
        worker.join(WAIT_S)
        if worker.error is not None:
            raise worker.error
        assert worker.num_steps > 50
    for engine in engines:
        tier.detach(engine.info.holder)
    assert tier.idle(WAIT_S)
    tier.check()
    counts = tier._books.counts()
    assert counts["absent"] + counts["resident"] == tier.num_slots, counts
    assert tier.stats.get("tick_failures") == 0
    assert tier.stats.get("corrupt") == 0
    assert load.num_verified > 200
    assert load.num_from_flash > 20

"""Real processes that hold locks and are killed, or only silent, on every edge of a block's life."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hifc_ray.client import ChainQuery, Grant, LookupReply, StoreRequest
from hifc_ray.clock import ManualClock
from hifc_ray.errors import StorageError
from hifc_ray.messages import CallHeader, GrantName, Held
from hifc_ray.tiering import TieredCache
from hifc_ray.tiering.cache import SWEEP_S
from hifc_ray.tiering.ledger import LeaseLedger
from hifc_ray.types import BlockState, Lookup
from tests.fakes.blocks import SOON, fill, holds_bytes, query, request, store
from tests.fakes.flash import FaultyDevice
from tests.fakes.tier import WAIT_S, faulty, in_host, open_tier, push_out, serve, words
from tests.fakes.tier import Held as Gate

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from pathlib import Path
from hifc_ray.tiering.holders import lock_holder_file
lock = lock_holder_file(Path(sys.argv[1]))
print(lock.path, flush=True)
sys.stdin.read()
"""


class Process:
    """A process with a locked holder file; this test speaks its calls for it."""

    def __init__(self, tier: TieredCache) -> None:
        self.tier = tier
        self.child = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tier._arena.path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.child.stdout is not None
        self.path = self.child.stdout.readline().strip()
        self.ledger = LeaseLedger(tier.num_slots)
        self.calls = 0
        self.attach(tier)

    def attach(self, tier: TieredCache) -> None:
        self.tier, self.info = tier, tier.attach(self.path)

    def header(self) -> CallHeader:
        self.calls += 1
        return CallHeader(self.info.holder, self.info.incarnation, self.calls)

    def lookup(self, query: ChainQuery) -> LookupReply:
        reply = self.tier.serve_lookup(self.header(), self.ledger.held(), query)
        assert reply is not None
        self.ledger.add(reply.lease)
        return reply

    def reserve(self, request: StoreRequest) -> Grant:
        grant = self.tier.serve_reserve(self.header(), Held(), request)
        assert grant is not None
        return grant

    def kill(self) -> None:
        self.child.kill()
        self.end()

    def end(self) -> None:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.close()
        self.child.wait()
        self.child.stdout.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def device() -> FaultyDevice:
    return faulty()


@pytest.fixture
def tier(tmp_path: Path, device: FaultyDevice, clock: ManualClock) -> Iterator[TieredCache]:
    """16 slots, blocks 0 to 3 in host memory."""
    made = open_tier(tmp_path, flash=device, clock=clock)
    store(made, range(4))
    made.tick()
    yield made
    made.check()
    made.close(flush=False)


@pytest.fixture
def engine(tier: TieredCache) -> Iterator[Process]:
    made = Process(tier)
    yield made
    if made.child.poll() is None:
        made.kill()


def sweep(tier: TieredCache, clock: ManualClock) -> None:
    """One tick, a second later."""
    clock.advance(SWEEP_S)
    tier.tick()
    tier.check()


def test_killed_while_it_writes(tier: TieredCache, engine: Process, clock: ManualClock) -> None:
    grant = engine.reserve(request([10, 11]))
    waiting = tier.lookup(query([10]), SOON)
    assert words(waiting) == "P"
    sweep(tier, clock)
    assert in_host(tier, [10, 11]) == [10, 11]
    engine.kill()
    sweep(tier, clock)
    assert in_host(tier, [10, 11]) == []
    assert tier._books.num_free == 12
    assert tier.wait(waiting, WAIT_S).tolist() == [Lookup.MISS]
    tier.release(waiting.lease)
    name = GrantName(grant.incarnation, grant.sequence)
    assert tier.serve_commit(engine.header(), Held(), name, None) is None
    assert store(tier, [10]) == [10]


def test_killed_while_it_reads(tier: TieredCache, engine: Process, clock: ManualClock) -> None:
    engine.lookup(query(range(4)))
    mine = tier.lookup(query([0]), SOON)
    engine.kill()
    sweep(tier, clock)
    assert (tier._books.counts()["leased"], tier._books.counts()["resident"]) == (1, 3)
    assert tier.holds(mine.lease).all()
    tier.release(mine.lease)
    assert tier.stats.get("holders_lost") == 1


def test_killed_while_it_waits_for_a_writer(tier: TieredCache, engine: Process, clock: ManualClock) -> None:
    grant = tier.reserve(request([10]), SOON)
    assert words(engine.lookup(query([10]))) == "P"
    engine.kill()
    sweep(tier, clock)
    fill(tier, grant, [10])
    assert tier.commit(grant, None, SOON) == 1
    assert tier._books.table.state[grant.slots[0]] == BlockState.RESIDENT


def test_killed_while_it_waits_for_flash(
    tier: TieredCache, engine: Process, clock: ManualClock, device: FaultyDevice
) -> None:
    push_out(tier, [2])
    gate = Gate()
    device.on_read = gate
    reply = engine.lookup(query([2]))
    gate.wait_entered()
    engine.kill()
    sweep(tier, clock)
    assert tier._books.table.state[reply.slots[0]] == BlockState.RESERVED  # the read still writes into it
    gate.let_go()
    assert tier.idle(WAIT_S)
    assert tier._books.table.state[reply.slots[0]] == BlockState.RESIDENT
    assert serve(tier, [2]) == [2]


def test_killed_while_its_hit_cancels_a_demotion(
    tier: TieredCache, engine: Process, clock: ManualClock, device: FaultyDevice
) -> None:
    gate = Gate()
    device.on_write = gate
    slots = tier._books.find(query([3]).keys)
    tier._demoter._evict(slots, tier._books.table.generation[slots].astype("int64"))
    gate.wait_entered()
    assert words(engine.lookup(query([3]))) == "H"
    engine.kill()
    sweep(tier, clock)
    assert tier._books.table.state[slots[0]] == BlockState.RESIDENT
    gate.let_go()
    assert tier.idle(WAIT_S)
    assert serve(tier, [3]) == [3]


def test_killed_with_nothing_in_its_hands(tier: TieredCache, engine: Process, clock: ManualClock) -> None:
    engine.kill()
    sweep(tier, clock)
    assert not Path(engine.path).exists()
    with pytest.raises(StorageError):
        tier.attach(engine.path)


def test_stopped_for_as_long_as_you_like_it_loses_nothing(
    tier: TieredCache, engine: Process, clock: ManualClock
) -> None:
    reply = engine.lookup(query(range(4)))
    grant = engine.reserve(request([10]))
    engine.child.send_signal(signal.SIGSTOP)
    for round_ in range(3):
        clock.advance(1e6)
        sweep(tier, clock)
        store(tier, range(100 * round_ + 100, 100 * round_ + 120))
    assert (tier._books.table.state[reply.slots] == BlockState.LEASED).all()
    assert all(holds_bytes(tier, int(reply.slots[number]), number) for number in range(4))
    assert tier._books.table.state[grant.slots[0]] == BlockState.RESERVED
    engine.child.send_signal(signal.SIGCONT)


def test_an_heir_of_its_number_inherits_nothing(tier: TieredCache, engine: Process, clock: ManualClock) -> None:
    engine.lookup(query(range(4)))
    engine.reserve(request([10]))
    engine.kill()
    heir = Process(tier)  # before anyone has noticed: it gets another number
    assert heir.info.holder % 64 != engine.info.holder % 64
    sweep(tier, clock)
    second = Process(tier)
    assert second.info.holder % 64 == engine.info.holder % 64
    assert second.info.holder != engine.info.holder
    assert not len(tier._books.held_by(second.info.holder % 64))
    assert tier._books.num_free == 12
    assert tier.serve_lookup(engine.header(), Held(), query([0])) is None
    heir.end()
    second.end()


@pytest.mark.parametrize("dies", [False, True])
def test_it_outlives_the_tier(tmp_path: Path, dies: bool) -> None:
    first = open_tier(tmp_path, name="outlived")
    store(first, range(4))
    engine = Process(first)
    reply, grant = engine.lookup(query([0, 1])), engine.reserve(request([10]))
    first.close(flush=False, keep_arena=True)  # as a killed tier leaves it: its holder keeps what it has
    if dies:
        engine.kill()
    second = open_tier(tmp_path, name="outlived")
    state = second._books.table.state
    after = (BlockState.RESIDENT, BlockState.ABSENT) if dies else (BlockState.LEASED, BlockState.RESERVED)
    assert (int(state[reply.slots[0]]), int(state[grant.slots[0]])) == after
    second.check()
    if not dies:
        engine.attach(second)
        assert words(engine.lookup(query([2]))) == "H"
        assert second._books.counts()["leased"] == 3
        engine.end()
    second._next_sweep = 0.0
    second.tick()
    assert second._books.counts()["leased"] == 0
    second.close(flush=False)

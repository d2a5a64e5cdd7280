from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hifc_ray.clock import ManualClock
from hifc_ray.transfer import Channel, Priority, Ticket

pytestmark = pytest.mark.timeout(20)
LONG_S = 10.0  # of real time; never waited for in a test that passes


class Gate:
    """A job that tells when it has begun and returns when it is let go."""

    def __init__(self, result: object = None) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self.result = result

    def __call__(self) -> object:
        self.begun.set()
        assert self.let_go.wait(LONG_S)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class Log:
    """Collects tickets whose `done` was called."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []

    def __call__(self, ticket: Ticket) -> None:
        self.tickets.append(ticket)

    @property
    def results(self) -> list[object]:
        return [ticket.result for ticket in self.tickets]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def channel(clock: ManualClock) -> Iterator[Channel]:
    """One thread, four places in its queue."""
    made = Channel("test", threads=1, queue_limit=4, clock=clock)
    yield made
    assert made.close(LONG_S)


@pytest.fixture
def gate(channel: Channel, log: Log) -> Iterator[Gate]:
    """The job that the channel's only thread is busy with."""
    busy = Gate("gate")
    assert channel.submit(busy, log, deadline_s=LONG_S) is not None
    assert busy.begun.wait(LONG_S)
    yield busy
    busy.let_go.set()


def put(channel: Channel, log: Log, name: str, priority: Priority = Priority.REQUEST, deadline_s: float = LONG_S):
    return channel.submit(lambda: name, log, deadline_s=deadline_s, priority=priority)


def test_what_somebody_waits_for_runs_first_and_else_in_order(channel: Channel, gate: Gate, log: Log) -> None:
    for name, priority in (("b1", 1), ("r1", 0), ("b2", 1), ("r2", 0)):
        assert put(channel, log, name, Priority(priority)) is not None
    gate.let_go.set()
    assert channel.idle(LONG_S)
    assert log.results == ["gate", "r1", "r2", "b1", "b2"]


def test_a_full_queue_refuses_and_never_runs_what_it_refused(channel: Channel, gate: Gate, log: Log) -> None:
    for place in range(4):
        assert channel.room == 4 - place
        assert put(channel, log, f"job{place}") is not None
    assert channel.room == 0
    assert put(channel, log, "refused") is None
    assert channel.num_pending == 5
    gate.let_go.set()
    assert channel.idle(LONG_S)
    assert "refused" not in log.results
    assert (channel.room, channel.num_pending) == (4, 0)


def test_a_deadline_withdraws_what_waits_and_names_once_what_runs(
    channel: Channel, gate: Gate, log: Log, clock: ManualClock
) -> None:
    soon, later = put(channel, log, "soon", deadline_s=1.0), put(channel, log, "later", deadline_s=2 * LONG_S)
    assert soon is not None
    clock.advance(1.0)
    assert channel.overdue() == []  # not past it yet
    clock.advance(0.5)
    assert channel.overdue() == [soon]
    assert (soon.withdrawn, soon.started, soon.late) == (True, False, False)
    assert channel.room == 3
    clock.advance(LONG_S)
    (late,) = channel.overdue()
    assert (late.late, late.started, late.withdrawn) == (True, True, False)
    assert channel.overdue() == []
    gate.let_go.set()
    assert channel.idle(LONG_S)
    assert log.tickets == [late, later]  # the late one is told when it returns, the withdrawn one never ran
    assert late.result == "gate"


def test_order_is_kept_when_something_is_withdrawn(channel: Channel, gate: Gate, log: Log, clock: ManualClock) -> None:
    for name, deadline_s in (("a", 1.0), ("b", LONG_S), ("c", 1.0), ("d", LONG_S)):
        put(channel, log, name, deadline_s=deadline_s)
    clock.advance(2.0)
    assert len(channel.overdue()) == 2
    gate.let_go.set()
    assert channel.idle(LONG_S)
    assert log.results == ["gate", "b", "d"]


def test_what_a_job_raises_is_in_its_ticket(channel: Channel, log: Log) -> None:
    def fail() -> None:
        raise OSError(5, "no")

    channel.submit(fail, log, deadline_s=LONG_S)
    put(channel, log, "next")
    assert channel.idle(LONG_S)
    failed, fine = log.tickets
    assert isinstance(failed.error, OSError)
    assert (failed.result, fine.result, fine.error) == (None, "next", None)


def test_a_done_that_fails_does_not_end_the_thread(channel: Channel, log: Log) -> None:
    def broken(ticket: Ticket) -> None:
        raise RuntimeError("a bug in the owner")

    channel.submit(lambda: None, broken, deadline_s=LONG_S)
    put(channel, log, "next")
    assert channel.idle(LONG_S)
    assert log.results == ["next"]


def test_done_is_over_before_the_channel_is_idle(channel: Channel) -> None:
    entered, let_go = threading.Event(), threading.Event()

    def done(ticket: Ticket) -> None:
        entered.set()
        assert let_go.wait(LONG_S)

    channel.submit(lambda: None, done, deadline_s=LONG_S)
    assert entered.wait(LONG_S)
    assert not channel.idle(0.0)
    let_go.set()
    assert channel.idle(LONG_S)


def test_close_finishes_the_queue_and_takes_no_more(clock: ManualClock, log: Log) -> None:
    channel = Channel("test", threads=1, queue_limit=4, clock=clock)
    gate = Gate("gate")
    channel.submit(gate, log, deadline_s=LONG_S)
    put(channel, log, "queued")
    assert gate.begun.wait(LONG_S)
    assert not channel.close(0.0)  # it hangs
    assert (put(channel, log, "refused"), channel.room) == (None, 0)
    gate.let_go.set()
    assert channel.close(LONG_S)
    assert log.results == ["gate", "queued"]


def test_several_threads_work_side_by_side(clock: ManualClock, log: Log) -> None:
    channel = Channel("test", threads=2, queue_limit=4, clock=clock)
    gates = [Gate(0), Gate(1)]
    for gate in gates:
        channel.submit(gate, log, deadline_s=LONG_S)
    assert all(gate.begun.wait(LONG_S) for gate in gates)
    for gate in gates:
        gate.let_go.set()
    assert channel.close(LONG_S)
    assert set(log.results) == {0, 1}


def test_a_channel_is_stuck_when_all_its_threads_are_late(clock: ManualClock, log: Log) -> None:
    channel = Channel("two", threads=2, queue_limit=4, clock=clock)
    gates = [Gate(), Gate()]
    channel.submit(gates[0], log, deadline_s=1.0)
    channel.submit(gates[1], log, deadline_s=3.0)
    assert all(gate.begun.wait(LONG_S) for gate in gates)
    clock.advance(2.0)
    assert len(channel.overdue()) == 1
    assert not channel.is_stuck
    clock.advance(2.0)
    assert len(channel.overdue()) == 1
    assert channel.is_stuck
    gates[1].let_go.set()
    while channel.num_pending > 1:
        pass
    assert not channel.is_stuck
    gates[0].let_go.set()
    assert channel.close(LONG_S)

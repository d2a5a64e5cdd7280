"""The order of requests: first come, first served; prompts before decode; one queue with an end."""

from __future__ import annotations

import pytest

from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.engine.scheduler import Scheduler
from hifc_ray.engine.sequence import Sequence, Status
from hifc_ray.errors import RequestRefused
from hifc_ray.types import Namespace

BLOCK = 4
NAMESPACE = Namespace(bytes(32))


def make(number: int, num_tokens: int = 9, cache: str = "on") -> Sequence:
    params = SamplingParams(max_new_tokens=4, cache=cache)  # type: ignore[arg-type]
    sequence = Sequence(number, list(range(num_tokens)), params, frozenset(), BLOCK)
    sequence.open(NAMESPACE if cache != "off" else None)
    return sequence


def scheduler(max_batch: int = 2, max_waiting: int = 3, hold_decode: bool = False) -> Scheduler:
    return Scheduler(max_batch, max_waiting, hold_decode)


def admit(schedule: Scheduler, *numbers: int) -> list[Sequence]:
    for number in numbers:
        schedule.enqueue(make(number))
        waiting = schedule.next_waiting()
        assert waiting is not None
        schedule.admit(waiting)
    return schedule.admitted


def test_the_queue_is_served_in_order_and_ends() -> None:
    schedule = scheduler()
    for number in (1, 2, 3):
        schedule.enqueue(make(number))
    assert not schedule.has_room
    with pytest.raises(RequestRefused, match=r"3 requests are waiting; engine\.max_waiting is 3"):
        schedule.enqueue(make(4))
    for number in (1, 2):
        sequence = schedule.next_waiting()
        assert sequence is not None
        assert sequence.number == number
        schedule.admit(sequence)
        assert sequence.status is Status.LOADING
    assert schedule.next_waiting() is None, "the batch is full"
    schedule.finish(schedule.admitted[0])
    third = schedule.next_waiting()
    assert third is not None
    assert third.number == 3


def test_prompts_go_before_decode_the_oldest_first() -> None:
    schedule = scheduler()
    first, second = admit(schedule, 1, 2)
    assert schedule.loading() == [first, second]
    assert schedule.next_prefill() is None
    assert schedule.decode_batch() == []
    first.status = second.status = Status.PREFILL
    assert schedule.next_prefill() is first
    first.status = Status.RUNNING
    assert schedule.next_prefill() is second
    assert schedule.decode_batch() == []
    second.status = Status.RUNNING
    assert schedule.decode_batch() == [first, second]


@pytest.mark.parametrize("hold_decode", [False, True])
def test_decode_waits_for_loading_requests_only_if_held(hold_decode: bool) -> None:
    schedule = scheduler(hold_decode=hold_decode)
    first, second = admit(schedule, 1, 2)
    first.status = Status.RUNNING
    assert schedule.decode_batch() == ([] if hold_decode else [first])
    second.status = Status.RUNNING
    assert schedule.decode_batch() == [first, second]


def test_a_cancelled_request_leaves_from_wherever_it_is() -> None:
    schedule = scheduler(max_batch=1)
    (running,) = admit(schedule, 1)
    running.status = Status.RUNNING
    schedule.enqueue(make(2))
    schedule.enqueue(make(3))
    schedule.cancel(1)
    schedule.cancel(3)
    assert {sequence.number for sequence in schedule.cancelled()} == {1, 3}
    assert [sequence.number for sequence in schedule.waiting] == [2]


def test_what_another_request_is_about_to_have_is_waited_for() -> None:
    schedule = scheduler(max_batch=4)
    (first,) = admit(schedule, 1)
    keys = make(2).keys
    first.status = Status.PREFILL
    assert schedule.would_repeat(keys[0])
    first.ready[0] = True
    assert not schedule.would_repeat(keys[0]), "it is there"
    assert schedule.would_repeat(keys[1])
    first.status = Status.RUNNING
    assert not schedule.would_repeat(keys[1])
    schedule.enqueue(make(3, cache="read"))
    reader = schedule.next_waiting()
    assert reader is not None
    schedule.admit(reader)
    assert not schedule.would_repeat(keys[1]), "it will not share what it computes"

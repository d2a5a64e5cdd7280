"""Operations with so many in flight: how long all of them took, how long each, and how much CPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from hifc_ray.types import AnyArray

Op = Callable[[int], None]  # gets the number of the lane that it runs in


@dataclass(frozen=True)
class Sample:
    """One run of operations. `latencies_s` [operations], in the order of the operations."""

    seconds: float
    cpu_s: float  # of the whole process, kernel included
    latencies_s: AnyArray


def run(ops: Sequence[Op], num_lanes: int) -> Sample:
    """Run all of them, `num_lanes` at a time, each lane taking the next when it is free. An error ends it."""
    took = np.zeros(len(ops))
    turns = iter(range(len(ops)))
    failed: list[BaseException] = []
    ends = [0.0] * num_lanes
    start = threading.Barrier(num_lanes + 1)

    def lane(number: int) -> None:
        start.wait()
        try:
            for turn in turns:
                begun = time.perf_counter()
                ops[turn](number)
                ends[number] = time.perf_counter()
                took[turn] = ends[number] - begun
                if failed:
                    return
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=lane, args=(number,)) for number in range(num_lanes)]
    for thread in threads:
        thread.start()
    cpu_s, begun = time.process_time(), time.perf_counter()
    start.wait()
    for thread in threads:
        thread.join()
    cpu_s = time.process_time() - cpu_s
    if failed:
        raise failed[0]
    return Sample(max(ends) - begun, cpu_s, took)


@dataclass
class Background:
    """What has gone on beside something else, counted when it has ended."""

    num_done: int = 0
    seconds: float = 0.0
    failed: list[BaseException] = field(default_factory=list)


@contextmanager
def meanwhile(make: Callable[[], Op], num_lanes: int) -> Iterator[Background]:
    """Run operations of `make`, `num_lanes` at a time, as long as the block lasts. Their first error is raised then."""
    done = Background()
    counts = [0] * num_lanes
    over = threading.Event()
    making = threading.Lock()

    def lane(number: int) -> None:
        try:
            while not over.is_set():
                with making:
                    op = make()
                op(number)
                counts[number] += 1
        except BaseException as error:
            done.failed.append(error)

    threads = [threading.Thread(target=lane, args=(number,)) for number in range(num_lanes)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        over.set()
        for thread in threads:
            thread.join()
        done.seconds = time.perf_counter() - begun
        done.num_done = sum(counts)
    if done.failed:
        raise done.failed[0]

"""`hifc bench flash`: put and get of whole blocks against two references, and reads beside background writing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hifc_ray.bench import crew
from hifc_ray.bench.contender import Buffers, Contender
from hifc_ray.bench.crew import Sample
from hifc_ray.bench.flash_plan import NUM_SEGMENTS, Plan
from hifc_ray.bench.flash_reference import Bare, FilePerBlock
from hifc_ray.bench.flash_shipped import Shipped
from hifc_ray.bench.places import disk_directory, file_system_of, scratch
from hifc_ray.bench.rounds import Progress, interleaved
from hifc_ray.config import format_bytes
from hifc_ray.types import AnyArray

SHIPPED, BARE, FILE = "shipped", "bare", "file"
_MIXED_READS = 0.7
_WARM_UP_S = 0.05  # of background writing, before reads beside it are timed

Samples = Mapping[str, list[Sample]]  # by contender


@dataclass(frozen=True)
class Cell:
    """What was measured with blocks of one size and so many in flight."""

    block_bytes: int
    in_flight: int
    num_ops: int  # of each sample
    puts: Samples
    gets: Samples


@dataclass(frozen=True)
class Mixed:
    """Reads and writes at once, 70 to 30. `is_read` [ops], the same in every sample."""

    block_bytes: int
    in_flight: int
    is_read: AnyArray
    samples: Samples


@dataclass(frozen=True)
class Beside:
    """Reads alone and beside background writing, one read at a time."""

    read_bytes: int
    writes_in_flight: int
    alone_s: Mapping[str, AnyArray]  # latencies, by contender
    under_s: Mapping[str, AnyArray]
    written_bytes_per_s: Mapping[str, float]


@dataclass(frozen=True)
class Outcome:
    """All that was measured."""

    plan: Plan
    cells: list[Cell]
    mixed: list[Mixed]
    beside: Beside


def run(plan: Plan, flash_dir: Path | None, progress: Progress) -> tuple[Outcome, dict[str, Any]]:
    """Measure; returns the outcome, and what machine it is of. Raises `ConfigError`, `StorageError`."""
    parent = disk_directory(flash_dir, plan.need_bytes())
    progress(f"flash: in {parent}; writes about {format_bytes(plan.written_bytes())}")
    written, begun = written_so_far(), time.monotonic()
    outcome = measure(plan, parent, progress)
    machine = {
        "flash_dir": parent,
        "file_system": file_system_of(parent),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "written_bytes": written_so_far() - written,
        "seconds": round(time.monotonic() - begun),
    }
    return outcome, machine


def written_so_far() -> int:
    """Bytes that this process has sent to disks."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines())
    return int(counters["write_bytes"])


def measure(plan: Plan, parent: Path, progress: Progress) -> Outcome:
    """Measure all cells in scratch directories of `parent`, gone afterwards."""
    cells: list[Cell] = []
    mixed: list[Mixed] = []
    for size in plan.sizes:
        progress(f"flash: blocks of {format_bytes(size)}, {plan.num_pairs} pairs at {', '.join(map(str, plan.depths))}")
        with contenders(plan, size, parent) as (ways, buffers):
            cells += [_cell(plan, ways, buffers, depth) for depth in plan.depths]
            mixed.append(_mixed(plan, ways, buffers))
    progress(f"flash: reads of {format_bytes(plan.read_bytes)} beside background writing")
    with contenders(plan, plan.read_bytes, parent) as (ways, buffers):
        beside = _beside(plan, {name: ways[name] for name in (SHIPPED, BARE)}, buffers)
    return Outcome(plan, cells, mixed, beside)


@contextmanager
def contenders(plan: Plan, block_bytes: int, parent: Path) -> Iterator[tuple[dict[str, Contender], Buffers]]:
    """All three, filled, for blocks of one size."""
    with scratch(parent) as root, ExitStack() as stack:
        buffers = Buffers(block_bytes, max(*plan.depths, plan.background_depth))
        places = {name: root / name for name in (SHIPPED, BARE, FILE)}
        for place in places.values():
            place.mkdir(mode=0o700)
        config = plan.config(block_bytes, places[SHIPPED])
        num_blocks = config.limit_bytes // block_bytes
        shipped = Shipped(places[SHIPPED], plan, buffers)
        stack.callback(shipped.close)
        bare = Bare(places[BARE], config.segment_bytes, NUM_SEGMENTS, buffers)
        stack.callback(bare.close)
        file = FilePerBlock(places[FILE], config.segment_bytes, num_blocks, buffers)
        stack.callback(file.close)
        shipped.check()
        yield {SHIPPED: shipped, BARE: bare, FILE: file}, buffers


def _cell(plan: Plan, ways: Mapping[str, Contender], buffers: Buffers, depth: int) -> Cell:
    buffers.share_out(depth)
    count = plan.num_ops(buffers.block_bytes, depth)

    def put(way: Contender) -> Callable[[], Sample]:
        return lambda: crew.run(way.puts(count), depth)

    def get(way: Contender) -> Callable[[], Sample]:
        return lambda: crew.run(way.gets(2 * count), depth)  # reads wear nothing

    puts = interleaved({name: put(way) for name, way in ways.items()}, plan.num_pairs)
    gets = interleaved({name: get(way) for name, way in ways.items()}, plan.num_pairs)
    return Cell(buffers.block_bytes, depth, count, puts, gets)


def _mixed(plan: Plan, ways: Mapping[str, Contender], buffers: Buffers) -> Mixed:
    depth = plan.mixed_depth
    buffers.share_out(depth)
    count = plan.num_ops(buffers.block_bytes, depth)
    num_reads = round(_MIXED_READS * count)
    is_read = np.random.default_rng(4).permutation(count) < num_reads

    def both(way: Contender) -> Callable[[], Sample]:
        def sample() -> Sample:
            gets, puts = iter(way.gets(num_reads)), iter(way.puts(count - num_reads))
            return crew.run([next(gets if read else puts) for read in is_read], depth)

        return sample

    samples = interleaved({name: both(way) for name, way in ways.items()}, plan.num_pairs)
    return Mixed(buffers.block_bytes, depth, is_read, samples)


def _beside(plan: Plan, ways: Mapping[str, Contender], buffers: Buffers) -> Beside:
    depth = plan.background_depth
    buffers.share_out(1)
    written: dict[str, list[float]] = {name: [] for name in ways}

    def alone(way: Contender) -> Callable[[], Sample]:
        return lambda: crew.run(way.gets(plan.num_reads), 1)

    def under(name: str, way: Contender) -> Callable[[], Sample]:
        def sample() -> Sample:
            gets = way.gets(plan.num_reads)
            with crew.meanwhile(lambda: way.puts(1)[0], depth) as background:
                time.sleep(_WARM_UP_S)
                reads = crew.run(gets, 1)
            written[name].append(background.num_done * buffers.block_bytes / background.seconds)
            return reads

        return sample

    measures = {f"{name} alone": alone(way) for name, way in ways.items()}
    measures |= {f"{name} under": under(name, way) for name, way in ways.items()}
    samples = interleaved(measures, plan.num_pairs)
    latencies = {what: np.concatenate([sample.latencies_s for sample in taken]) for what, taken in samples.items()}
    return Beside(
        buffers.block_bytes,
        depth,
        {name: latencies[f"{name} alone"] for name in ways},
        {name: latencies[f"{name} under"] for name in ways},
        {name: float(np.median(rates)) for name, rates in written.items()},
    )

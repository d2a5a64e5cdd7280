"""The outcome of `hifc bench flash`, told: as JSON, as tables, and against what is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hifc_ray.bench.crew import Sample
from hifc_ray.bench.flash_plan import NUM_PAIRS
from hifc_ray.bench.flash_store import BARE, FILE, SHIPPED, Beside, Cell, Mixed, Outcome, Samples
from hifc_ray.bench.report import Wanted
from hifc_ray.bench.rounds import ratios
from hifc_ray.types import AnyArray

WANTED_FROM_BYTES = 1 << 20
GET, GET_ALONE = Wanted(0.95), Wanted(0.7)
PUT, PUT_ALONE = Wanted(0.90), Wanted(0.7)
PUT_VS_FILE = Wanted(1.5)
READ_P99 = Wanted(3.0, at_most=True)
_MANY = 4  # in flight

NOTES = """\
÷ bare, ÷ file: throughputs of the store and the reference, median of the pairs (quartiles); total: of all bytes
bare: O_DIRECT pwritev and preadv, same memory, in preallocated files of a segment's size, written over and over; no
names, checksums or syncs.
file: temporary file, O_DIRECT write, rename; open, O_DIRECT read, close. As durable as the store, which syncs a segment
when it seals it: whenever a segment's worth is written, its files and the directory are synced. Old files are deleted
outside the timing.
The store is full throughout, so that room is made for each segment; nothing is carried over, since nobody asks for
these blocks again; every read is verified."""


@dataclass(frozen=True)
class Judged:
    """One figure against its bound."""

    name: str
    value: float
    wanted: Wanted

    @property
    def met(self) -> bool:
        return self.wanted.met_by(self.value)


def to_json(outcome: Outcome, machine: Mapping[str, Any]) -> dict[str, Any]:
    """`rows`, `mixed`, `read_p99_under_write_ratio`, and what stands behind them."""
    rows = [_row(cell) for cell in outcome.cells]
    beside = _beside(outcome.beside)
    return {
        "rows": rows,
        "mixed": [_mixed(mixed) for mixed in outcome.mixed],
        "read_p99_under_write_ratio": beside["ratio"][SHIPPED],
        "read_under_write": beside,
        "wanted": [_verdict(judged) for judged in judge(rows, beside["ratio"][SHIPPED])],
        "pairs": outcome.plan.num_pairs,
        "notes": NOTES.splitlines(),
        "machine": dict(machine),
    }


def judge(rows: Iterable[Mapping[str, Any]], read_p99_ratio: float) -> list[Judged]:
    """Everything that is wanted, of the rows that it is wanted of."""
    judged = []
    for row in rows:
        depth, size = row["in_flight"], row["bytes"]
        if size < WANTED_FROM_BYTES:
            continue
        where = f"{format_size(size)} × {depth}"
        if depth >= _MANY or depth == 1:
            get, put = (GET, PUT) if depth >= _MANY else (GET_ALONE, PUT_ALONE)
            judged.append(Judged(f"get_ratio {where}", row["get_ratio"], get))
            judged.append(Judged(f"put_ratio {where}", row["put_ratio"], put))
        judged.append(Judged(f"put_vs_file {where}", row["put_vs_file"], PUT_VS_FILE))
    return [*judged, Judged("read_p99_under_write_ratio", read_p99_ratio, READ_P99)]


COLUMNS = ("block", "in flight", "", "÷ bare", "÷ file", "total ÷ bare", "total ÷ file", "GB/s", "p50 ms", "p99 ms",
           "CPU s/GiB")  # fmt: skip


def table(answer: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Two rows of `COLUMNS`, get and put, for each size and depth."""
    return [
        (
            format_size(row["bytes"]),
            row["in_flight"],
            op,
            _spread(row, f"{op}_ratio"),
            _spread(row, f"{op}_vs_file"),
            f"{row[f'{op}_ratio_total']:.2f}",
            f"{row[f'{op}_vs_file_total']:.2f}",
            *_ways(row[op]),
        )
        for row in answer["rows"]
        for op in ("get", "put")
    ]


MIXED_COLUMNS = ("block", "in flight", "÷ bare", "÷ file", "GB/s", "p50 ms", "p99 ms", "CPU s/GiB", "get p99 ms",
                 "put p99 ms")  # fmt: skip


def mixed_table(answer: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """One row of `MIXED_COLUMNS` for each size."""
    return [
        (
            format_size(row["bytes"]),
            row["in_flight"],
            _spread(row, "ratio"),
            _spread(row, "vs_file"),
            *_ways(row["ways"]),
            _three(row["ways"], "get_p99_s", 1e3),
            _three(row["ways"], "put_p99_s", 1e3),
        )
        for row in answer["mixed"]
    ]


def remarks(answer: Mapping[str, Any]) -> list[str]:
    """What the tables do not say: reads beside writes, bounds, and how it was measured."""
    beside = answer["read_under_write"]
    lines = [
        f"read of {format_size(beside['read_bytes'])} beside {beside['writes_in_flight']} writes in flight, {way}: p99 "
        f"{beside['under_p99_s'][way] * 1e3:.2f} ms ÷ {beside['alone_p99_s'][way] * 1e3:.2f} ms alone = {ratio:.2f}; "
        f"p50 {beside['under_p50_s'][way] * 1e3:.2f} ÷ {beside['alone_p50_s'][way] * 1e3:.2f} ms; "
        f"{beside['written_bytes_per_s'][way] / 1e9:.2f} GB/s written meanwhile; {beside['reads']} reads"
        for way, ratio in beside["ratio"].items()
    ]
    short = [judged for judged in answer["wanted"] if not judged["met"]]
    lines.append(f"wanted: {len(answer['wanted']) - len(short)} of {len(answer['wanted'])} met")
    lines += [f"short: {judged['name']} is {judged['value']:.2f}, wanted {judged['wanted']}" for judged in short]
    if answer["pairs"] < NUM_PAIRS:
        lines.append(f"only {answer['pairs']} pairs: fewer than {NUM_PAIRS} say little")
    return [*lines, *answer["notes"], ", ".join(f"{name} {value}" for name, value in answer["machine"].items())]


def format_size(num_bytes: int) -> str:
    """Whole KiB or MiB, as sizes of blocks are given."""
    return f"{num_bytes >> 20} MiB" if num_bytes % (1 << 20) == 0 else f"{num_bytes / 1024:g} KiB"


def _row(cell: Cell) -> dict[str, Any]:
    row: dict[str, Any] = {"bytes": cell.block_bytes, "in_flight": cell.in_flight, "ops": cell.num_ops}
    for op, samples in (("get", cell.gets), ("put", cell.puts)):
        row |= _compare(f"{op}_ratio", samples, BARE) | _compare(f"{op}_vs_file", samples, FILE)
        row[op] = {name: _way(taken, cell.block_bytes) for name, taken in samples.items()}
    return row


def _mixed(mixed: Mixed) -> dict[str, Any]:
    row: dict[str, Any] = {"bytes": mixed.block_bytes, "in_flight": mixed.in_flight, "ops": len(mixed.is_read)}
    row |= _compare("ratio", mixed.samples, BARE) | _compare("vs_file", mixed.samples, FILE)
    row["ways"] = {}
    for name, taken in mixed.samples.items():
        latencies = np.stack([sample.latencies_s for sample in taken])
        way = _way(taken, mixed.block_bytes)
        way |= _percentiles(latencies[:, mixed.is_read], "get_") | _percentiles(latencies[:, ~mixed.is_read], "put_")
        row["ways"][name] = way
    return row


def _beside(beside: Beside) -> dict[str, Any]:
    alone = {way: _percentiles(latencies) for way, latencies in beside.alone_s.items()}
    under = {way: _percentiles(latencies) for way, latencies in beside.under_s.items()}
    return {
        "read_bytes": beside.read_bytes,
        "writes_in_flight": beside.writes_in_flight,
        "reads": len(beside.alone_s[SHIPPED]),
        "ratio": {way: under[way]["p99_s"] / alone[way]["p99_s"] for way in alone},
        **{f"alone_{name}": {way: alone[way][name] for way in alone} for name in ("p50_s", "p99_s")},
        **{f"under_{name}": {way: under[way][name] for way in under} for name in ("p50_s", "p99_s")},
        "written_bytes_per_s": dict(beside.written_bytes_per_s),
    }


def _compare(name: str, samples: Samples, reference: str) -> dict[str, Any]:
    """Throughputs of the store ÷ those of a reference: median, quartiles, and of all together."""
    ours, theirs = ([sample.seconds for sample in samples[way]] for way in (SHIPPED, reference))
    each = ratios(theirs, ours)
    return {
        name: float(np.median(each)),
        f"{name}_quartiles": np.percentile(each, [25, 75]).tolist(),
        f"{name}_total": sum(theirs) / sum(ours),
    }


def _way(taken: Sequence[Sample], block_bytes: int) -> dict[str, float]:
    latencies = np.concatenate([sample.latencies_s for sample in taken])
    sample_bytes = block_bytes * len(taken[0].latencies_s)
    return {
        "bytes_per_s": float(np.median([sample_bytes / sample.seconds for sample in taken])),
        "cpu_s_per_gib": sum(sample.cpu_s for sample in taken) / (len(taken) * sample_bytes / 2**30),
        **_percentiles(latencies),
    }


def _percentiles(latencies_s: AnyArray, prefix: str = "") -> dict[str, float]:
    if not latencies_s.size:
        return {f"{prefix}p50_s": float("nan"), f"{prefix}p99_s": float("nan")}
    half, high = np.percentile(latencies_s, [50, 99]).tolist()
    return {f"{prefix}p50_s": half, f"{prefix}p99_s": high}


def _verdict(judged: Judged) -> dict[str, Any]:
    return {"name": judged.name, "value": judged.value, "wanted": str(judged.wanted), "met": judged.met}


def _spread(row: Mapping[str, Any], name: str) -> str:
    low, high = row[f"{name}_quartiles"]
    return f"{row[name]:.2f} ({low:.2f}–{high:.2f})"


def _ways(ways: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return (
        _three(ways, "bytes_per_s", 1e-9),
        _three(ways, "p50_s", 1e3),
        _three(ways, "p99_s", 1e3),
        _three(ways, "cpu_s_per_gib", 1),
    )


def _three(ways: Mapping[str, Any], name: str, scale: float) -> str:
    return " | ".join(f"{ways[way][name] * scale:.2f}" for way in (SHIPPED, BARE, FILE))

"""Traces: which blocks each request asked for, in order. Read from JSON lines in Mooncake's and AIPerf's schema."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hifc_ray.errors import ConfigError
from hifc_ray.types import FloatArray, IntArray

_SCHEMA = "one JSON object a line with timestamp (ms), input_length, output_length, hash_ids, [session_id, turn]"
_MOST = 2**53  # what a float counts exactly


@dataclass(frozen=True)
class Request:
    """One request: the block hashes of its prompt from the first on, as the trace names them."""

    time_s: float
    hashes: Sequence[int | str]
    turn: int = 0


@dataclass(frozen=True)
class Trace:
    """Requests in order of time. Blocks are numbered from 0 by first appearance; equal number, equal prefix."""

    name: str
    blocks: IntArray  # [accesses], the chains of all requests, one after the other
    starts: IntArray  # [requests + 1], where each chain begins in `blocks`
    times_s: FloatArray  # [requests], from the first
    turns: IntArray  # [requests]
    num_blocks: int  # distinct ones

    def __len__(self) -> int:
        return len(self.times_s)

    @property
    def num_accesses(self) -> int:
        return len(self.blocks)

    def chain(self, request: int) -> IntArray:
        """Block numbers of a request, from its first block on."""
        return self.blocks[self.starts[request] : self.starts[request + 1]]


def make(name: str, requests: Iterable[Request]) -> Trace:
    """A trace of these requests, sorted by time (equal times stay in order).

    A block is its hash and all hashes before it, so hashes of the content alone are as good as chained ones.
    """
    ordered = sorted(requests, key=lambda request: request.time_s)
    numbers: dict[tuple[int, int | str], int] = {}
    blocks: list[int] = []
    starts = [0]
    for request in ordered:
        before = -1
        for one_hash in request.hashes:
            before = numbers.setdefault((before, one_hash), len(numbers))
            blocks.append(before)
        starts.append(len(blocks))
    times = np.array([request.time_s for request in ordered])
    return Trace(
        name=name,
        blocks=np.array(blocks, np.int64),
        starts=np.array(starts, np.int64),
        times_s=times - times[:1].sum(),
        turns=np.array([request.turn for request in ordered], np.int64),
        num_blocks=len(numbers),
    )


def load(path: Path) -> Trace:
    """The trace in a `.jsonl` or `.jsonl.gz` file. Raises `ConfigError` that names the file, the line and the fault."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            requests = list(_requests(path, lines))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ConfigError(f"trace {path} cannot be read: {error}; allowed: a .jsonl or .jsonl.gz file") from error
    if not any(request.hashes for request in requests):
        raise ConfigError(f"trace {path} names no block; allowed: {_SCHEMA}")
    return make(path.name.removesuffix(".gz").removesuffix(".jsonl"), requests)


def _requests(path: Path, lines: Iterable[str]) -> Iterator[Request]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _request(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            raise ConfigError(f"trace {path}, line {number}: {why}; allowed: {_SCHEMA}") from error


def _request(fields: Any) -> Request:
    if not isinstance(fields, Mapping):
        raise TypeError(f"is a JSON {type(fields).__name__}, not an object")
    hashes = fields["hash_ids"]
    if not isinstance(hashes, list) or not all(isinstance(one, int | str) for one in hashes):
        raise TypeError("hash_ids is not a list of numbers or texts")
    return Request(
        time_s=_number(fields, "timestamp") / 1000.0, hashes=hashes, turn=int(_number(fields, "turn", default=0.0))
    )


def _number(fields: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = fields[name] if default is None else fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise ValueError(f"{name} is {value!r}, not a number from 0 up to {_MOST}")
    return float(value)

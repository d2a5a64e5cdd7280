"""What the flash store is measured against: bare direct I/O into preallocated files, and one file for each block."""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from hifc_ray.bench.contender import Buffers
from hifc_ray.bench.crew import Op
from hifc_ray.errors import TierUnavailable

_READ = os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT | os.O_CLOEXEC


class Bare:
    """Direct I/O and nothing else: blocks side by side in files that exist, are as large as segments, and are written
    over and over. Nothing is named, verified or synced."""

    def __init__(self, directory: Path, segment_bytes: int, num_segments: int, buffers: Buffers) -> None:
        self._buffers = buffers
        self._per_file = segment_bytes // buffers.block_bytes
        self._files = [_preallocated(directory / f"{number}.bare", segment_bytes) for number in range(num_segments)]
        self._num_slots = self._per_file * num_segments
        self._num_made = 0
        self._random = np.random.default_rng(2)
        for op in self.puts(self._num_slots):
            op(0)

    def puts(self, count: int) -> Sequence[Op]:
        numbers = range(self._num_made, self._num_made + count)
        self._num_made += count
        return [partial(self._put, number, *self._place(number)) for number in numbers]

    def gets(self, count: int) -> Sequence[Op]:
        ages = self._random.integers(1, self._num_slots // 3 + 1, count).tolist()
        return [partial(self._get, *self._place(self._num_made - age)) for age in ages]

    def close(self) -> None:
        for file in self._files:
            os.close(file)

    def _place(self, number: int) -> tuple[int, int]:
        file, row = divmod(number % self._num_slots, self._per_file)
        return self._files[file], row * self._buffers.block_bytes

    def _put(self, number: int, file: int, offset: int, lane: int) -> None:
        _whole(os.pwritev(file, [self._buffers.source(number)], offset), self._buffers.block_bytes)

    def _get(self, file: int, offset: int, lane: int) -> None:
        _whole(os.preadv(file, [self._buffers.target(lane)], offset), self._buffers.block_bytes)


class FilePerBlock:
    """A file for each block, past the page cache: a temporary file, one write, a rename; to read it, open, read, close.

    As durable as a log that syncs each segment: whenever a segment's worth has been written, its files and their
    directory are synced, by whichever put it falls to. Old files are deleted between samples, not while one is timed.
    """

    def __init__(self, directory: Path, sync_bytes: int, num_blocks: int, buffers: Buffers) -> None:
        self._directory = directory
        self._buffers = buffers
        self._sync_blocks = max(1, sync_bytes // buffers.block_bytes)
        self._num_blocks = num_blocks
        self._num_made = 0
        self._stored: deque[Path] = deque()
        self._unsynced: list[int] = []
        self._lock = threading.Lock()
        self._random = np.random.default_rng(3)
        for op in self.puts(num_blocks):
            op(0)

    def puts(self, count: int) -> Sequence[Op]:
        self._trim()
        numbers = range(self._num_made, self._num_made + count)
        self._num_made += count
        return [partial(self._put, number) for number in numbers]

    def gets(self, count: int) -> Sequence[Op]:
        newer = list(itertools.islice(reversed(self._stored), self._num_blocks // 3))
        return [partial(self._get, newer[row]) for row in self._random.integers(0, len(newer), count)]

    def close(self) -> None:
        self._sync(self._unsynced)

    def _put(self, number: int, lane: int) -> None:
        path = self._directory / f"{number:016x}.block"
        temporary = self._directory / f"{number:016x}.tmp"
        file = os.open(temporary, _MAKE, 0o600)
        _whole(os.pwritev(file, [self._buffers.source(number)], 0), self._buffers.block_bytes)
        temporary.rename(path)
        self._stored.append(path)
        with self._lock:
            self._unsynced.append(file)
            if len(self._unsynced) < self._sync_blocks:
                return
            files, self._unsynced = self._unsynced, []
        self._sync(files)

    def _sync(self, files: list[int]) -> None:
        for file in files:
            os.fsync(file)
            os.close(file)
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fsync(directory)
        os.close(directory)

    def _get(self, path: Path, lane: int) -> None:
        file = os.open(path, _READ)
        got = os.preadv(file, [self._buffers.target(lane)], 0)
        os.close(file)
        _whole(got, self._buffers.block_bytes)

    def _trim(self) -> None:
        while len(self._stored) > self._num_blocks:
            self._stored.popleft().unlink()


def _preallocated(path: Path, size_bytes: int) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    os.posix_fallocate(file, 0, size_bytes)
    return file


def _whole(done: int, wanted: int) -> None:
    if done != wanted:
        raise TierUnavailable(f"a reference moved {done} of {wanted} bytes")

"""What `hifc bench flash` measures: sizes, depths, repetitions, and how many bytes that takes. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hifc_ray.config import FlashConfig, parse_bytes
from hifc_ray.errors import ConfigError
from hifc_ray.flash.sizing import BASE_BYTES, choose_segment_bytes, segment_cost
from hifc_ray.layout import PAGE_BYTES

SIZES = "256KiB,1MiB,4MiB,16MiB"
IN_FLIGHT = "1,2,4,8,16"
NUM_PAIRS = 30
MAX_BLOCK_BYTES = 64 << 20
MAX_IN_FLIGHT = 64
MAX_PAIRS = 1000
NUM_CONTENDERS = 3  # ours and two references
NUM_SEGMENTS = 6  # one more than a store insists on

_STRIPE_BYTES = 128 << 10  # 256 tokens of one layer with one bfloat16 KV head of 128: 70B parameters over 8 GPUs
_USUAL_LIMIT_BYTES = 16 << 30  # for which segments have their usual size


@dataclass(frozen=True)
class Plan:
    """Which cells are measured, and how often."""

    sizes: tuple[int, ...]
    depths: tuple[int, ...]
    num_pairs: int = NUM_PAIRS
    sample_bytes: int = 16 << 20  # of one sample, at least, and a block for each in flight
    segment_bytes: int = 0  # as `FlashConfig`
    read_bytes: int = 1 << 20  # of one read beside background writing
    num_reads: int = 60  # of one sample of them: 30 pairs make a p99 of 1,800 reads

    def num_ops(self, block_bytes: int, depth: int) -> int:
        """Blocks of one sample: two for each in flight where that does not take too many bytes, else one."""
        return max(depth, min(2 * depth, 2 * self.sample_bytes // block_bytes), self.sample_bytes // block_bytes)

    @property
    def mixed_depth(self) -> int:
        """In flight while reading and writing at once: 4, or what comes next to it."""
        return min(self.depths, key=lambda depth: (abs(depth - 4), depth))

    @property
    def background_depth(self) -> int:
        """Writes in flight beside the reads."""
        return self.mixed_depth

    def stripe_bytes(self, block_bytes: int) -> int:
        """The largest stripe of whole pages, up to the usual one, that makes up a block."""
        pages = block_bytes // PAGE_BYTES
        most = min(pages, _STRIPE_BYTES // PAGE_BYTES)
        return next(count for count in range(most, 0, -1) if pages % count == 0) * PAGE_BYTES

    def config(self, block_bytes: int, directory: Path) -> FlashConfig:
        """A store for these blocks, of `NUM_SEGMENTS` segments as large as they usually are.

        Without a write budget, and without carry-over: nobody asks for these blocks again.
        """
        asked = self.segment_bytes
        usual = FlashConfig(limit_bytes=_USUAL_LIMIT_BYTES, segment_bytes=asked)
        segment_bytes = choose_segment_bytes(usual, block_bytes)
        limit = BASE_BYTES + NUM_SEGMENTS * (segment_cost(segment_bytes) + PAGE_BYTES)
        return FlashConfig((directory,), limit, segment_bytes, carry_share=0, drive_writes_per_day=0)

    def need_bytes(self) -> int:
        """Disk that has to be free: each contender fills as much, one size after the other."""
        return (NUM_CONTENDERS + 1) * max(
            self.config(size, Path()).limit_bytes for size in (*self.sizes, self.read_bytes)
        )

    def written_bytes(self) -> int:
        """About how much the whole writes, but for the background writing."""
        cells = sum(self.num_ops(size, depth) * size for size in self.sizes for depth in self.depths)
        mixed = sum(self.num_ops(size, self.mixed_depth) * size for size in self.sizes) * 3 // 10
        filled = sum(self.config(size, Path()).limit_bytes for size in self.sizes)
        return NUM_CONTENDERS * (self.num_pairs * (cells + mixed) + filled)


def parse(sizes: str, in_flight: str, num_pairs: int) -> Plan:
    """A plan from what a person wrote. Raises `ConfigError` that names the value."""
    if not 1 <= num_pairs <= MAX_PAIRS:
        raise ConfigError(f"--pairs is {num_pairs}; allowed: 1 to {MAX_PAIRS}")
    return Plan(
        tuple(dict.fromkeys(_size(text) for text in sizes.split(","))),
        tuple(dict.fromkeys(_depth(text) for text in in_flight.split(","))),
        num_pairs,
    )


def _size(text: str) -> int:
    size = parse_bytes(text.strip(), "--sizes")
    if size % PAGE_BYTES or not PAGE_BYTES <= size <= MAX_BLOCK_BYTES:
        raise ConfigError(f"--sizes has {text.strip()!r}; allowed: whole pages of {PAGE_BYTES} bytes, up to 64MiB")
    return size


def _depth(text: str) -> int:
    depth = int(text) if text.strip().isdecimal() else 0
    if not 1 <= depth <= MAX_IN_FLIGHT:
        raise ConfigError(f"--in-flight has {text.strip()!r}; allowed: whole numbers from 1 to {MAX_IN_FLIGHT}")
    return depth

"""How large a segment is, and what it may cost of the byte limit."""

from __future__ import annotations

from collections.abc import Sequence

from hifc_ray.config import FlashConfig, format_bytes
from hifc_ray.errors import ConfigError
from hifc_ray.flash.address import MAX_SEGMENT_BYTES
from hifc_ray.flash.device import METADATA_BYTES
from hifc_ray.layout import PAGE_BYTES, round_up

MIN_SEGMENTS = 5
MIN_RECORDS = 16  # of the largest block, in each segment
USUAL_SEGMENT_BYTES = 64 << 20
LEAST_USUAL_BYTES = 16 << 20  # each is synced once, whatever its size
MANY_SEGMENTS = 128  # with fewer, hot and cold blocks lie in one segment, and reclaim costs hits
MAX_SEGMENTS = 256  # keeps open files few on large devices; each segment is one
BASE_BYTES = 16 * 1024  # the directory itself and its lock
_HINT_SHARE = 64  # a hint's row has 96 bytes and a filter 2 bytes a block, a record at least two pages


def segment_cost(segment_bytes: int) -> int:
    """The most that a segment, its filter and its hint occupy."""
    return segment_bytes + segment_bytes // _HINT_SHARE + 2 * METADATA_BYTES + PAGE_BYTES


def shares(limit_bytes: int, capacities: Sequence[int]) -> list[int]:
    """The limit of each device, in proportion to what it can hold; never more than `limit_bytes` together."""
    total = max(1, sum(capacities))
    return [limit_bytes * capacity // total for capacity in capacities]


def choose_segment_bytes(config: FlashConfig, block_bytes: int, num_volumes: int = 1, limit_bytes: int = 0) -> int:
    """Bytes of a new segment on each volume, of which the smallest may take `limit_bytes` (0: its even share).

    Raises `ConfigError` if the limit, or the size asked for, does not do.
    """
    limit = limit_bytes or config.limit_bytes // num_volumes
    least = PAGE_BYTES + MIN_RECORDS * (round_up(block_bytes, PAGE_BYTES) + 2 * PAGE_BYTES)
    share = (limit - BASE_BYTES) // MIN_SEGMENTS - 2 * METADATA_BYTES - PAGE_BYTES
    most = min(share * _HINT_SHARE // (_HINT_SHARE + 1) // PAGE_BYTES * PAGE_BYTES, MAX_SEGMENT_BYTES)
    if most < least:
        needed = MIN_SEGMENTS * (segment_cost(least) + PAGE_BYTES) + BASE_BYTES
        raise ConfigError(
            f"flash.limit_bytes is {config.limit_bytes}; allowed: at least {num_volumes * needed} "
            f"({format_bytes(num_volumes * needed)}), {MIN_SEGMENTS} segments of {MIN_RECORDS} blocks of {block_bytes} "
            f"bytes{' on each device' if num_volumes > 1 else ''}"
        )
    asked = round_up(config.segment_bytes, PAGE_BYTES)
    if asked and not least <= asked <= most:
        raise ConfigError(
            f"flash.segment_bytes is {config.segment_bytes}; allowed: 0 (chosen for you), or from {least} "
            f"({MIN_RECORDS} blocks of {block_bytes} bytes) to {most} (a fifth of the limit of a device)"
        )
    record = round_up(block_bytes, PAGE_BYTES) + 2 * PAGE_BYTES
    many = min(USUAL_SEGMENT_BYTES, max(LEAST_USUAL_BYTES, limit // MANY_SEGMENTS))
    usual = max(least, many, limit // MAX_SEGMENTS)
    usual = PAGE_BYTES + round_up(usual - PAGE_BYTES, record)  # no room at its end that no block fits in
    return asked or min(usual, most)

"""How large a segment is, and what it may cost of the byte limit."""

from __future__ import annotations

from hifc_ray.config import FlashConfig, format_bytes
from hifc_ray.errors import ConfigError
from hifc_ray.flash.address import MAX_SEGMENT_BYTES
from hifc_ray.flash.device import METADATA_BYTES
from hifc_ray.layout import PAGE_BYTES, round_up

MIN_SEGMENTS = 5
MIN_RECORDS = 16  # of the largest block, in each segment
USUAL_SEGMENT_BYTES = 64 << 20
MAX_SEGMENTS = 256  # keeps open files few on large devices; each segment is one
BASE_BYTES = 16 * 1024  # the directory itself and its lock
_HINT_SHARE = 128  # a hint entry has 56 bytes, a record at least two pages


def segment_cost(segment_bytes: int) -> int:
    """The most that a segment and its hint occupy."""
    return segment_bytes + segment_bytes // _HINT_SHARE + 2 * METADATA_BYTES


def choose_segment_bytes(config: FlashConfig, block_bytes: int) -> int:
    """Bytes of a new segment. Raises `ConfigError` if the limit, or the size asked for, does not do."""
    least = PAGE_BYTES + MIN_RECORDS * (round_up(block_bytes, PAGE_BYTES) + 2 * PAGE_BYTES)
    share = (config.limit_bytes - BASE_BYTES) // MIN_SEGMENTS - 2 * METADATA_BYTES
    most = min(share * _HINT_SHARE // (_HINT_SHARE + 1) // PAGE_BYTES * PAGE_BYTES, MAX_SEGMENT_BYTES)
    if most < least:
        needed = MIN_SEGMENTS * (segment_cost(least) + PAGE_BYTES) + BASE_BYTES
        raise ConfigError(
            f"flash.limit_bytes is {config.limit_bytes}; allowed: at least {needed} ({format_bytes(needed)}), "
            f"{MIN_SEGMENTS} segments of {MIN_RECORDS} blocks of {block_bytes} bytes"
        )
    asked = round_up(config.segment_bytes, PAGE_BYTES)
    if asked and not least <= asked <= most:
        raise ConfigError(
            f"flash.segment_bytes is {config.segment_bytes}; allowed: 0 (chosen for you), or from {least} "
            f"({MIN_RECORDS} blocks of {block_bytes} bytes) to {most} (a fifth of flash.limit_bytes)"
        )
    usual = max(least, USUAL_SEGMENT_BYTES, round_up(config.limit_bytes // MAX_SEGMENTS, PAGE_BYTES))
    return asked or min(usual, most)

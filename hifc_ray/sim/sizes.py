"""How many segments and blocks a flash of so many bytes has: the arithmetic that ships."""

from __future__ import annotations

from dataclasses import dataclass

from hifc_ray.config import FlashConfig
from hifc_ray.errors import ConfigError
from hifc_ray.flash.device import METADATA_BYTES
from hifc_ray.flash.sizing import MIN_RECORDS, MIN_SEGMENTS, choose_segment_bytes, segment_cost
from hifc_ray.layout import PAGE_BYTES, round_up

_HEADER_PAGES = 2  # of a record
_HINT_BYTES = 128  # of a block, with its part of the segment's filter: at most


@dataclass(frozen=True)
class FlashSize:
    """A flash tier of as many bytes as `num_blocks` blocks have."""

    num_blocks: int
    block_bytes: int
    segment_bytes: int
    num_segments: int  # that fit, one of which is kept free

    @property
    def record_bytes(self) -> int:
        return round_up(self.block_bytes, PAGE_BYTES) + _HEADER_PAGES * PAGE_BYTES

    @property
    def segment_blocks(self) -> int:
        return (self.segment_bytes - PAGE_BYTES) // self.record_bytes

    def device_bytes(self, num_records: int, num_segments: int) -> int:
        """What that many records in that many segments write, with headers, footers and hints."""
        per_record, per_segment = self.record_bytes + _HINT_BYTES, PAGE_BYTES + 2 * METADATA_BYTES
        return num_records * per_record + num_segments * per_segment


def flash_size(num_blocks: int, block_bytes: int) -> FlashSize:
    """The segments of a flash tier. Raises `ConfigError` if so few blocks are none."""
    limit_bytes = num_blocks * block_bytes
    try:
        segment_bytes = choose_segment_bytes(FlashConfig(limit_bytes=max(1, limit_bytes)), block_bytes)
    except ConfigError as error:
        least = MIN_SEGMENTS * (MIN_RECORDS + 1)
        raise ConfigError(
            f"flash has {num_blocks} blocks of {block_bytes} bytes; allowed: at least {MIN_SEGMENTS} segments of "
            f"{MIN_RECORDS} blocks with their metadata, about {least} blocks"
        ) from error
    return FlashSize(num_blocks, block_bytes, segment_bytes, limit_bytes // segment_cost(segment_bytes))

"""Replays of traces by size of flash and by policy, each beside the ideal; rows of figures, told honestly.

- `ideal`: the same host memory before a plain LRU store of the same flash bytes, which writes each block it admits
  once and in place.
- `in_place_pages`: flash pages of 4 KiB that a store programs which rewrites a block in place on every store: each time
  that a request has used it, found or computed, as an engine does that swaps sequences out. The drive's own garbage
  collection is left out, which favours that store: a log of whole segments causes next to none.
- `in_place_once_pages`: the same for a store that writes only what it lacks, as the ideal does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hifc_ray.config import FlashConfig
from hifc_ray.errors import ConfigError
from hifc_ray.layout import PAGE_BYTES, round_up
from hifc_ray.policies import registry
from hifc_ray.sim.flash import LogFlash, LruFlash, Written
from hifc_ray.sim.sizes import FlashSize, flash_size
from hifc_ray.sim.tiers import Budget, Counts, Host, TwoTiers, fingerprints
from hifc_ray.sim.traces import Trace

LEAST_HOST_BLOCKS = 16


@dataclass(frozen=True)
class Settings:
    """What to replay. Shares are of a trace's distinct blocks. Raises `ConfigError` for a value that does not do."""

    flash_shares: Sequence[float] = (0.03, 0.1, 0.3)
    host_share: float = 0.01
    evictions: Sequence[str] = ("lru",)
    admissions: Sequence[str] = tuple(registry.ADMISSION)
    block_bytes: int = 20 << 20  # 512 tokens of a 70B model with 8 KV heads, on one of 8 GPUs
    budget_share: float = 0.25  # of what admitting everything writes: what `budgeted` may write
    carry_share: float = FlashConfig().carry_share

    def __post_init__(self) -> None:
        for share in (*self.flash_shares, self.host_share, self.budget_share):
            if not 0 < share <= 1:
                raise ConfigError(f"share is {share}; allowed: above 0, at most 1")
        if self.block_bytes < PAGE_BYTES:
            raise ConfigError(f"block bytes is {self.block_bytes}; allowed: at least {PAGE_BYTES}")
        if not self.flash_shares:
            raise ConfigError("no share of flash; allowed: one at least")
        for name in self.evictions:
            registry.eviction(name)
        for name in self.admissions:
            registry.admission(name)


@dataclass(frozen=True)
class Row:
    """One replay. Blocks are those of the trace; `hit_ratio` is by blocks and prefix-contiguous, host and flash."""

    trace: str
    flash_share: float
    flash_blocks: int
    num_segments: int
    segment_blocks: int
    host_blocks: int
    eviction: str
    admission: str
    accesses: int
    hit_ratio: float
    host_hit_ratio: float
    ideal_hit_ratio: float
    hit_loss_points: float
    write_amplification: float
    admitted_bytes: int
    carried_bytes: int
    device_written_bytes: int
    ideal_written_bytes: int
    refused_blocks: dict[str, int]
    read_back_per_written: float
    useful_share: float  # of the blocks written, those that were read from flash at least once
    pages: int
    in_place_pages: int
    in_place_once_pages: int
    writes_reduction: float
    writes_reduction_once: float


@dataclass(frozen=True)
class _Setting:
    trace: Trace
    share: float
    eviction: str
    size: FlashSize
    host_blocks: int

    def host(self, eviction: str) -> Host:
        return Host(self.host_blocks, self.trace.num_blocks, registry.eviction(eviction))


def simulate(traces: Sequence[Trace], settings: Settings, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows, one after the other as they are done. Raises `ConfigError` where a flash is too small."""
    for setting in [s for trace in traces for s in _settings(trace, settings)]:
        ideal_counts, ideal_written = _ideal(setting)
        free_writes = 0
        for admission in sorted(settings.admissions, key=lambda name: (name != "always", name)):
            say(f"{setting.trace.name}, flash {setting.share:.0%}: {setting.eviction}, {admission}")
            budget = None
            if admission == "budgeted":
                free_writes = free_writes or _device_bytes(setting, _replay(setting, settings, "always", None)[1])
                budget = Budget(settings.budget_share * free_writes, setting.trace.num_accesses)
            counts, written = _replay(setting, settings, admission, budget)
            if admission == "always":
                free_writes = _device_bytes(setting, written)
            yield _row(setting, admission, counts, written, ideal_counts, ideal_written)


def to_json(rows: Sequence[Row], settings: Settings) -> dict[str, Any]:
    """`rows` with all their fields, and the `settings` that made them."""
    return {"rows": [asdict(row) for row in rows], "settings": asdict(settings)}


def _settings(trace: Trace, settings: Settings) -> Iterator[_Setting]:
    host_blocks = max(LEAST_HOST_BLOCKS, int(settings.host_share * trace.num_blocks))
    for share in settings.flash_shares:
        try:
            size = flash_size(int(share * trace.num_blocks), settings.block_bytes)
        except ConfigError as error:
            raise ConfigError(f"flash of {share:g} of trace {trace.name}: {error}") from error
        for eviction in settings.evictions:
            yield _Setting(trace, share, eviction, size, host_blocks)


def _ideal(setting: _Setting) -> tuple[Counts, Written]:
    flash = LruFlash(setting.size.num_blocks, setting.trace.num_blocks)
    tiers = TwoTiers(setting.host("lru"), flash, registry.admission("always"))
    return tiers.replay(setting.trace), flash.written


def _replay(setting: _Setting, settings: Settings, admission: str, budget: Budget | None) -> tuple[Counts, Written]:
    size, eviction = setting.size, registry.eviction(setting.eviction)
    flash = LogFlash(size, eviction, fingerprints(setting.trace.num_blocks), settings.carry_share)
    policy = registry.admission(admission, eviction, size.num_segments * size.segment_blocks)
    tiers = TwoTiers(setting.host(setting.eviction), flash, policy, budget, size.record_bytes)
    return tiers.replay(setting.trace), flash.written


def _device_bytes(setting: _Setting, written: Written) -> int:
    return setting.size.device_bytes(written.admitted + written.carried, written.num_segments)


def _row(
    setting: _Setting, admission: str, counts: Counts, written: Written, ideal: Counts, ideal_written: Written
) -> Row:
    size, device = setting.size, _device_bytes(setting, written)
    block_pages = round_up(size.block_bytes, PAGE_BYTES) // PAGE_BYTES
    pages, every, once = -(-device // PAGE_BYTES), counts.accesses * block_pages, ideal_written.admitted * block_pages
    return Row(
        trace=setting.trace.name,
        flash_share=setting.share,
        flash_blocks=size.num_blocks,
        num_segments=size.num_segments,
        segment_blocks=size.segment_blocks,
        host_blocks=setting.host_blocks,
        eviction=setting.eviction,
        admission=admission,
        accesses=counts.accesses,
        hit_ratio=counts.hit_ratio,
        host_hit_ratio=counts.host_hits / max(1, counts.accesses),
        ideal_hit_ratio=ideal.hit_ratio,
        hit_loss_points=100.0 * (ideal.hit_ratio - counts.hit_ratio),
        write_amplification=device / max(1, written.admitted * size.block_bytes),
        admitted_bytes=written.admitted * size.block_bytes,
        carried_bytes=written.carried * size.block_bytes,
        device_written_bytes=device,
        ideal_written_bytes=ideal_written.admitted * size.block_bytes,
        refused_blocks={reason: counts.refused[reason] for reason in ("policy", "budget")},
        read_back_per_written=counts.flash_hits * size.block_bytes / device,
        useful_share=counts.useful_writes / max(1, written.admitted),
        pages=pages,
        in_place_pages=every,
        in_place_once_pages=once,
        writes_reduction=every / pages,
        writes_reduction_once=once / pages,
    )

"""`hifc bench tiers`: which measures there are, in which order, and what each needs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hifc_ray.bench import blocks, copies, engine, flash, lookup, places, ttft
from hifc_ray.bench.report import Figure
from hifc_ray.bench.rounds import Progress
from hifc_ray.bench.sections import Effort
from hifc_ray.config import EngineConfig
from hifc_ray.engine.models import LoadedModel, load_model
from hifc_ray.health.readings import num_cores

_ON_FLASH = ("lookup", "flash", "ttft")
_POOL_BLOCKS = 24  # eight sequences of two blocks, or one of seven


def run(
    sections: Sequence[str],
    model: str,
    flash_dir: Path | None,
    progress: Progress,
    effort: Effort | None = None,
) -> tuple[list[Figure], dict[str, Any]]:
    """Measure; returns the figures, and what machine they are of. Raises `ConfigError`, `StorageError`."""
    effort = effort or Effort()
    threads = num_cores()
    on_flash = not set(sections).isdisjoint(_ON_FLASH)
    if on_flash:
        places.disk_directory(flash_dir, 0)  # what is wrong with it is told before anything takes time
    progress(f"loading {model}")
    torch.set_num_threads(threads)
    loaded = load_model(EngineConfig(model=model), progress)
    layout = loaded.layout
    config = EngineConfig(model=model, threads=threads, gpu_bytes=_POOL_BLOCKS * layout.block_bytes)
    disk = places.disk_directory(flash_dir, blocks.flash_bytes(layout)) if on_flash else None
    figures: list[Figure] = []
    for section in sections:
        if disk is not None and section in _ON_FLASH:
            with places.scratch(disk) as directory:
                figures += _on_flash(section, loaded, config, directory, progress, effort)
        else:
            figures += _in_memory(section, loaded, config, progress, effort)
    return figures, _machine(loaded, model, threads, disk)


def _on_flash(
    section: str, loaded: LoadedModel, config: EngineConfig, directory: Path, progress: Progress, effort: Effort
) -> list[Figure]:
    if section == "flash":
        return flash.measure(loaded.layout, directory, progress, effort.num_short_rounds)
    if section == "ttft":
        return ttft.measure(loaded, config, directory, progress, effort.num_rounds)
    from hifc_ray.bench import calls  # Ray takes seconds to import

    by_call = calls.measure(config.model, progress, effort.num_calls, effort.calls_s)
    return by_call + lookup.measure(loaded.layout, directory, progress, effort.num_rounds, effort.keys_round_s)


def _in_memory(
    section: str, loaded: LoadedModel, config: EngineConfig, progress: Progress, effort: Effort
) -> list[Figure]:
    if section == "host":
        return copies.measure(loaded.layout, loaded.device, progress, effort.num_short_rounds)
    return engine.measure(loaded, config, progress, effort.num_rounds)


def _machine(loaded: LoadedModel, model: str, threads: int, disk: Path | None) -> dict[str, Any]:
    return {
        "model": model,
        "dtype": loaded.layout.dtype,
        "device": str(loaded.device),
        "block_bytes": loaded.layout.block_bytes,
        "threads": threads,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "flash_dir": disk,
        "torch": torch.__version__,
    }

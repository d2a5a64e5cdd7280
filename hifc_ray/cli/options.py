"""Options that several commands share, and the configuration that they make on top of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hifc_ray import config

ConfigFile = Annotated[Path | None, typer.Option("--config", help="YAML file with the configuration.")]
GpuBytes = Annotated[str | None, typer.Option("--gpu-bytes", help="Size of the block pool, such as 512MiB.")]
HostBytes = Annotated[str | None, typer.Option("--host-bytes", help="Size of the host arena, such as 1GiB.")]
FlashBytes = Annotated[str | None, typer.Option("--flash-bytes", help="The most that may lie on flash, such as 4GiB.")]
FlashDirs = Annotated[
    list[Path] | None,
    typer.Option("--flash-dir", help="Directory of its own for blocks on flash; once for each device."),
]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Model = Annotated[str | None, typer.Option("--model", help="smollm2, a path, or a model of the Hugging Face hub.")]
Address = Annotated[str | None, typer.Option("--address", help="host:port of a Ray cluster; default: RAY_ADDRESS.")]
Namespace = Annotated[str, typer.Option("--namespace", help="Ray namespace of the actors.")]


def settings(
    config_file: Path | None,
    *,
    model: str | None = None,
    device: str | None = None,
    gpu_bytes: str | None = None,
    host_bytes: str | None = None,
    flash_bytes: str | None = None,
    flash_dirs: list[Path] | None = None,
) -> config.Config:
    """The configuration in a file, if any, with the options that were given on top. Raises `ConfigError`."""
    values = {
        "engine.model": model,
        "engine.device": device,
        "engine.gpu_bytes": gpu_bytes,
        "tier.host.arena_bytes": host_bytes,
        "tier.flash.limit_bytes": flash_bytes,
        "tier.flash.directories": flash_dirs or None,
    }
    return config.load(config_file, values)

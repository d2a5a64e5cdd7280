"""`hifc up`: policy actor, cache tiers and engines on a running cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from hifc_ray.cli import options
from hifc_ray.cli.options import (
    Address,
    ConfigFile,
    Device,
    FlashBytes,
    FlashDirs,
    GpuBytes,
    HostBytes,
    Model,
    Namespace,
)
from hifc_ray.cli.output import Json, results_on_stdout, say, to_json
from hifc_ray.config import Config

Engines = Annotated[
    int | None, typer.Option("--engines", help="Inference actors; default: one per GPU, or one without GPUs.", min=0)
]


def up(
    config_file: ConfigFile = None,
    model: Model = None,
    device: Device = None,
    gpu_bytes: GpuBytes = None,
    host_bytes: HostBytes = None,
    flash_bytes: FlashBytes = None,
    flash_dir: FlashDirs = None,
    engines: Engines = None,
    address: Address = None,
    namespace: Namespace = "hifc",
    as_json: Json = False,
) -> None:
    """Start what is missing on a running Ray cluster; safe to repeat. It stays until `hifc down`."""
    settings = options.settings(
        config_file,
        model=model,
        device=device,
        gpu_bytes=gpu_bytes,
        host_bytes=host_bytes,
        flash_bytes=flash_bytes,
        flash_dirs=flash_dir,
    )
    with results_on_stdout(as_json) as results:
        from hifc_ray.actors import cluster, connection
        from hifc_ray.engine.preview import preview

        settings = _with_absolute_paths(settings)
        try:
            joined = connection.join(address, namespace)
            say(f"Ray {joined}; starting policy, manager and cache tiers")
            layout = preview(settings.engine, say)
            nodes = cluster.up(settings.tier, layout.block_bytes, namespace)
            say("starting engines")
            names = cluster.start_engines(settings.engine, engines, namespace)
        finally:
            connection.leave()
        if as_json:
            answer = {"ray": joined.address, "namespace": namespace, "tiers": nodes, "engines": names}
            print(to_json(answer), file=results)
        else:
            engine_names = ", ".join(names) or "none"
            print(f"up on {joined.address}: {len(nodes)} cache tiers, {len(names)} engines ({engine_names})")


def _with_absolute_paths(settings: Config) -> Config:
    """Actors run in directories of their own."""
    flash = settings.tier.flash
    flash = replace(flash, directories=tuple(directory.absolute() for directory in flash.directories))
    return replace(settings, tier=replace(settings.tier, flash=flash))

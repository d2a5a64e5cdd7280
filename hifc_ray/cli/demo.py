"""`hifc demo`: the main job on one machine, then its table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hifc_ray.cli import options
from hifc_ray.cli.options import Address, ConfigFile, Device, FlashBytes, GpuBytes, HostBytes, Model
from hifc_ray.cli.output import Json, print_table, results_on_stdout, say, to_json

# Pool, arena, flash for the built-in model, whose blocks are 11.8 MB: 7 blocks, 13 slots, at least 5 segments of 16.
SIZES = ("84MiB", "148MiB", "1200MiB")

Conversations = Annotated[int, typer.Option("--conversations", help="How many users talk.", min=1)]
Turns = Annotated[int, typer.Option("--turns", help="How many questions each of them asks.", min=1)]
Seed = Annotated[int, typer.Option("--seed", help="Who sits at which desk, and asks what.", min=0)]
Keep = Annotated[bool, typer.Option("--keep", help="Leave Ray, the actors and the flash directory behind.")]
FlashDirs = Annotated[
    list[Path] | None,
    typer.Option("--flash-dir", help="Existing directory of its own, kept; once a device. Default: a temporary one."),
]


def demo(
    config_file: ConfigFile = None,
    model: Model = None,
    device: Device = None,
    gpu_bytes: GpuBytes = None,
    host_bytes: HostBytes = None,
    flash_bytes: FlashBytes = None,
    flash_dir: FlashDirs = None,
    conversations: Conversations = 4,
    turns: Turns = 3,
    seed: Seed = 0,
    address: Address = None,
    keep: Keep = False,
    as_json: Json = False,
) -> None:
    """Play conversations that overflow the pool into host memory and flash, and compare with computing all."""
    sizes = SIZES if config_file is None else (None, None, None)  # a file says it all
    settings = options.settings(
        config_file,
        model=model,
        device=device,
        gpu_bytes=sizes[0] if gpu_bytes is None else gpu_bytes,
        host_bytes=sizes[1] if host_bytes is None else host_bytes,
        flash_bytes=sizes[2] if flash_bytes is None else flash_bytes,
        flash_dirs=flash_dir,
    )
    with results_on_stdout(as_json) as results:
        say("loading")
        from hifc_ray.demo.report import TIER_COLUMNS, fact_rows, tier_rows
        from hifc_ray.demo.run import run

        report = run(settings, say, conversations=conversations, turns=turns, seed=seed, address=address, keep=keep)
        if as_json:
            print(to_json(report.to_dict()), file=results)
        else:
            print_table("hifc demo: what each tier did", TIER_COLUMNS, tier_rows(report))
            print_table("what that came to", ("", ""), fact_rows(report))
    raise typer.Exit(0 if report.is_right else 1)

"""`hifc doctor`: can this machine run the cache, and what is to be done about it if not?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hifc_ray.cli import options
from hifc_ray.cli.options import ConfigFile, Device, FlashBytes, FlashDirs, GpuBytes, HostBytes
from hifc_ray.cli.output import Json, print_table, results_on_stdout, to_json

if TYPE_CHECKING:
    from hifc_ray.health.verdict import Verdict


def doctor(
    config_file: ConfigFile = None,
    gpu_bytes: GpuBytes = None,
    host_bytes: HostBytes = None,
    flash_bytes: FlashBytes = None,
    flash_dir: FlashDirs = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Check that this machine can run the cache, and say what to do where it cannot."""
    from hifc_ray.health.examine import examine
    from hifc_ray.health.verdict import Level, worst

    settings = options.settings(
        config_file,
        device=device,
        gpu_bytes=gpu_bytes,
        host_bytes=host_bytes,
        flash_bytes=flash_bytes,
        flash_dirs=flash_dir,
    )
    directories = settings.tier.flash.directories
    verdicts = [*examine(settings), *(verdict for directory in directories for verdict in _use_of(directory))]
    healthy = worst(verdicts) < Level.FAIL
    rows = [(verdict.level.name.lower(), verdict.name, verdict.what, verdict.advice) for verdict in verdicts]
    columns = ("level", "name", "what", "advice")
    if as_json:
        with results_on_stdout(reserved=True) as results:
            print(
                to_json({"ok": healthy, "verdicts": [dict(zip(columns, row, strict=True)) for row in rows]}),
                file=results,
            )
    else:
        print_table("hifc doctor", ("", "of", "what was found", "what to do"), rows)
    raise typer.Exit(0 if healthy else 1)


def _use_of(directory: Path) -> list[Verdict]:
    """A directory that exists may still be somebody else's: health does not know flash, so it is asked here."""
    from hifc_ray.flash.refusal import why_refused
    from hifc_ray.health.directory import read_directory
    from hifc_ray.health.verdict import fail

    reason = why_refused(directory) if read_directory(directory).is_directory else None
    if reason is None:
        return []
    return [fail("flash use", reason, "name a directory that only this cache uses, or stop the process that has it")]

"""`hifc bench`: what the cache costs and what it saves, as ratios against a reference in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hifc_ray.cli.output import Json, print_table, results_on_stdout, say, to_json

app = typer.Typer(help="Measure, as ratios against a reference in the same run.")

Only = Annotated[str | None, typer.Option("--only", help="Some of lookup,host,flash,ttft,engine; all by default.")]
Model = Annotated[str, typer.Option("--model", help="smollm2, a path, or a model of the Hugging Face hub.")]
ScratchDir = Annotated[
    Path | None, typer.Option("--flash-dir", help="Directory on a disk, for scratch files; /var/tmp by default.")
]


@app.callback()
def _group() -> None:
    """Measure, as ratios against a reference in the same run."""


@app.command()
def tiers(only: Only = None, model: Model = "smollm2", flash_dir: ScratchDir = None, as_json: Json = False) -> None:
    """Lookups, copies, flash reads, time to first token, and the engine beside transformers. A few minutes."""
    from hifc_ray.bench import report
    from hifc_ray.bench.sections import chosen

    sections = chosen(only)
    with results_on_stdout(reserved=as_json) as results:
        from hifc_ray.bench.tiers import run

        figures, machine = run(sections, model, flash_dir, say)
        if as_json:
            print(to_json(report.to_json(figures, machine)), file=results)
            return
    print_table("hifc bench tiers", report.COLUMNS, report.rows(figures))
    print("\n".join(report.notes(figures)))
    print(", ".join(f"{name} {value}" for name, value in machine.items()))

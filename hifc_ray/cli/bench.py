"""`hifc bench`: what the cache costs and what it saves, as ratios against a reference in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hifc_ray.bench import flash_plan
from hifc_ray.cli.output import Json, print_table, results_on_stdout, say, to_json

app = typer.Typer(help="Measure, as ratios against a reference in the same run.")

Only = Annotated[str | None, typer.Option("--only", help="Some of lookup,host,flash,ttft,engine; all by default.")]
Model = Annotated[str, typer.Option("--model", help="smollm2, a path, or a model of the Hugging Face hub.")]
ScratchDir = Annotated[
    Path | None, typer.Option("--flash-dir", help="Directory on a disk, for scratch files; /var/tmp by default.")
]
Sizes = Annotated[str, typer.Option("--sizes", help="Bytes of a block, one or several.")]
InFlight = Annotated[str, typer.Option("--in-flight", help="Operations at a time, one or several numbers.")]
Pairs = Annotated[int, typer.Option("--pairs", help="Samples of each thing, taken in turn.")]


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


@app.command()
def flash(
    flash_dir: ScratchDir = None,
    sizes: Sizes = flash_plan.SIZES,
    in_flight: InFlight = flash_plan.IN_FLIGHT,
    pairs: Pairs = flash_plan.NUM_PAIRS,
    as_json: Json = False,
) -> None:
    """The flash store against bare direct I/O and against one file per block. Five minutes; writes some 110 GB."""
    from hifc_ray.bench import flash_report
    from hifc_ray.bench.flash_store import run

    plan = flash_plan.parse(sizes, in_flight, pairs)
    with results_on_stdout(reserved=as_json) as results:
        answer = flash_report.to_json(*run(plan, flash_dir, say))
        if as_json:
            print(to_json(answer), file=results)
            return
    print_table("hifc bench flash: store | bare | file", flash_report.COLUMNS, flash_report.table(answer))
    print_table("70 % reads, 30 % writes", flash_report.MIXED_COLUMNS, flash_report.mixed_table(answer))
    print("\n".join(flash_report.remarks(answer)))

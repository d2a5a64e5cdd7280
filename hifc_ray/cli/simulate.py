"""`hifc simulate`: what sizes and policies would have done to a recorded load, before any hardware is bought."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from hifc_ray.cli.output import Json, print_table, results_on_stdout, say, to_json
from hifc_ray.config import parse_bytes
from hifc_ray.errors import ConfigError

Traces = Annotated[list[Path], typer.Argument(help="Traces, .jsonl or .jsonl.gz, in Mooncake's schema.")]
FlashShare = Annotated[str, typer.Option("--flash-share", help="Flash, as shares of a trace's distinct blocks.")]
HostShare = Annotated[float, typer.Option("--host-share", help="Host memory, as a share of them.")]
Evictions = Annotated[str, typer.Option("--eviction", help="Eviction policies, with commas between, or all.")]
Admissions = Annotated[str, typer.Option("--admission", help="Admission policies, with commas between, or all.")]
BlockBytes = Annotated[str, typer.Option("--block-bytes", help="Size of a block, such as 20MiB.")]
BudgetShare = Annotated[
    float, typer.Option("--budget-share", help="What `budgeted` may write, as a share of what admitting all writes.")
]


def simulate(
    traces: Traces,
    flash_share: FlashShare = "0.03,0.1,0.3",
    host_share: HostShare = 0.01,
    eviction: Evictions = "lru",
    admission: Admissions = "all",
    block_bytes: BlockBytes = "20MiB",
    budget_share: BudgetShare = 0.25,
    as_json: Json = False,
) -> None:
    """Replay traces through the shipped policies: hits, bytes written, write amplification, beside an ideal store."""
    from hifc_ray.policies import registry
    from hifc_ray.sim import report, run
    from hifc_ray.sim.traces import load

    settings = run.Settings(
        flash_shares=_shares(flash_share),
        host_share=host_share,
        evictions=_names(eviction, registry.EVICTION),
        admissions=_names(admission, registry.ADMISSION),
        block_bytes=parse_bytes(block_bytes, "--block-bytes"),
        budget_share=budget_share,
    )
    with results_on_stdout(reserved=as_json) as results:
        rows = list(run.simulate([load(path) for path in traces], settings, say))
        if as_json:
            print(to_json(run.to_json(rows, settings)), file=results)
            return
    print_table("hifc simulate", report.COLUMNS, report.table(rows))
    print(report.NOTES)


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--flash-share is {text!r}; allowed: shares above 0, with commas between") from error


def _names(text: str, known: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(known)) if text == "all" else tuple(part.strip() for part in text.split(","))

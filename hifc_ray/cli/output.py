"""What commands write: tables for people or one JSON object on stdout; progress and remarks on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]


def say(text: str) -> None:
    """A remark or a step of progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout; columns of which every cell is a number are aligned to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        numeric = all(row[number][:1].isdigit() for row in cells)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    # Not a terminal: its width is unknown, so nothing is folded.
    Console(width=None if sys.stdout.isatty() else 200, markup=False, highlight=False).print(table)


def to_json(value: object) -> str:
    """JSON in one line. Arrays' numbers become numbers, paths text, and what is no number (NaN, infinite) null."""
    return json.dumps(_plain(value), allow_nan=False)


@contextmanager
def results_on_stdout(reserved: bool) -> Iterator[TextIO]:
    """The stream for results. If `reserved`, what anything else writes to stdout meanwhile goes to stderr.

    That includes child processes and libraries that write to file descriptor 1.
    """
    if not reserved:
        yield sys.stdout
        return
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as results:
        os.dup2(2, 1)
        try:
            with redirect_stdout(sys.stderr):
                yield results
        finally:
            sys.stderr.flush()
            results.flush()
            os.dup2(results.fileno(), 1)


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""`hifc`: the commands, and how each of them ends.

Exit codes: 0 it ran and the answer is yes; 1 it ran and the answer is no; 2 bad input, one line on stderr that names
the value and what is allowed; 130 interrupted. Broken invariants are bugs and keep their traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import cast

import typer

from hifc_ray.cli import bench, demo, doctor, down, generate, purge, simulate, status, up
from hifc_ray.errors import ConfigError, StorageError, TierUnavailable

INTERRUPTED = 130

# typer brings its own copy of click, whose root of usage errors it does not export.
_UsageProblem = cast(
    type[typer.BadParameter],
    next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"),
)

app = typer.Typer(
    name="hifc",
    help="A Ray-native, three-tier KV cache for LLM inference.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _command in (
    demo.demo,
    generate.generate,
    up.up,
    status.status,
    down.down,
    purge.purge,
    simulate.simulate,
    doctor.doctor,
):
    app.command()(_command)
app.add_typer(bench.app, name="bench")


@app.callback()
def _root() -> None:
    """A Ray-native, three-tier KV cache for LLM inference."""


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit code. Says on stderr, in one line, why it is not 0 where a person can put it right."""
    try:
        code = app(list(arguments) or ["--help"], prog_name="hifc", standalone_mode=False)
    except (ConfigError, StorageError) as error:
        return _say(error, 2)
    except TierUnavailable as error:
        return _say(error, 1)
    except _UsageProblem as error:
        command = error.ctx.command_path if error.ctx is not None else "hifc"
        return _say(f"{error.format_message().rstrip('.')}; allowed is what `{command} --help` lists", 2)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def main() -> None:
    """The entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


def _say(problem: object, code: int) -> int:
    print(f"hifc: {' '.join(str(problem).split())}", file=sys.stderr)
    return code

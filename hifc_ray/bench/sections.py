"""Which parts of a bench are run, and how often each thing is measured. No torch: bad input is told at once."""

from __future__ import annotations

from dataclasses import dataclass

from hifc_ray.errors import ConfigError

SECTIONS = ("lookup", "host", "flash", "ttft", "engine")


@dataclass(frozen=True)
class Effort:
    """How often each thing is measured; the whole takes some five minutes on two cores."""

    num_rounds: int = 5  # of what takes seconds: engine, time to first token
    num_short_rounds: int = 9  # of copies and reads
    num_calls: int = 300  # of an actor, at least, and for at least so many seconds
    calls_s: float = 6.0
    keys_round_s: float = 0.5


def chosen(only: str | None) -> tuple[str, ...]:
    """The sections of a comma-separated list in their usual order, or all of them. Raises `ConfigError`."""
    if only is None:
        return SECTIONS
    names = {name.strip() for name in only.split(",")}
    if not names <= set(SECTIONS):
        raise ConfigError(f"--only is {only!r}; allowed: some of {','.join(SECTIONS)}")
    return tuple(name for name in SECTIONS if name in names)

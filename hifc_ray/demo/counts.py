"""What each tier did, from the engine's results, checked against the engine's own counters.

`misses` of a tier are blocks asked of it and not served by it, so they are what the next tier is asked for; what flash
misses is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hifc_ray.engine.sequence import Result
from hifc_ray.errors import ConservationBroken

TIERS = ("gpu", "host", "flash")


@dataclass(frozen=True)
class TierCounts:
    """One tier in one run. What lies in the GPU pool is used in place, so nothing is loaded from it."""

    hits: int
    misses: int
    stored_blocks: int
    stored_bytes: int
    loaded_bytes: int
    loaded_s: float  # summed over turns: from asking until the last block was in the pool


@dataclass(frozen=True)
class Counts:
    """All tiers, and prompt tokens."""

    tiers: dict[str, TierCounts]
    computed_tokens: int
    saved_tokens: int
    checksum_faults: int


def count(results: Sequence[Result], engine: Mapping[str, float], tier: Mapping[str, float]) -> Counts:
    """Counts of these results; `engine` and `tier` are counters of a fresh engine and tier, taken after the last.

    Raises `ConservationBroken` if blocks or tokens do not add up.
    """
    looked_up = sum(sum(result.blocks.values()) for result in results)
    computed = sum(result.blocks.get("computed", 0) for result in results)
    tiers: dict[str, TierCounts] = {}
    asked = looked_up
    for name in TIERS:
        hits = sum(result.blocks.get(name, 0) for result in results)
        asked -= hits
        tiers[name] = TierCounts(
            hits,
            asked,
            *_stored(name, engine, tier),
            loaded_bytes=sum(result.loaded_bytes.get(name, 0) for result in results),
            loaded_s=sum(result.loaded_s.get(name, 0.0) for result in results),
        )
    counts = Counts(
        tiers,
        computed_tokens=int(engine.get("computed_tokens", 0)),
        saved_tokens=int(engine.get("saved_tokens", 0)),
        checksum_faults=int(sum(value for name, value in tier.items() if name.split("{")[0] == "corrupt")),
    )
    _check(counts, looked_up, computed, results, engine)
    return counts


def _stored(name: str, engine: Mapping[str, float], tier: Mapping[str, float]) -> tuple[int, int]:
    """Blocks and bytes written into a tier from above: computed, stored by the engine, demoted."""
    blocks, size = {
        "gpu": (engine.get("published_blocks{gpu}", 0), engine.get("published_bytes{gpu}", 0)),
        "host": (tier.get("stored_blocks{host}", 0), tier.get("stored_bytes{host}", 0)),
        "flash": (tier.get("blocks_stored{flash}", 0), tier.get("stored_bytes{flash}", 0)),
    }[name]
    return int(blocks), int(size)


def _check(
    counts: Counts, looked_up: int, computed: int, results: Sequence[Result], engine: Mapping[str, float]
) -> None:
    gpu, host, flash = (counts.tiers[name] for name in TIERS)
    prompt_tokens = sum(result.num_prompt_tokens for result in results)
    engine_hits = {name: engine.get(f"hits_blocks{{{name}}}", 0) for name in TIERS}
    sums = [
        ("gpu hits + misses", gpu.hits + gpu.misses, "blocks looked up", engine.get("looked_up_blocks", 0)),
        ("the same of all requests", looked_up, "blocks looked up", engine.get("looked_up_blocks", 0)),
        ("host hits + misses", host.hits + host.misses, "gpu misses", gpu.misses),
        ("flash hits + misses", flash.hits + flash.misses, "host misses", host.misses),
        ("flash misses", flash.misses, "blocks computed", engine.get("computed_blocks", 0)),
        ("the same of all requests", flash.misses, "blocks computed", computed),
        ("computed + saved tokens", counts.computed_tokens + counts.saved_tokens, "prompt tokens", prompt_tokens),
        *((f"{name} hits", counts.tiers[name].hits, "hits of the engine", engine_hits[name]) for name in TIERS),
    ]
    for left, value, right, expected in sums:
        if value != expected:
            raise ConservationBroken(f"{left} = {value}, {right} = {expected:.0f}")

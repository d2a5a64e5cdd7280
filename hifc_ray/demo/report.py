"""What a run of the demo came to, as numbers, as JSON and as the rows of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hifc_ray.config import format_bytes
from hifc_ray.demo.compare import Compared
from hifc_ray.demo.counts import TIERS, Counts
from hifc_ray.demo.play import Played
from hifc_ray.engine.sequence import Result

TIER_COLUMNS = ("tier", "blocks stored", "stored", "hits", "misses", "loaded", "in")
Row = tuple[object, ...]


@dataclass(frozen=True)
class Latency:
    """Times to first token, in seconds; None where there was no such turn."""

    p50: float | None
    max: float | None
    n: int

    @classmethod
    def of(cls, results: Sequence[Result]) -> Latency:
        times = [result.ttft_s for result in results if result.ttft_s is not None]
        return cls(float(np.median(times)), max(times), len(times)) if times else cls(None, None, 0)

    def __str__(self) -> str:
        return "no such turn" if self.p50 is None else f"p50 {self.p50:.2f} s, worst {self.max:.2f} s, n = {self.n}"


@dataclass(frozen=True)
class Report:
    """Everything that the demo measured."""

    played: list[Played]
    cold: list[Result]
    compared: list[Compared]
    counts: Counts
    engine: dict[str, Any]  # what `InferenceActor.ready` says
    places: dict[str, str]  # where Ray, arena and flash are
    elapsed_s: float

    @property
    def identical(self) -> bool:
        return all(compared.identical for compared in self.compared)

    @property
    def is_right(self) -> bool:
        """The answer of the command: the same outputs, and nothing on flash was damaged."""
        return self.identical and not self.counts.checksum_faults

    @property
    def max_logit_diff(self) -> float:
        return float(np.max([compared.max_logit_diff for compared in self.compared]))

    @property
    def min_margin(self) -> float:
        return min(compared.min_margin for compared in self.compared)

    @property
    def ttft_s(self) -> dict[str, Latency]:
        """Of turns with hits, and of the same turns computed from nothing."""
        rows = [row for row, played in enumerate(self.played) if _num_hits(played.result)]
        return {
            "hit": Latency.of([self.played[row].result for row in rows]),
            "cold": Latency.of([self.cold[row] for row in rows]),
        }

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "identical_outputs": self.identical,
            "min_margin": self.min_margin,
            "max_logit_diff": self.max_logit_diff,
            "checksum_faults": self.counts.checksum_faults,
            "tiers": {name: asdict(tier) for name, tier in self.counts.tiers.items()},
            "tokens": {"computed": self.counts.computed_tokens, "saved": self.counts.saved_tokens},
            "ttft_s": {name: asdict(latency) for name, latency in self.ttft_s.items()},
            "dtype": self.engine["dtype"],
            "device": self.engine["device"],
            "block_tokens": self.engine["block_tokens"],
            "block_bytes": self.engine["block_bytes"],
            "places": self.places,
            "elapsed_s": self.elapsed_s,
            "turns": [self._turn(row) for row in range(len(self.played))],
        }

    def _turn(self, row: int) -> dict[str, Any]:
        played, cold, compared = self.played[row], self.cold[row], self.compared[row]
        return {
            "conversation": played.turn.conversation,
            "turn": played.turn.number,
            "desk": played.turn.desk.name,
            "prompt_tokens": played.result.num_prompt_tokens,
            "generated_tokens": len(played.result.tokens),
            "blocks": played.result.blocks,
            "ttft_s": played.result.ttft_s,
            "ttft_cold_s": cold.ttft_s,
            "identical": compared.identical,
            "first_difference": compared.first_difference,
        }


def tier_rows(report: Report) -> list[Row]:
    """A row a tier, under `TIER_COLUMNS`."""
    on_cpu = report.engine["device"].startswith("cpu")
    rows: list[Row] = []
    for name in TIERS:
        tier = report.counts.tiers[name]
        label = "gpu (on cpu)" if name == "gpu" and on_cpu else name
        loaded = ("in place", "-") if name == "gpu" else (format_bytes(tier.loaded_bytes), f"{tier.loaded_s:.3f} s")
        rows.append((label, tier.stored_blocks, format_bytes(tier.stored_bytes), tier.hits, tier.misses, *loaded))
    return rows


def fact_rows(report: Report) -> list[Row]:
    """What is not of one tier: a name and its value a row."""
    counts, engine, latency = report.counts, report.engine, report.ttft_s
    prompt = counts.computed_tokens + counts.saved_tokens
    steps = sum(compared.num_steps for compared in report.compared)
    share = counts.saved_tokens / prompt if prompt else 0.0
    faster = "" if not latency["hit"].p50 else f"  ({latency['cold'].p50 / latency['hit'].p50:.1f} times)"  # type: ignore[operator]
    block = f"blocks of {engine['block_tokens']} tokens, {format_bytes(engine['block_bytes'])}"
    return [
        ("prompt tokens", f"{prompt:,} in {len(report.played)} turns"),
        ("computed", f"{counts.computed_tokens:,}"),
        ("saved", f"{counts.saved_tokens:,} ({share:.0%})"),
        ("first token, with hits", str(latency["hit"])),
        ("the same turns from nothing", f"{latency['cold']}{faster}"),
        ("outputs", _verdict(report)),
        ("largest logit difference", f"{report.max_logit_diff:.3g} over {steps} steps"),
        ("smallest margin", f"{report.min_margin:.3g} between the two best tokens"),
        ("checksum faults", counts.checksum_faults),
        ("model", f"{engine['dtype']} on {engine['device']}, {engine['threads']} threads, {block}"),
        *report.places.items(),
        ("took", f"{report.elapsed_s:.0f} s"),
    ]


def _verdict(report: Report) -> str:
    different = [row for row, compared in enumerate(report.compared) if not compared.identical]
    if not different:
        return f"identical in all {len(report.compared)} turns"
    turn, where = report.played[different[0]].turn, report.compared[different[0]].first_difference
    return (
        f"DIFFERENT in {len(different)} of {len(report.compared)} turns, first for {turn.user}, turn {turn.number}, "
        f"token {where}"
    )


def _num_hits(result: Result) -> int:
    return sum(blocks for source, blocks in result.blocks.items() if source != "computed")

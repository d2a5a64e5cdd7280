"""The main job, from sizes to report."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from hifc_ray.actors.calls import ask
from hifc_ray.config import Config
from hifc_ray.demo.compare import Compared, compare
from hifc_ray.demo.counts import count
from hifc_ray.demo.play import CALL_DEADLINE_S, OnPlayed, Played, check_lengths, play, replay, tokenise
from hifc_ray.demo.report import Report
from hifc_ray.demo.script import Turn, script
from hifc_ray.demo.stage import Stage, stage
from hifc_ray.demo.texts import desks
from hifc_ray.engine.sequence import Result

Say = Callable[[str], None]


def run(
    config: Config,
    say: Say,
    *,
    conversations: int = 4,
    turns: int = 3,
    seed: int = 0,
    address: str | None = None,
    keep: bool = False,
) -> Report:
    """Play the conversations with the cache and again without, compare, and take everything down (unless `keep`).

    `say` gets progress, a line at a time. Raises `ConfigError`, `StorageError` for what cannot work.
    """
    begun = time.monotonic()
    lines = script(desks(), conversations, turns, seed)
    with stage(config, address, keep, say) as up:
        return _perform(up, lines, say, begun)


def _perform(up: Stage, lines: list[Turn], say: Say, begun: float) -> Report:
    texts = tokenise(up.engine, lines)
    check_lengths(texts, up.about)
    say(f"playing {len(lines)} turns of {len({turn.conversation for turn in lines})} conversations with the cache")
    played = play(up.engine, up.tier, texts, up.scratch, _teller(say, len(lines)))
    counters = ask(up.engine.counters.remote(), CALL_DEADLINE_S)
    summary = ask(up.tier.summary.remote(), CALL_DEADLINE_S)
    counts = count([turn.result for turn in played], counters, summary["counters"])
    say("computing the same turns from nothing")
    cold: list[Result] = []
    compared: list[Compared] = []
    for before, again in zip(played, replay(up.engine, played, _teller(say, len(lines))), strict=True):
        compared.append(_compare(before, again))
        again.logits = []
        cold.append(again)
    return Report(played, cold, compared, counts, up.about, up.places, time.monotonic() - begun)


def _compare(before: Played, again: Result) -> Compared:
    margins = before.result.min_margin, again.min_margin
    return compare(before.result.tokens, np.load(before.logits), again.tokens, np.stack(again.logits), margins)


def _teller(say: Say, total: int) -> OnPlayed:
    def tell(number: int, turn: Turn, result: Result) -> None:
        found = ", ".join(f"{blocks} {source}" for source, blocks in sorted(result.blocks.items()) if blocks)
        first = "no token" if result.ttft_s is None else f"first token after {result.ttft_s:.2f} s"
        say(
            f"  {number + 1:2}/{total} {turn.user} at the {turn.desk.name}, turn {turn.number}: "
            f"{result.num_prompt_tokens:,} tokens{f', blocks: {found}' if found else ''}; {first}"
        )

    return tell

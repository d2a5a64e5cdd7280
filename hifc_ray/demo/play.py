"""Plays the script against one inference actor: with the tiers, and then each turn again, computed from nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hifc_ray.actors.calls import ask
from hifc_ray.demo.script import Turn
from hifc_ray.engine.chat import next_prompt
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.engine.sequence import Result
from hifc_ray.errors import RequestRefused, TierUnavailable

ANSWER_TOKENS = 32
TURN_DEADLINE_S = 900.0  # a turn on a slow machine; an engine that answers nothing for so long is broken
SETTLE_DEADLINE_S = 30.0  # for stores and demotions between two turns
CALL_DEADLINE_S = 30.0
REST_S = 0.06  # more than a tick of the tier, in which it begins what its watermarks ask for


@dataclass(frozen=True)
class Script:
    """The turns, and the token ids of each: whole prompts of first turns, what follows an answer for the others."""

    turns: list[Turn]
    tokens: list[list[int]]


@dataclass(frozen=True)
class Played:
    """A turn that was answered. Its logits lie in a file."""

    turn: Turn
    prompt: list[int]
    result: Result
    logits: Path


OnPlayed = Callable[[int, Turn, Result], None]  # number of the turn in the script, from 0


def tokenise(engine: Any, turns: list[Turn]) -> Script:
    """Token ids of all texts."""
    references = [
        engine.encode_next.remote(turn.question)
        if turn.number > 1
        else engine.encode.remote(
            [{"role": "system", "content": turn.desk.system}, {"role": "user", "content": turn.question}]
        )
        for turn in turns
    ]
    return Script(turns, [ask(reference, CALL_DEADLINE_S) for reference in references])


def check_lengths(script: Script, engine: dict[str, Any]) -> None:
    """Raises `RequestRefused` before anything is played if the longest conversation will not fit model or pool."""
    total: dict[int, int] = {}
    for turn, tokens in zip(script.turns, script.tokens, strict=True):
        total[turn.conversation] = total.get(turn.conversation, 0) + len(tokens) + ANSWER_TOKENS
    longest, turns = max(total.values()), max(turn.number for turn in script.turns)
    if longest > engine["context"]:
        raise RequestRefused(
            f"turns is {turns}: the longest conversation has {longest} tokens; the model's context is "
            f"{engine['context']}"
        )
    need = -(-(longest - 1) // engine["block_tokens"])
    if need > engine["num_blocks"]:
        raise RequestRefused(
            f"engine.gpu_bytes holds {engine['num_blocks']} blocks; {turns} turns need {need} blocks of "
            f"{engine['block_tokens']} tokens: at least {need * engine['block_bytes']} bytes"
        )


def play(engine: Any, tier: Any, script: Script, logits_dir: Path, on_played: OnPlayed) -> list[Played]:
    """All turns, one at a time, each extending the ids of its conversation; between turns the tiers come to rest.

    One at a time: so each is decoded alone, now as well as when it is computed from nothing.
    """
    history: dict[int, tuple[list[int], list[int]]] = {}  # prompt and answer of the turn before
    played = []
    for number, (turn, tokens) in enumerate(zip(script.turns, script.tokens, strict=True)):
        prompt = tokens if turn.number == 1 else next_prompt(*history[turn.conversation], tokens)
        result = _answer(engine, prompt, turn, "on")
        history[turn.conversation] = prompt, result.tokens
        path = logits_dir / f"{number}.npy"
        np.save(path, np.stack(result.logits))
        played.append(Played(turn, prompt, replace(result, logits=[]), path))
        on_played(number, turn, result)
        settle(engine, tier)
    return played


def replay(engine: Any, played: list[Played], on_played: OnPlayed) -> Iterator[Result]:
    """The result of each turn's prompt in the same engine, with nothing looked up and nothing kept."""
    for number, before in enumerate(played):
        result = _answer(engine, before.prompt, before.turn, "off")
        on_played(number, before.turn, result)
        yield result


def settle(engine: Any, tier: Any) -> None:
    """Wait until stores have ended and host memory is back above its watermark, so that no clock decides what is hit.

    A tier that does not come to rest in time, or is being started again, costs hits and not answers.
    """
    end = time.monotonic() + SETTLE_DEADLINE_S
    ask(engine.drain.remote(SETTLE_DEADLINE_S), SETTLE_DEADLINE_S + CALL_DEADLINE_S)
    resting = False
    while not resting and time.monotonic() < end:
        time.sleep(REST_S)
        with contextlib.suppress(TierUnavailable):
            resting = _at_rest(ask(tier.summary.remote(), CALL_DEADLINE_S))


def _at_rest(summary: dict[str, Any]) -> bool:
    slots = summary["host"]["slots"]
    return slots["demoting"] == slots["reserved"] == slots["leased"] == 0


def _answer(engine: Any, prompt: list[int], turn: Turn, cache: Any) -> Result:
    params = SamplingParams(
        max_new_tokens=ANSWER_TOKENS,
        cache=cache,
        keep_logits=True,
        session=f"demo-{turn.conversation}",
        turn=turn.number,
    )
    result: Result = ask(engine.generate.remote(prompt, params), TURN_DEADLINE_S)
    return result

"""Time to first token with a cached prefix, from host memory and from flash, against computing it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from hifc_ray.bench import blocks
from hifc_ray.bench.report import Figure
from hifc_ray.bench.rounds import Progress, interleaved, medians, ratios
from hifc_ray.config import EngineConfig
from hifc_ray.engine.loop import Engine
from hifc_ray.engine.models import LoadedModel
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.errors import HifcError, TierUnavailable
from hifc_ray.tiering import TieredCache

_WHOLE_TOKENS = 1536  # a prefix of whole blocks (of the default size)
_REST_TOKENS = 1500  # one with a rest, which is computed again
_QUESTION_TOKENS = 8
_REST_ROUNDS = 3  # nothing is promised of it
_NUM_SLOTS = 64  # the default window, an eighth, takes the whole prefix at once
_MOVE_S = 60.0
_TRIES = 3  # a load that was late on a busy machine is made again; what counts must come from its tier whole
_CACHED = SamplingParams(max_new_tokens=1, ignore_eos=True)
_COLD = SamplingParams(max_new_tokens=1, ignore_eos=True, cache="off")


def measure(
    loaded: LoadedModel, config: EngineConfig, directory: Path, progress: Progress, num_rounds: int
) -> list[Figure]:
    """`ttft_speedup.host` and `.flash`, and the same for a prefix that is no multiple of the block."""
    tier = blocks.open_tier(blocks.tier_config(loaded.layout, _NUM_SLOTS, 1 / 8, directory), loaded.layout)
    try:
        with Engine(config, tier, model=loaded.model, tokenizer=loaded.tokenizer) as engine:
            whole = _Race(engine, tier, _WHOLE_TOKENS)
            rest = _Race(engine, tier, _REST_TOKENS)
            progress(f"ttft: {_WHOLE_TOKENS} tokens cached, then {_QUESTION_TOKENS}; from host, from flash, computed")
            figures = _figures(whole, "ttft_speedup", num_rounds)
            progress(f"ttft: {_REST_TOKENS} tokens cached, then {_QUESTION_TOKENS}")
            return figures + _figures(rest, f"ttft_speedup_{_REST_TOKENS}", min(num_rounds, _REST_ROUNDS))
    finally:
        tier.close(flush=False)


def _figures(race: _Race, name: str, num_rounds: int) -> list[Figure]:
    race.prepare()
    samples = interleaved({"cold": race.cold, "host": race.from_host, "flash": race.from_flash}, num_rounds)
    total = race.num_cached + _QUESTION_TOKENS
    figures = []
    for tier in ("host", "flash"):
        what = f"first token of {total} computed ÷ with {race.num_cached} stored, {race.num_blocks} blocks from {tier}"
        parts = medians({"cold": samples["cold"], "hit": samples[tier]})
        figures.append(Figure(f"{name}.{tier}", ratios(samples["cold"], samples[tier]), what, parts))
    return figures


class _Race:
    """One prompt, its prefix stored; each run answers the seconds to its first token."""

    def __init__(self, engine: Engine, tier: TieredCache, num_cached: int) -> None:
        self._engine, self._tier = engine, tier
        self.num_cached = num_cached
        rng = np.random.default_rng(num_cached)
        vocabulary = engine.loaded.vocab_size
        self._prompt = rng.integers(0, vocabulary, num_cached + _QUESTION_TOKENS).tolist()
        self.num_blocks = num_cached // engine.layout.block_tokens
        self._token: int | None = None

    def prepare(self) -> None:
        """Store the prefix in the tiers; the engine is warm then."""
        self._engine.generate([self._prompt], _CACHED)
        if not self._engine.drain(_MOVE_S):
            raise TierUnavailable("the prefix was not stored in time")

    def cold(self) -> float:
        """Computed: nothing is looked up or stored."""
        self._engine.forget_pool()
        return self._first(_COLD)[0]

    def from_host(self) -> float:
        """All blocks from host memory, none of them in the pool."""
        return self._from("host", self._bring_to_host)

    def from_flash(self) -> float:
        """All blocks from flash, none of them in the pool or in host memory."""
        return self._from("flash", self._push_to_flash)

    def _bring_to_host(self) -> None:
        self._engine.forget_pool()
        self._first(_CACHED)

    def _push_to_flash(self) -> None:
        self._engine.drain(_MOVE_S)
        if not self._tier.demote_all(_MOVE_S):
            raise TierUnavailable(f"host memory could not be emptied within {_MOVE_S:.0f} s")

    def _from(self, tier: str, place: Callable[[], None]) -> float:
        came: dict[str, int] = {}
        for _ in range(_TRIES):
            place()
            self._engine.forget_pool()
            took_s, came = self._first(_CACHED)
            if came.get(tier) == self.num_blocks:
                return took_s
        raise TierUnavailable(f"{self.num_blocks} blocks should have come from {tier}; they came from {came}")

    def _first(self, params: SamplingParams) -> tuple[float, dict[str, int]]:
        """Seconds to the first token, and where the blocks of the prompt came from."""
        (result,) = self._engine.generate([self._prompt], params)
        token = result.tokens[0]
        if self._token is not None and token != self._token:
            raise HifcError(f"first token {token} with blocks from {result.blocks}, {self._token} before")
        self._token = token
        assert result.ttft_s is not None
        return result.ttft_s, {name: count for name, count in result.blocks.items() if count}

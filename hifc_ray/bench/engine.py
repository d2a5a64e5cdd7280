"""The engine against `model.generate` of transformers: the same weights, prompts and threads; greedy; no cache used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList
from transformers.utils import logging as transformers_logging

from hifc_ray.bench.report import Figure
from hifc_ray.bench.rounds import Progress, interleaved, medians, ratios
from hifc_ray.config import EngineConfig
from hifc_ray.engine.loop import Engine
from hifc_ray.engine.models import LoadedModel
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.engine.weights import find_model

_PREFILL_TOKENS = 1500
_NEW_TOKENS = 32
_PROMPT_1 = (300,)
_PROMPTS_8 = tuple(np.linspace(200, 270, 8).astype(int).tolist())
_PAD = 0

Prompts = list[list[int]]


@dataclass(frozen=True)
class Times:
    """One call: all of it, and the part after the last sequence's first token."""

    whole_s: float
    decode_s: float


def measure(loaded: LoadedModel, config: EngineConfig, progress: Progress, num_rounds: int) -> list[Figure]:
    """`engine_ratio.prefill`, `.decode_1`, `.decode_8`, and the whole of the last one for comparison."""
    reference = Reference(loaded, config)
    with Engine(config, model=loaded.model, tokenizer=loaded.tokenizer) as engine:
        rng = np.random.default_rng(0)

        def prompts(lengths: Sequence[int]) -> Prompts:
            return [rng.integers(1, loaded.vocab_size, length).tolist() for length in lengths]

        progress(f"engine: prefill of {_PREFILL_TOKENS} tokens, engine and transformers in turn")
        samples = _both(engine, reference, prompts([_PREFILL_TOKENS]), 1, num_rounds)
        what = f"transformers ÷ engine: a whole call for one token after {_PREFILL_TOKENS}"
        figures = [_figure("engine_ratio.prefill", samples, "whole_s", what)]
        for name, lengths in (("1", _PROMPT_1), ("8", _PROMPTS_8)):
            progress(f"engine: decode of {len(lengths)} at a time, {_NEW_TOKENS} new tokens")
            samples = _both(engine, reference, prompts(lengths), _NEW_TOKENS, num_rounds)
            span = f"{min(lengths)}" if len(lengths) == 1 else f"{min(lengths)} to {max(lengths)}"
            what = f"{len(lengths)} × {_NEW_TOKENS} new tokens after {span}"
            decode = f"transformers ÷ engine: from the last first token to the last token of {what}"
            figures.append(_figure(f"engine_ratio.decode_{name}", samples, "decode_s", decode))
            whole = f"transformers ÷ engine: the whole call for {what}, prefill included"
            figures.append(_figure(f"engine_ratio_whole.batch_{name}", samples, "whole_s", whole))
        return figures


def _both(
    engine: Engine, reference: Reference, prompts: Prompts, num_new: int, num_rounds: int
) -> dict[str, list[Times]]:
    """Times of both, interleaved, after one short call of each."""
    few = min(num_new, 2)
    time_engine(engine, prompts, few)
    reference.time(prompts, few)
    return interleaved(
        {
            "engine": lambda: time_engine(engine, prompts, num_new),
            "transformers": lambda: reference.time(prompts, num_new),
        },
        num_rounds,
    )


def _figure(name: str, samples: dict[str, list[Times]], part: str, what: str) -> Figure:
    seconds = {who: [getattr(times, part) for times in taken] for who, taken in samples.items()}
    return Figure(name, ratios(seconds["transformers"], seconds["engine"]), what, medians(seconds))


def time_engine(engine: Engine, prompts: Prompts, num_new: int) -> Times:
    """One call of the engine, all prompts at once, its cache and its tiers unused."""
    marks: dict[int, list[float]] = {index: [] for index in range(len(prompts))}
    params = SamplingParams(max_new_tokens=num_new, ignore_eos=True, cache="off")
    begun = time.perf_counter()
    engine.generate(prompts, params, lambda index, token: marks[index].append(time.perf_counter()))
    whole_s = time.perf_counter() - begun
    first = max(times[0] for times in marks.values())
    return Times(whole_s, max(times[-1] for times in marks.values()) - first)


class Reference:
    """The same model as transformers runs it: sdpa attention, its own cache, left padding, end token off."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        found = find_model(config.model)
        transformers_logging.disable_progress_bar()
        model: Any = AutoModelForCausalLM.from_pretrained(
            found, dtype=loaded.dtype, attn_implementation="sdpa", local_files_only=Path(found).is_dir()
        )
        self._model = model.to(loaded.device).eval()
        self._model.generation_config.eos_token_id = None
        self._device = loaded.device

    @torch.inference_mode()
    def time(self, prompts: Prompts, num_new: int) -> Times:
        """One call of `generate`, all prompts as one batch with its attention mask."""
        longest = max(map(len, prompts))
        ids = torch.tensor([[_PAD] * (longest - len(prompt)) + prompt for prompt in prompts], device=self._device)
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        marks = _Marks()
        begun = time.perf_counter()
        out = self._model.generate(
            ids,
            attention_mask=mask.to(self._device),
            max_new_tokens=num_new,
            do_sample=False,
            pad_token_id=_PAD,
            stopping_criteria=StoppingCriteriaList([marks]),
        )
        whole_s = time.perf_counter() - begun
        if out.shape[1] != longest + num_new:
            raise AssertionError(f"transformers generated {out.shape[1] - longest} of {num_new} tokens")
        return Times(whole_s, marks.times[-1] - marks.times[0])


class _Marks(StoppingCriteria):
    """Stops nothing: notes when each step's tokens are there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

"""Prompts as the engine takes them: text or token ids, checked against the model and the pool before they queue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hifc_ray.config import format_bytes
from hifc_ray.device.pool import BlockPool
from hifc_ray.engine.models import LoadedModel
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.errors import RequestRefused

Prompt = str | Sequence[int]


def checked(prompt: Prompt, params: SamplingParams, loaded: LoadedModel, pool: BlockPool) -> list[int]:
    """Token ids of a prompt that can run here; raises `RequestRefused` naming what is too long, or wrong."""
    tokens = _token_ids(prompt, loaded)
    total = len(tokens) + params.max_new_tokens
    if total > loaded.context:
        raise RequestRefused(
            f"the prompt has {len(tokens)} tokens and max_new_tokens is {params.max_new_tokens}: {total} together; "
            f"the model's context is {loaded.context}"
        )
    block_tokens = pool.layout.block_tokens
    need = -(-(total - 1) // block_tokens)
    if need > pool.num_blocks:
        size = format_bytes(need * pool.layout.block_bytes)
        raise RequestRefused(
            f"the prompt has {len(tokens)} tokens and max_new_tokens is {params.max_new_tokens}: {need} blocks of "
            f"{block_tokens} ({size}); engine.gpu_bytes holds {pool.num_blocks}"
        )
    return tokens


def _token_ids(prompt: Prompt, loaded: LoadedModel) -> list[int]:
    if isinstance(prompt, str):
        if loaded.tokenizer is None:
            raise RequestRefused("the prompt is text, and this model has no tokenizer; allowed: token ids")
        tokens = [int(token) for token in loaded.tokenizer.encode(prompt)]
    else:
        tokens = [int(token) for token in prompt]
    if not tokens:
        raise RequestRefused("the prompt is empty; it must have at least one token")
    ids = np.asarray(tokens)
    if ids.min() < 0 or ids.max() >= loaded.vocab_size:
        wrong = tokens[int(np.flatnonzero((ids < 0) | (ids >= loaded.vocab_size))[0])]
        raise RequestRefused(f"the prompt has token id {wrong}; allowed: 0 to {loaded.vocab_size - 1}")
    return tokens

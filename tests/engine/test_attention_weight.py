"""The attention weight of a block against what eager attention shows: mass ÷ (its tokens ÷ tokens visible)."""

from __future__ import annotations

import numpy as np
import torch

from hifc_ray.config import EngineConfig
from hifc_ray.engine.loop import Engine
from hifc_ray.engine.sampling import SamplingParams
from tests.fakes.models import BLOCK_TOKENS, FAMILIES, VOCABULARY, layout_of, make_model


def test_attention_weights_agree_with_eager_attention() -> None:
    prompt = np.random.default_rng(3).integers(0, VOCABULARY, 6 * BLOCK_TOKENS + 7).tolist()
    config = EngineConfig(gpu_bytes=32 * layout_of("llama-gqa").block_bytes, block_tokens=BLOCK_TOKENS)
    with Engine(config, model=make_model()) as engine:
        weights = engine.generate([prompt], SamplingParams(max_new_tokens=1, cache="off"))[0].attention

    eager = make_model()
    eager.set_attn_implementation("eager")
    with torch.inference_mode():
        maps = eager(input_ids=torch.tensor([prompt]), output_attentions=True).attentions
    mass = torch.stack(maps).mean(dim=(0, 1, 2)).double().numpy()  # [queries, keys], mean over layers and heads
    expected = []
    for start in range(0, len(prompt), BLOCK_TOKENS):
        end = min(start + BLOCK_TOKENS, len(prompt))
        ratios = []
        for query in range(start, len(prompt)):
            tokens = min(query + 1, end) - start
            ratios.append(mass[query, start : min(query + 1, end)].sum() / (tokens / (query + 1)))
        expected.append(np.mean(ratios))
    assert FAMILIES["llama-gqa"].num_hidden_layers == len(maps)
    np.testing.assert_allclose(weights[: len(expected)], expected, atol=1e-4)

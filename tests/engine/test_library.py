"""Use as a library, without Ray: what README shows, with a tiny model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hifc_ray.config import EngineConfig, FlashConfig, HostConfig, TierConfig
from hifc_ray.engine.loop import Engine
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.engine.sequence import Result
from hifc_ray.errors import DirectoryLocked
from hifc_ray.layout import BlockLayout
from hifc_ray.policies.always import Always
from hifc_ray.policies.lru import Lru
from hifc_ray.tiering import TieredCache

LAYOUT = BlockLayout(layers=2, kv_heads=2, head_dim=16, block_tokens=16)
PROMPT = np.random.default_rng(7).integers(0, 200, 150).tolist()  # nine full blocks and a rest
PARAMS = SamplingParams(max_new_tokens=12, ignore_eos=True, keep_logits=True)


def make_model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=200, initializer_range=0.2, **shape, **heads)).eval()


def open_cache(directory: Path) -> TieredCache:
    host = HostConfig(arena_bytes=32 * LAYOUT.block_bytes, window_share=0.5)
    flash = FlashConfig(directories=(directory,), limit_bytes=64 << 20)
    return TieredCache(TierConfig(host=host, flash=flash), LAYOUT.block_bytes, Lru(), Always())


def answer(cache: TieredCache | None, model: LlamaForCausalLM) -> Result:
    config = EngineConfig(gpu_bytes=64 * LAYOUT.block_bytes, block_tokens=LAYOUT.block_tokens, load_deadline_s=30)
    with Engine(config, cache, model=model) as engine:
        result = engine.generate([PROMPT], PARAMS)[0]
        assert engine.drain(30)
    return result


def test_generate_close_reopen_and_hit_from_flash_with_the_same_bits(tmp_path: Path) -> None:
    model = make_model()
    without = answer(None, model)

    cache = open_cache(tmp_path)
    first = answer(cache, model)
    second = answer(cache, model)
    cache.check()
    cache.close()
    cache = open_cache(tmp_path)
    third = answer(cache, model)
    cache.check()
    cache.close()

    assert first.blocks["computed"] == 9
    assert second.blocks["host"] == 9
    assert third.blocks["flash"] == 9
    for result in (first, second, third):
        assert result.tokens == without.tokens
        np.testing.assert_array_equal(np.stack(result.logits), np.stack(without.logits))


def test_blocks_of_changed_weights_are_another_models(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    answer(cache, make_model(seed=0))
    other = answer(cache, make_model(seed=1))
    cache.close()
    assert other.blocks["computed"] == 9
    assert other.tokens == answer(None, make_model(seed=1)).tokens


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    try:
        with pytest.raises(DirectoryLocked, match=str(tmp_path)):
            open_cache(tmp_path)
        assert answer(cache, make_model()).blocks["computed"] == 9
    finally:
        cache.close()

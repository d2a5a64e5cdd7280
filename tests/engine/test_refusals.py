"""Models that cannot run are refused by name, before anything is computed wrongly."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen3NextConfig,
)

from hifc_ray.config import EngineConfig
from hifc_ray.engine.loop import Engine
from hifc_ray.errors import ConfigError, ModelRefused

_SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": None,
}

REFUSED: list[tuple[PretrainedConfig, str]] = [
    (MistralConfig(**_SMALL), "sliding"),
    (Gemma2Config(**_SMALL, head_dim=16), "softcap|sliding"),
    (GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=128), "learned position"),
    (DeepseekV3Config(**_SMALL, n_routed_experts=2, first_k_dense_replace=2), "MLA"),
    (Qwen3NextConfig(**_SMALL, head_dim=16, num_experts=0), "not full attention"),
    (LlamaConfig(**_SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "dynamic"),
]


@pytest.mark.parametrize(("config", "reason"), REFUSED, ids=[config.model_type for config, _ in REFUSED])
def test_what_the_pool_cannot_serve_is_refused_with_the_reason(config: PretrainedConfig, reason: str) -> None:
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ModelRefused, match=reason) as refused:
        Engine(EngineConfig(), model=model)
    assert config.model_type in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"model": "no-such-model-of-ours"}, "no-such-model-of-ours"),
        ({"device": "cuda:77"}, "cuda:77"),
    ],
)
def test_what_cannot_be_found_is_named(settings: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match=named) as refused:
        Engine(EngineConfig(**settings))
    assert "\n" not in str(refused.value)

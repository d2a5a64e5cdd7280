"""Tiny random models of the families that the engine runs. Initial scale 0.2: at the default most repeat themselves,
so that a wrong block can go unseen."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from hifc_ray.layout import BlockLayout

VOCABULARY = 211
BLOCK_TOKENS = 16
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}

FAMILIES: dict[str, PretrainedConfig] = {
    "llama-gqa": LlamaConfig(**_SHAPE, num_attention_heads=4, num_key_value_heads=2),
    "llama-mha": LlamaConfig(**_SHAPE, num_attention_heads=4, num_key_value_heads=4),
    "llama-mqa": LlamaConfig(**_SHAPE, num_attention_heads=4, num_key_value_heads=1),
    "qwen2": Qwen2Config(**_SHAPE, num_attention_heads=4, num_key_value_heads=2, use_sliding_window=False),
    "qwen3": Qwen3Config(**_SHAPE, num_attention_heads=4, num_key_value_heads=2, head_dim=16, use_sliding_window=False),
    "mistral": MistralConfig(**_SHAPE, num_attention_heads=4, num_key_value_heads=2, sliding_window=None),
}


def make_model(family: str = "llama-gqa", seed: int = 0) -> Any:
    """A model of a family with random weights; the same for the same seed."""
    torch.manual_seed(seed)
    config = copy.deepcopy(FAMILIES[family])  # an engine notes its attention in it
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def layout_of(family: str) -> BlockLayout:
    """The layout that the engine should find for a family."""
    config = FAMILIES[family]
    return BlockLayout(config.num_hidden_layers, config.num_key_value_heads, 16, BLOCK_TOKENS)

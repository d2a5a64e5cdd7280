"""Which models this engine does not run: checked in the configuration, in the modules, and by watching one forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from transformers.cache_utils import Cache, get_layer_types_and_kwargs

from hifc_ray.errors import ModelRefused

_PROBE_TOKENS = 2

# Position encodings that change for earlier tokens when the sequence grows, so that a block has no fixed bytes.
_GROWING_ROPE = ("dynamic", "longrope")

# What an attention function may be asked for beyond softmax(q k) v, and is not done here.
_UNSUPPORTED = {
    "sliding_window": "sliding-window attention",
    "softcap": "soft-capped attention scores",
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
    "position_bias": "a position bias (ALiBi or relative positions)",
    "alibi": "ALiBi",
    "indexer": "sparse attention",
}
_CONFIG_FLAGS = {
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "attn_logit_softcapping": "soft-capped attention scores",
    "alibi": "ALiBi",
    "attention_chunk_size": "chunked attention",
}


def check_config(config: Any) -> None:
    """Raise `ModelRefused` if the configuration names something that the block pool cannot serve."""
    model = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        _refuse(model, "it is an encoder-decoder")
    for name, what in _CONFIG_FLAGS.items():
        if getattr(config, name, None):
            _refuse(model, f"it uses {what} ({name} is {getattr(config, name)})")
    if getattr(config, "position_embedding_type", None) in ("absolute", "relative_key", "relative_key_query"):
        _refuse(model, f"its positions are {config.position_embedding_type}, not rotary")
    _check_layers(config)
    _check_rope(config)
    for name in ("max_position_embeddings", "vocab_size"):
        if not getattr(config, name, None):
            _refuse(model, f"its configuration has no {name}")


def check_modules(model: Any) -> None:
    """Raise `ModelRefused` for learned positions: an embedding as long as the context beside that of the tokens."""
    config = model.config.get_text_config()
    tokens = model.get_input_embeddings()
    for name, module in model.named_modules():
        is_table = isinstance(module, torch.nn.Embedding) and module is not tokens
        if is_table and module.num_embeddings >= config.max_position_embeddings:
            _refuse(config.model_type, f"it has learned position embeddings ({name})")


@dataclass
class Seen:
    """What a forward pass showed: shapes of each layer's attention."""

    layers: int = 0
    query_heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    called: list[int] = field(default_factory=list)


class ProbeCache(Cache):
    """Stands in for the pool during one forward; notes shapes and refuses what the attention function is asked for."""

    is_compileable = False

    def __init__(self, model_type: str) -> None:
        self.layers: list[Any] = []
        self.seen = Seen()
        self._model_type = model_type

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        if key_states.shape != value_states.shape:
            _refuse(self._model_type, f"keys {tuple(key_states.shape)} and values {tuple(value_states.shape)} differ")
        shape = (key_states.shape[1], key_states.shape[3])
        if self.seen.called and shape != (self.seen.kv_heads, self.seen.head_dim):
            _refuse(self._model_type, f"layer {layer_idx} has other heads than layer 0")
        self.seen.kv_heads, self.seen.head_dim = shape
        return self, self

    def attend(self, query: torch.Tensor, layer: int, scale: float, mask: Any, options: dict[str, Any]) -> torch.Tensor:
        for name, what in _UNSUPPORTED.items():
            if options.get(name) is not None:
                _refuse(self._model_type, f"it uses {what}")
        if mask is not None:
            _refuse(self._model_type, "its attention needs a mask of its own")
        self.seen.called.append(layer)
        self.seen.query_heads = query.shape[1]
        return torch.zeros_like(query).transpose(1, 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0


def probe(model: Any) -> Seen:
    """Run two tokens and see how the model attends. Raises `ModelRefused` unless each layer attends once, plainly."""
    config = model.config.get_text_config()
    cache = ProbeCache(config.model_type)
    device = next(model.parameters()).device
    tokens = torch.zeros(1, _PROBE_TOKENS, dtype=torch.int64, device=device)
    positions = torch.arange(_PROBE_TOKENS, device=device).unsqueeze(0)
    try:
        with torch.inference_mode():
            model(input_ids=tokens, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        _refuse(config.model_type, f"its attention does not go through transformers' AttentionInterface ({error})")
    seen = cache.seen
    seen.layers = config.num_hidden_layers
    if seen.called != list(range(seen.layers)):
        _refuse(config.model_type, f"{len(seen.called)} of its {seen.layers} layers attend through AttentionInterface")
    return seen


def _check_layers(config: Any) -> None:
    kinds = get_layer_types_and_kwargs(config)[0]
    other = [(index, kind) for index, kind in enumerate(kinds) if kind != "full_attention"]
    if other:
        index, kind = other[0]
        _refuse(
            config.model_type, f"{len(other)} of {len(kinds)} layers are not full attention (layer {index}: {kind})"
        )


def _check_rope(config: Any) -> None:
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind in _GROWING_ROPE:
        _refuse(config.model_type, f"its position encoding ({kind}) changes earlier tokens as the sequence grows")


def _refuse(model_type: str, reason: str) -> NoReturn:
    raise ModelRefused(f"model of type {model_type} cannot run here: {reason}")

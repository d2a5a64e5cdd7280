"""`demo`, `generate`, `status`, `up`, `down` as far as they go without Ray: bad input, and a whole `generate`."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from hifc_ray.cli import main, status
from hifc_ray.flash.format import LOCK_NAME
from hifc_ray.locks import FileLock
from tests.fakes.demo_model import SIZES, save_demo_model

PROMPT = "Please tell me about the library and the ship. " * 40  # 10 tokens each, so one whole block and more
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_demo_model(tmp_path_factory.mktemp("cli"))


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def refused(capfd: Any, code: int, *arguments: str) -> str:
    """The one line with which a command ends."""
    assert main.run(arguments) == code
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    said = [line for line in captured.err.splitlines() if line.startswith("hifc: ")]
    assert len(said) == 1, captured.err
    assert captured.err.splitlines()[-1] == said[0]
    return said[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--turns", "0"), ("--turns",)),
        (("--seed", "-1"), ("--seed",)),
        (("--gpu-bytes", "lots"), ("engine.gpu_bytes", "'lots'")),
        (("--gpu-bytes", ""), ("engine.gpu_bytes", "''")),
        (("--gpu-bytes", "10"), ("engine.gpu_bytes is 10", "one block needs")),
        (("--flash-dir", "a" * 300), ("flash directory", "aaa: File name too long", "allowed")),
        (("--flash-bytes", "1MB"), ("flash.limit_bytes is 1000000", "at least")),
        (("--host-bytes", "900TiB"), ("host.arena_bytes", "set tier.host.arena_bytes")),
        (("--model", "/none"), ("'/none'", "smollm2")),
        (("--address", "ray://head:10001"), ("'ray://head:10001'", "host:port")),
    ],
)
def test_demo_refuses_before_it_starts_anything(
    arguments: tuple[str, ...], words: tuple[str, ...], model: str, capfd: Any
) -> None:
    line = refused(capfd, 2, "demo", "--model", model, *SIZES, *arguments)
    assert [word for word in words if word not in line] == []


def test_demo_refuses_bad_flash_directories_and_touches_nothing(model: str, tmp_path: Path, capfd: Any) -> None:
    command = ("demo", "--model", model, *SIZES, "--flash-dir")
    assert "does not exist; create it with: mkdir" in refused(capfd, 2, *command, str(tmp_path / "none"))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("all of it")
    assert str(foreign) in refused(capfd, 2, *command, str(foreign))
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]
    busy = tmp_path / "busy"
    busy.mkdir()
    with FileLock(busy / LOCK_NAME) as lock:
        assert lock.acquire()
        assert "another live process" in refused(capfd, 2, *command, str(busy))


def test_an_address_without_a_cluster(capfd: Any, model: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        for command in (("status",), ("down",), ("up", "--model", model)):
            assert f"no Ray cluster at {address}" in refused(capfd, 1, *command, "--address", address)
        assert address in refused(capfd, 2, "demo", "--model", model, *SIZES, "--address", address)


def test_generate_streams_and_finds_its_blocks_again(model: str, tmp_path: Path, capfd: Any) -> None:
    command = ("generate", "--model", model, "--prompt", PROMPT, "--max-new-tokens", "6", "--flash-bytes", "40MB")
    kept = (*command, "--flash-dir", str(tmp_path), "--host-bytes", "4MB")
    assert main.run([*command, "--cache", "off"]) == 0
    text = capfd.readouterr().out.strip()
    assert main.run([*kept, "--json"]) == 0
    cold = json.loads(capfd.readouterr().out)
    assert main.run([*kept, "--json"]) == 0
    warm = json.loads(capfd.readouterr().out)
    assert cold["text"].strip() == text != ""
    assert (cold["blocks"]["computed"], cold["missed"]) == (1, {"block": 0, "fate": "unknown"})
    assert (warm["blocks"]["flash"], warm["missed"]) == (1, None)
    assert warm["tokens"] == cold["tokens"]
    assert main.run([*kept, "--cache", "read", "--temperature", "1", "--seed", "3", "--raw"]) == 0
    assert capfd.readouterr().out.strip()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--cache", "maybe"), "cache is 'maybe'"),
        (("--top-p", "3"), "top_p is 3.0"),
        (("--max-new-tokens", "0"), "max_new_tokens is 0"),
        (("--max-new-tokens", "5000"), "the model's context is 4096"),
        (("--gpu-bytes", "1000"), "engine.gpu_bytes is 1000"),
        (("--gpu-bytes", "900TB"), "engine.gpu_bytes is 900000000000000; cpu has no room"),
        (("--prompt", "", "--raw"), "the prompt is empty"),
    ],
)
def test_generate_refuses(arguments: tuple[str, ...], words: str, model: str, capfd: Any) -> None:
    assert words in refused(capfd, 2, "generate", "--prompt", "hello", "--model", model, *arguments)


def test_weights_that_are_cut_short_are_refused(model: str, tmp_path: Path, capfd: Any) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "cut"))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    assert f"model {folder}: " in refused(capfd, 2, "generate", "--prompt", "hello", "--model", str(folder))


def test_status_shows_what_answers_and_what_does_not(capfd: Any) -> None:
    host = {"num_slots": 13, "slot_bytes": 4096, "slots": {"absent": 3, "resident": 10, "leased": 0}}
    tier = {"node": "a" * 40, "host": host, "flash": None, "lookup_keys": 7, "served_blocks": 5, "checksum_faults": 0}
    node = {"node": "a" * 40, "address": "10.0.0.1", "alive": True, "cpus": 2.0, "gpus": 0}
    status._print(
        {
            "ray": "10.0.0.1:6379",
            "nodes": [node],
            "tiers": [{**tier, "weights_version": 4}, {"node": "b" * 40, "problem": "no answer within 10 s"}],
            "engines": [],
            "policy": None,
            "manager": {},
        }
    )
    out = capfd.readouterr().out
    for words in ("3 free, 10 resident", "no answer within 10 s", "missing: hifc up starts it", "version 4"):
        assert words in out


def test_status_shows_how_flash_devices_wear(capfd: Any) -> None:
    device = {
        "path": "/mnt/nvme0",
        "state": "draining",
        "used_bytes": 3 * 10**9,
        "limit_bytes": 4 * 10**9,
        "budget_bytes_per_day": 10**12,
        "budget_level": 0.25,
        "written_bytes_per_day": 5e11,
        "projected_life_days": 1825.0,
    }
    unlimited = {**device, "path": "/mnt/nvme1", "budget_bytes_per_day": 0, "projected_life_days": None}
    flash = {"blocks": 7, "used_bytes": 3, "limit_bytes": 4, "devices": [device, unlimited]}
    host = {"num_slots": 1, "slot_bytes": 4096, "slots": {"absent": 1}}
    tier = {"node": "a" * 40, "host": host, "flash": flash, "lookup_keys": 7, "served_blocks": 5}
    report: dict[str, Any] = {"ray": "10.0.0.1:6379", "nodes": [], "engines": [], "policy": None, "manager": {}}
    status._print({**report, "tiers": [{**tier, "checksum_faults": 0, "weights_version": 4}]})
    out = capfd.readouterr().out
    for words in ("/mnt/nvme0", "draining", "25% of 1.0 TB a day", "500.0 GB", "1,825 days", "no budget", "unknown"):
        assert words in out

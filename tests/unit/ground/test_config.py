"""Bad values name themselves, in one line, and say what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hifc_ray import config
from hifc_ray.config import Config, EngineConfig, FlashConfig, HostConfig, PolicyConfig, format_bytes, parse_bytes
from hifc_ray.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("512MiB", 512 << 20),
        ("1.5 GiB", 3 << 29),
        ("2 GB", 2 * 10**9),
        ("7k", 7000),
        (" 1tib ", 1 << 40),
        ("0", 0),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "many", "5 bananas", "1e9", "-5MiB", -1, True, 1.5, "0x10", "9" * 400, "9" * 30])
def test_sizes_that_are_none(text: Any) -> None:
    with pytest.raises(ConfigError, match=r"host\.arena_bytes"):
        parse_bytes(text, "host.arena_bytes")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (11_796_480, "11.8 MB"), (3 * 10**15, "3000.0 TB")]
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_defaults_are_valid_and_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("# nothing\n")
    assert config.load(empty) == Config()


def test_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "hifc.yaml"
    file.write_text(
        "tier:\n"
        "  host: {arena_bytes: 2 GiB, low_watermark: 0}\n"
        "  flash: {directories: ~/hifc, limit_bytes: 10GB}\n"
        "  policy: {eviction: retention}\n"
        "engine: {gpu_bytes: 1073741824, device: 'cuda:1', load_deadline_s: 1}\n"
    )
    loaded = config.load(file)
    assert loaded.tier.host == HostConfig(arena_bytes=2 << 30, low_watermark=0.0)
    assert loaded.tier.flash == FlashConfig(directories=(Path.home() / "hifc",), limit_bytes=10**10)
    assert loaded.tier.policy == PolicyConfig(eviction="retention")
    assert loaded.engine == EngineConfig(gpu_bytes=1 << 30, device="cuda:1", load_deadline_s=1.0)


def test_a_budget_is_a_size_too() -> None:
    flash = config.build(Config, {"tier": {"flash": {"write_bytes_per_day": "2TB"}}}).tier.flash
    assert flash.write_bytes_per_day == 2 * 10**12


def test_no_flash_directory_means_no_flash(tmp_path: Path) -> None:
    assert config.build(Config, {"tier": {"flash": {"directories": None}}}).tier.flash.directories == ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"teir": {}}, "unknown key teir; allowed: tier, engine"),
        ({"tier": {"host": {"arena": 1}}}, "unknown key tier.host.arena; allowed: arena_bytes, low_watermark"),
        ({"tier": {"host": {"arena_bytes": "lots"}}}, "tier.host.arena_bytes is 'lots'"),
        ({"tier": {"host": {"arena_bytes": 0}}}, "host.arena_bytes is 0; allowed: more than 0"),
        ({"tier": {"host": {"low_watermark": 1.0}}}, "host.low_watermark is 1.0; allowed: from 0 to below 1"),
        ({"tier": {"host": {"low_watermark": 0.3, "high_watermark": 0.2}}}, "host.high_watermark is 0.2"),
        ({"tier": {"host": {"window_share": 0.0}}}, "host.window_share is 0.0"),
        ({"tier": {"flash": {"read_threads": 0}}}, "flash.read_threads is 0; allowed: from 1 to 256"),
        ({"tier": {"flash": {"read_threads": "4"}}}, "tier.flash.read_threads is '4'; it must be of type int"),
        ({"tier": {"flash": {"read_threads": True}}}, "tier.flash.read_threads is True; it must be of type int"),
        ({"tier": {"flash": {"directories": 7}}}, "tier.flash.directories is 7; it must be a path"),
        ({"tier": {"flash": {"write_deadline_s": 0}}}, "flash.write_deadline_s is 0.0; allowed: above 0 seconds"),
        (
            {"tier": {"flash": {"write_deadline_s": 1e10}}},
            "flash.write_deadline_s is 10000000000.0; allowed: above 0 sec",
        ),
        ({"tier": {"flash": {"retry_s": float("inf")}}}, "tier.flash.retry_s is inf; allowed: a number up to"),
        ({"tier": {"flash": {"retry_s": float("nan")}}}, "tier.flash.retry_s is nan; allowed: a number up to"),
        ({"tier": {"flash": {"carry_share": 10**400}}}, "tier.flash.carry_share is 1000"),
        ({"tier": {"flash": {"max_faults": 2**63}}}, "tier.flash.max_faults is 9223372036854775808; allowed: a number"),
        ({"tier": {"flash": {"write_threads": 10**6}}}, "flash.write_threads is 1000000; allowed: from 1 to 256"),
        ({"engine": {"load_deadline_s": 1e12}}, "engine.load_deadline_s is 1000000000000.0; allowed: above 0 seconds"),
        ({"tier": []}, r"tier is \[\]; it must be a mapping"),
        ([], r"config is \[\]; it must be a mapping"),
        ({"engine": {"dtype": "float8"}}, "engine.dtype is 'float8'; allowed: auto, float32"),
        ({"engine": {"device": "tpu"}}, "engine.device is 'tpu'; allowed: auto, cpu, cuda, cuda:N"),
        ({"engine": {"max_batch": 0}}, "engine.max_batch is 0"),
        ({"engine": {"threads": -1}}, "engine.threads is -1"),
        ({"tier": {"policy": {"report_interval_s": 0}}}, "policy.report_interval_s is 0.0"),
    ],
)
def test_bad_values_name_themselves(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        config.build(Config, data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"tier: [", "is not YAML"), (b"a: " + b"[" * 3000, "is not YAML"), (b"\xff\xfe\x00", "config file .*hifc.yaml")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "hifc.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        config.load(file)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        config.load(tmp_path / "none.yaml")


def test_values_go_on_top_of_a_file_by_dotted_name(tmp_path: Path) -> None:
    file = tmp_path / "hifc.yaml"
    file.write_text("tier: {host: {arena_bytes: 1GiB, window_share: 0.5}}\n")
    values = {
        "tier.host.arena_bytes": "2GiB",
        "tier.flash.directories": [tmp_path, tmp_path / "second"],
        "engine.model": None,
    }
    loaded = config.load(file, values)
    assert loaded.tier.host == HostConfig(arena_bytes=2 << 30, window_share=0.5)
    assert loaded.tier.flash.directories == (tmp_path, tmp_path / "second")
    assert loaded.engine == EngineConfig()
    assert config.load(None) == Config()


@pytest.mark.parametrize(
    ("content", "values", "message"),
    [
        ("", {"engine.gpu_bytes": "lots"}, "engine.gpu_bytes is 'lots'"),
        ("", {"engine.speed": 9}, "unknown key engine.speed"),
        ("tier: 7", {"tier.host.arena_bytes": 1}, "tier.host is 7; it must be a mapping"),
        ("- a", {"engine.model": "x"}, r"engine is \['a'\]; it must be a mapping"),
    ],
)
def test_bad_values_on_top_name_themselves(tmp_path: Path, content: str, values: dict[str, Any], message: str) -> None:
    file = tmp_path / "hifc.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        config.load(file, values)

"""Nested, frozen configuration, from YAML or keyword arguments. A bad value names itself and says what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from hifc_ray.errors import ConfigError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MOST_BYTES = 2**60  # what sizes and offsets are added up from must fit into 64 bits
_MOST_S = 1e9  # threads cannot wait for much longer
_MOST_THREADS = 256
T = TypeVar("T")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


def parse_bytes(text: str | int, name: str = "size") -> int:
    """Bytes from 4096, "512MiB" or "2 GB". Raises `ConfigError` that names the value."""
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        match = _SIZE.fullmatch(str(text))
        if match is None or (match[2] is None and "." in match[1]):
            raise ConfigError(
                f"{name} is {text!r}; allowed: a number of bytes, or one with KiB, MiB, GiB, TiB, KB, MB, GB, TB"
            )
        unit = _UNITS[(match[2] or "").lower()]
        size = int(Decimal(match[1]) * unit) if len(match[1]) < 40 else _MOST_BYTES + 1
    if size < 0:
        raise ConfigError(f"{name} is {text!r}; it must not be negative")
    if size > _MOST_BYTES:
        raise ConfigError(f"{name} is {str(text)[:40]!r}; allowed: at most {_MOST_BYTES} bytes")
    return size


def format_bytes(size: float) -> str:
    """A size for people: 11.8 MB, 1.5 GB (powers of ten)."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


@dataclass(frozen=True)
class HostConfig:
    """Host memory of one node."""

    arena_bytes: int = 1 << 30
    # Eviction starts when less than this share of the slots is free, and goes on until `high` is free.
    low_watermark: float = 0.10
    high_watermark: float = 0.15
    # The most slots that one request may hold at a time, so that two long prompts cannot lock each other out.
    window_share: float = 0.125

    def __post_init__(self) -> None:
        _check(self.arena_bytes > 0, "host.arena_bytes", self.arena_bytes, "more than 0")
        _check(0 <= self.low_watermark < 1, "host.low_watermark", self.low_watermark, "from 0 to below 1")
        ok = self.low_watermark <= self.high_watermark < 1
        _check(ok, "host.high_watermark", self.high_watermark, f"from low_watermark ({self.low_watermark}) to below 1")
        _check(0 < self.window_share <= 1, "host.window_share", self.window_share, "above 0, at most 1")


@dataclass(frozen=True)
class FlashConfig:
    """Flash of one node: a directory on each of its devices. No directory means no flash tier."""

    directories: tuple[Path, ...] = ()
    limit_bytes: int = 4 << 30  # of all directories together
    segment_bytes: int = 0  # 0: room for 16 blocks, usually 16 to 64 MiB, or what the limit allows
    read_threads: int = 4  # of each device
    write_threads: int = 2  # of each device
    queue_blocks: int = 64  # jobs that may wait in each direction of each device; more are refused and counted
    read_deadline_s: float = 2.0  # then the block is a miss; its slot is quarantined until the read returns
    write_deadline_s: float = 30.0  # then the demotion has failed; its slot is quarantined until the write returns
    read_only: bool = False  # serve and verify what is there, write nothing
    # The most that reclaim writes again, as a share of what is admitted: write amplification rises by so much at most.
    carry_share: float = 0.1
    filter_fpr: float = 0.01  # false-positive rate for which Bloom filters are made
    checkpoint_interval_s: float = 60.0  # between checkpoints of access history, ghosts and weights
    history_max_age_s: float = 7 * 86400.0  # an older checkpoint is not believed
    drive_writes_per_day: float = 1.0  # rated endurance; 0: no budget
    write_bytes_per_day: int = 0  # of each device; 0: drive_writes_per_day of its capacity
    tenant_quota_bytes: int = 0  # the most that one tenant may have on flash; 0: no quota
    max_faults: int = 8  # errors and stalls of a device within `fault_window_s` that take it out
    fault_window_s: float = 60.0
    retry_s: float = 30.0  # until a device that was taken out is tried again; doubled at each failure, up to 16 times
    health_interval_s: float = 60.0  # between two looks at SMART and GPUs

    def __post_init__(self) -> None:
        twice = [path for path in self.directories if self.directories.count(path) > 1]
        _check(not twice, "flash.directories", self.directories, "each directory once")
        _check(self.limit_bytes > 0, "flash.limit_bytes", self.limit_bytes, "more than 0")
        for name in ("segment_bytes", "drive_writes_per_day", "write_bytes_per_day", "tenant_quota_bytes"):
            _check(getattr(self, name) >= 0, f"flash.{name}", getattr(self, name), "0 or more")
        for name in ("read_threads", "write_threads"):
            ok = 1 <= getattr(self, name) <= _MOST_THREADS
            _check(ok, f"flash.{name}", getattr(self, name), f"from 1 to {_MOST_THREADS}")
        for name in ("queue_blocks", "max_faults"):
            _check(getattr(self, name) >= 1, f"flash.{name}", getattr(self, name), "at least 1")
        for name in (
            "read_deadline_s",
            "write_deadline_s",
            "checkpoint_interval_s",
            "history_max_age_s",
            "fault_window_s",
            "retry_s",
            "health_interval_s",
        ):
            _check_seconds(f"flash.{name}", getattr(self, name))
        _check(0 <= self.carry_share <= 0.5, "flash.carry_share", self.carry_share, "from 0 to 0.5")
        _check(0 < self.filter_fpr < 0.5, "flash.filter_fpr", self.filter_fpr, "above 0, below 0.5")


@dataclass(frozen=True)
class PolicyConfig:
    """What decides which blocks stay."""

    eviction: str = "lru"
    admission: str = "always"
    report_interval_s: float = 5.0

    def __post_init__(self) -> None:
        _check_seconds("policy.report_interval_s", self.report_interval_s)


@dataclass(frozen=True)
class TierConfig:
    """One node's cache tier."""

    host: HostConfig = field(default_factory=HostConfig)
    flash: FlashConfig = field(default_factory=FlashConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)


@dataclass(frozen=True)
class EngineConfig:
    """One inference engine."""

    model: str = "smollm2"
    device: str = "auto"  # auto, cpu, cuda, cuda:N
    dtype: str = "auto"  # auto: float32 on CPU, the model's own on CUDA
    gpu_bytes: int = 512 << 20  # of the block pool; ordinary memory on CPU
    block_tokens: int = 256
    group_blocks: int = 8  # blocks that one attention call covers, cut by position
    max_batch: int = 8  # sequences that decode together
    max_waiting: int = 256  # requests that may queue; more are refused
    threads: int = 0  # 0: what torch has
    load_deadline_s: float = 2.0  # waiting for the tiers for one request; then the rest is computed
    call_deadline_s: float = 0.5  # one lookup; then it is a miss
    store_deadline_s: float = 5.0  # one background store; then it is dropped and counted
    store_queue_blocks: int = 64
    tenant_salt: str = ""
    # Decode waits for requests that are loading, so that which sequences decode together depends on no clock.
    hold_decode: bool = False
    # False: blocks with generated tokens are not cached, so that the next turn computes them in the shapes of a prompt,
    # bit for bit as without a cache. True: they are cached; a decode step's floats differ from those in the last bits.
    cache_generated: bool = False

    def __post_init__(self) -> None:
        for name in ("gpu_bytes", "block_tokens", "group_blocks", "max_batch", "max_waiting", "store_queue_blocks"):
            _check(getattr(self, name) >= 1, f"engine.{name}", getattr(self, name), "at least 1")
        _check(self.threads >= 0, "engine.threads", self.threads, "0 (chosen for you) or more")
        _check(
            self.dtype in ("auto", "float32", "float16", "bfloat16"),
            "engine.dtype",
            self.dtype,
            "auto, float32, float16, bfloat16",
        )
        _check(
            re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device) is not None,
            "engine.device",
            self.device,
            "auto, cpu, cuda, cuda:N",
        )
        for name in ("load_deadline_s", "call_deadline_s", "store_deadline_s"):
            _check_seconds(f"engine.{name}", getattr(self, name))


@dataclass(frozen=True)
class Config:
    """Everything that `hifc` reads from one YAML file."""

    tier: TierConfig = field(default_factory=TierConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)


def load(path: Path | None, values: Mapping[str, Any] | None = None) -> Config:
    """The configuration in a YAML file, if any, with `values` on top, by dotted name; None leaves a value as it is.

    Raises `ConfigError` with one line.
    """
    data = {} if path is None else _read(path)
    for name, value in (values or {}).items():
        if value is not None:
            *sections, last = name.split(".")
            target = data
            for section in sections:
                target = target.setdefault(section, {}) if isinstance(target, dict) else target
            if not isinstance(target, dict):
                raise ConfigError(f"{'.'.join(sections)} is {target!r}; it must be a mapping of names to values")
            target[last] = value
    return build(Config, data)


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"config file {path} is not YAML: {' '.join(str(error).split())}") from error
    return {} if data is None else data


def build(kind: type[T], data: Any, where: str = "") -> T:
    """`kind` (a frozen config class) from nested mappings; unknown keys and wrong types raise `ConfigError`."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where or 'config'} is {data!r}; it must be a mapping of names to values")
    hints = get_type_hints(kind)
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    unknown = [key for key in data if key not in names]
    if unknown:
        raise ConfigError(f"unknown key {where + '.' if where else ''}{unknown[0]}; allowed: {', '.join(names)}")
    values = {key: _value(hints[key], value, f"{where}.{key}" if where else key) for key, value in data.items()}
    return kind(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(hint):
        return build(hint, value, where)  # type: ignore[arg-type]
    if get_origin(hint) in (Union, UnionType):
        if value is None:
            return None
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    if hint is Path and isinstance(value, str | Path):
        return Path(value).expanduser()
    if get_origin(hint) is tuple:  # one, several or none
        items = value if isinstance(value, list | tuple) else [] if value is None else [value]
        return tuple(_value(get_args(hint)[0], item, where) for item in items)
    if where.endswith(("_bytes", "_bytes_per_day")):
        return parse_bytes(value, where)
    if isinstance(value, int | float) and not abs(value) <= _MOST_BYTES:
        raise ConfigError(f"{where} is {str(value)[:40]}; allowed: a number up to {_MOST_BYTES}")
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise ConfigError(f"{where} is {value!r}; it must be {'a path' if hint is Path else f'of type {hint.__name__}'}")


def _check_seconds(name: str, value: float) -> None:
    _check(0 < value <= _MOST_S, name, value, f"above 0 seconds, at most {_MOST_S:.0f}")


def _check(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ConfigError(f"{name} is {value!r}; allowed: {allowed}")

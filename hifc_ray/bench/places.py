"""Where a bench may write: a directory of its own on a real disk, gone at the end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hifc_ray import env
from hifc_ray.config import format_bytes
from hifc_ray.errors import ConfigError
from hifc_ray.health.directory import read_directory

_IN_MEMORY = ("tmpfs", "ramfs")  # a recent tmpfs takes O_DIRECT, so that alone proves nothing
_USUAL = (Path("/var/tmp"), Path("/tmp"))


def disk_directory(asked: Path | None, need_bytes: int) -> Path:
    """`asked`, or the first usual place that will do, to make scratch directories in. Raises `ConfigError`."""
    return _checked(asked, need_bytes) if asked is not None else _first_good(need_bytes)


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A fresh directory, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="hifc-bench-", dir=parent) as name:
        yield Path(name)


def file_system_of(path: Path) -> str:
    """Type of the file system that `path` lies on, as the kernel names it."""
    resolved, best, kind = path.resolve(), -1, ""
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, name = line.split()[:3]
        point = Path(mount.replace("\\040", " "))
        if resolved.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), name
    return kind


def _checked(path: Path, need_bytes: int) -> Path:
    wrong = _why_not(path, need_bytes)
    if wrong:
        raise ConfigError(
            f"--flash-dir is {path}: {wrong}; allowed: a writable directory on a disk that takes O_DIRECT, with "
            f"{format_bytes(need_bytes)} free"
        )
    return path


def _first_good(need_bytes: int) -> Path:
    tried = [path for path in (*_USUAL, env.cache_home(), Path.cwd()) if path.is_dir()]
    for path in tried:
        if not _why_not(path, need_bytes):
            return path
    reasons = "; ".join(f"{path}: {_why_not(path, need_bytes)}" for path in tried)
    raise ConfigError(f"no directory for the bench ({reasons}); name one on a disk with --flash-dir")


def _why_not(path: Path, need_bytes: int) -> str:
    found = read_directory(path)
    if not found.is_directory:
        return "no such directory"
    if not found.writable:
        return "not writable"
    if file_system_of(path) in _IN_MEMORY:
        return "in memory, not on a disk"
    if not found.direct:
        return "its file system takes no O_DIRECT"
    return f"{format_bytes(found.free_bytes)} free" if found.free_bytes < need_bytes else ""

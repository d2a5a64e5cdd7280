"""Where the demo puts what it stores for its own time: on a disk, and away from what a memory file system holds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from hifc_ray import env

IN_MEMORY = ("tmpfs", "ramfs")
RAY_PARENT = Path("/tmp")  # Ray's sockets lie below, and their paths may have 107 bytes


def parent_on_disk(mounts: Path = Path("/proc/self/mounts")) -> Path:
    """A writable directory on a real disk, or the usual temporary one where none is found."""
    usual = Path(tempfile.gettempdir())
    table = mounts.read_text() if mounts.exists() else ""
    kinds = {fields[1]: fields[2] for fields in map(str.split, table.splitlines()) if len(fields) > 2}
    for candidate in (usual, Path("/var/tmp"), env.cache_home().parent):
        if candidate.is_dir() and _kind(candidate, kinds) not in IN_MEMORY:
            return candidate
    return usual


def _kind(path: Path, kinds: dict[str, str]) -> str:
    resolved = path.resolve()
    parents: Iterable[Path] = (resolved, *resolved.parents)
    return next((kinds[str(parent)] for parent in parents if str(parent) in kinds), "")

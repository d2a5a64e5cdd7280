"""Arenas that nobody owns or uses any more: a Ray that was killed leaves them, whole, in memory until the next boot."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hifc_ray.host.arena import MAGIC, lock_path
from hifc_ray.locks import FileLock, is_locked

_NAMES = "hifc-*"


def dead(directory: Path) -> dict[Path, int]:
    """Arenas in `directory` without a live owner or holder, with their inodes. One may be about to be re-attached."""
    found = {}
    for path in directory.glob(_NAMES):
        with contextlib.suppress(OSError):  # gone by now, or another user's
            if _is_arena(path) and not _in_use(path):
                found[path] = path.stat().st_ino
    return found


def remove(arenas: dict[Path, int]) -> int:
    """Remove those that are still dead, and still the same; how many were. Nothing can attach meanwhile."""
    return sum(_remove(path, inode) for path, inode in arenas.items())


def _remove(path: Path, inode: int) -> bool:
    lock = FileLock(lock_path(path))
    try:
        if not lock.acquire():
            return False
        same = path.stat().st_ino == inode and not any(is_locked(holder) for holder in _holders(path))
        if same:
            path.unlink()
            for holder in _holders(path):
                holder.unlink(missing_ok=True)
        lock.release(unlink=same)
    except OSError:
        lock.release(unlink=not path.exists())
        return False
    return same


def _is_arena(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _in_use(path: Path) -> bool:
    return is_locked(lock_path(path)) or any(is_locked(holder) for holder in _holders(path))


def _holders(path: Path) -> list[Path]:
    return list(path.parent.glob(f"{path.name}.holder-*"))

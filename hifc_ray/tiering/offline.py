"""Purging flash directories that no live process uses, and what a killed process has left of its host memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hifc_ray.config import FlashConfig
from hifc_ray.errors import DirectoryLocked, StorageError
from hifc_ray.flash import FlashStore
from hifc_ray.host import HostBooks, arena
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.locks import FileLock
from hifc_ray.messages import Purge, PurgeReport
from hifc_ray.stats import Stats

_NO_LIMIT_BYTES = 1 << 56  # nothing is to leave but what is purged
_SEGMENT_BYTES = 64 << 20  # none is begun: no block is stored


def purge_directories(directories: Sequence[Path], what: Purge) -> PurgeReport:
    """Forget blocks in these directories, and in the arenas that processes outside a cluster had for them.

    Raises the `StorageError` family if one is not ours or belongs to a live process; then nothing is purged.
    """
    config = FlashConfig(
        directories=tuple(directories),
        limit_bytes=_NO_LIMIT_BYTES,
        segment_bytes=_SEGMENT_BYTES,
        drive_writes_per_day=0.0,
    )
    with FlashStore(config, PAGE_BYTES, Stats()) as flash:
        host_blocks = sum(_purge_arena(arena.path_for(directory), what) for directory in config.directories)
        try:
            num_blocks, num_bytes = flash.purge(tenant=what.tenant, session=what.session, namespace=what.namespace)
        except OSError as error:
            raise StorageError(f"not all of it could be purged, try again: {error}") from error
    return PurgeReport(host_blocks, num_blocks, num_bytes)


def _purge_arena(path: Path, what: Purge) -> int:
    """Blocks that went; 0 where there is no arena, or one of another format, which nobody would attach to."""
    if not path.exists():
        return 0
    lock = FileLock(arena.lock_path(path))
    if not lock.acquire():
        raise DirectoryLocked(f"arena {path} is owned by a live process; stop that one first")
    try:
        mapped = arena.attach(path)
        if not mapped.incarnation:  # it was never finished
            return 0
        books = HostBooks(mapped.table)
        slots = books.select(what)
        books.purge(slots)
        return len(slots)
    except StorageError:
        return 0
    finally:
        lock.release()

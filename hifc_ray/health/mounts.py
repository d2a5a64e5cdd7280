"""The file system under a directory, from /proc/self/mountinfo (its format: proc_pid_mountinfo(5))."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hifc_ray.health import kernel

_ESCAPE = re.compile(r"\\([0-3][0-7]{2})")


@dataclass(frozen=True)
class Mount:
    """One mounted file system."""

    point: Path
    device: str  # major:minor; of file systems without a device of their own, major is 0
    file_system: str  # ext4, xfs, tmpfs, ...
    source: str
    options: frozenset[str]  # of the mount and of the file system together, "data=journal" as one

    @property
    def read_only(self) -> bool:
        return "ro" in self.options


def mount_of(directory: Path, proc: Path = kernel.PROC) -> Mount | None:
    """The mount that holds `directory`, symbolic links followed; None where the kernel does not say."""
    real = Path(os.path.realpath(directory))
    # Later lines lie over earlier ones at the same point.
    holding = [mount for mount in read_mounts(proc) if real.is_relative_to(mount.point)]
    return max(reversed(holding), key=lambda mount: len(mount.point.parts), default=None)


def read_mounts(proc: Path = kernel.PROC) -> list[Mount]:
    """In the order in which they were mounted; lines that are not understood are left out."""
    lines = (kernel.text(proc / "self/mountinfo") or "").splitlines()
    return [mount for mount in map(_parse, lines) if mount is not None]


def _parse(line: str) -> Mount | None:
    mine, separator, theirs = line.partition(" - ")
    left, right = mine.split(" "), theirs.split(" ")
    if not separator or len(left) < 6 or len(right) < 2:
        return None
    options = frozenset([*left[5].split(","), *(right[2].split(",") if len(right) > 2 else [])])
    return Mount(Path(_plain(left[4])), left[2], right[0], _plain(right[1]), options)


def _plain(word: str) -> str:
    return _ESCAPE.sub(lambda escape: chr(int(escape[1], 8)), word)

"""What the machine says: memory, limits, cores, versions. Nothing is judged here, and nothing is changed."""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hifc_ray.health import kernel
from hifc_ray.layout import round_up

_CGROUP = kernel.SYS / "fs/cgroup"


@dataclass(frozen=True)
class MemoryReading:
    """Shared memory and main memory, in bytes."""

    shm_dir: Path
    shm_total_bytes: int
    shm_free_bytes: int
    arenas_bytes: int  # already allocated to arenas of this package there
    available_bytes: int  # that a process may still take, within its container's limit
    total_bytes: int = 0  # of the machine, or its container's limit


@dataclass(frozen=True)
class Limits:
    """Soft limits of this process; None is no limit."""

    open_files: int | None
    locked_bytes: int | None


def python_version() -> tuple[int, int, int]:
    return sys.version_info[:3]


def package_version(name: str) -> str | None:
    """The installed version of a package, without importing it; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def memory(shm_dir: Path) -> MemoryReading:
    """Raises `OSError` if there is no such directory."""
    stat = os.statvfs(shm_dir)
    arenas = sum(path.stat().st_blocks * 512 for path in shm_dir.glob("hifc-*") if path.is_file())
    total, free = stat.f_blocks * stat.f_frsize, free_bytes(shm_dir)
    return MemoryReading(shm_dir, total, free, arenas, available_bytes(), total_bytes())


def free_bytes(directory: Path) -> int:
    """What this user may still write to the file system of `directory`."""
    stat = os.statvfs(directory)
    return stat.f_bavail * stat.f_frsize


def available_bytes(proc: Path = kernel.PROC, cgroup: Path = _CGROUP) -> int:
    """Memory that can be had without swapping: of the machine, and within the container's limit if it has one."""
    machine = _memory_field("MemAvailable", proc)
    limit, used = kernel.number(cgroup / "memory.max"), kernel.number(cgroup / "memory.current")
    return machine if limit is None or used is None else min(machine, max(0, limit - used))


def total_bytes(proc: Path = kernel.PROC, cgroup: Path = _CGROUP) -> int:
    """Memory of the machine, or its container's limit if that is less."""
    machine, limit = _memory_field("MemTotal", proc), kernel.number(cgroup / "memory.max")
    return machine if limit is None else min(machine, limit)


def num_cores(cgroup: Path = _CGROUP) -> int:
    """Cores that this process may use: its affinity, and its container's quota (rounded up) if it has one."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else min(cores, max(1, round_up(int(quota), int(period)) // int(period)))


def limits() -> Limits:
    return Limits(_soft_limit(resource.RLIMIT_NOFILE), _soft_limit(resource.RLIMIT_MEMLOCK))


def _soft_limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _memory_field(name: str, proc: Path) -> int:
    """A line of /proc/meminfo; 0 if it is not there, as on kernels before MemAvailable."""
    for line in (kernel.text(proc / "meminfo") or "").splitlines():
        words = line.split()
        if words[:1] == [f"{name}:"] and len(words) > 1 and kernel.is_number(words[1]):
            return int(words[1]) * 1024
    return 0

"""The only reader of os.environ."""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    """Where converted models go: HIFC_CACHE_DIR, or hifc_ray under XDG_CACHE_HOME (by default ~/.cache)."""
    own = os.environ.get("HIFC_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "hifc_ray"


def shm_dir() -> Path:
    """Where arenas live: HIFC_SHM_DIR, by default /dev/shm."""
    return Path(os.environ.get("HIFC_SHM_DIR") or "/dev/shm")


def ray_address() -> str | None:
    """RAY_ADDRESS, if it is set."""
    return os.environ.get("RAY_ADDRESS") or None


def flash_dirs() -> tuple[Path, ...]:
    """HIFC_FLASH_DIR: this node's flash directories, a colon between them, where nodes have different ones."""
    own = os.environ.get("HIFC_FLASH_DIR", "")
    return tuple(Path(directory).expanduser() for directory in own.split(os.pathsep) if directory)


def ray_memory_share() -> float:
    """The share of memory above which Ray kills workers: RAY_memory_usage_threshold, by default 0.95."""
    try:
        share = float(os.environ.get("RAY_memory_usage_threshold", ""))  # noqa: SIM112 (Ray's own spelling)
    except ValueError:
        return 0.95
    return share if 0 < share <= 1 else 0.95


def disable_ray_auth() -> None:
    """For a Ray of our own on this machine: by default Ray would leave a token in the home directory for good."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")

"""Readings to verdicts: pure functions, each about one thing."""

from __future__ import annotations

from hifc_ray.config import FlashConfig, format_bytes
from hifc_ray.health.gpus import GpuReading
from hifc_ray.health.readings import Limits, MemoryReading
from hifc_ray.health.verdict import Verdict, fail, ok, warn

OLDEST_PYTHON = (3, 11)
TESTED = {"ray": "2.60", "torch": "2.13", "transformers": "5.24"}
OPEN_FILES = 2048  # for worker processes of Ray, connections and libraries
SEGMENTS = 256  # the most in a directory, where their size is chosen for you
MEMORY_SHARE = 0.8  # of what is available; the model and everything else need the rest


def check_python(version: tuple[int, int, int]) -> Verdict:
    text = ".".join(map(str, version))
    if version[:2] < OLDEST_PYTHON:
        return fail("python", f"{text}", "use Python 3.11 or newer")
    return ok("python", text)


def check_package(name: str, version: str | None) -> Verdict:
    """A package against the release that everything was tested with."""
    tested = TESTED[name]
    if version is None:
        return fail(name, "not installed", f"pip install '{name}=={tested}.*'")
    if version.split(".")[:2] != tested.split("."):
        return warn(name, f"{version}, tested with {tested}", f"pip install '{name}=={tested}.*'")
    return ok(name, version)


def check_shared_memory(reading: MemoryReading, arena_bytes: int) -> Verdict:
    """Is there room for the arena? Arenas that are there already count as room, since a new one takes their place."""
    name, room = "shared memory", reading.shm_free_bytes + reading.arenas_bytes
    what = (
        f"{reading.shm_dir} has {format_bytes(reading.shm_total_bytes)}, {format_bytes(room)} of it free or held by "
        f"arenas; the arena takes {format_bytes(arena_bytes)}"
    )
    if room >= arena_bytes:
        return ok(name, what)
    advice = f"set tier.host.arena_bytes to at most {room}"
    if reading.shm_total_bytes < arena_bytes:
        advice += f", or make it larger: mount -o remount,size={arena_bytes * 5 // 4} {reading.shm_dir}"
        advice += " (docker run: --shm-size)"
    else:
        advice += f", or remove what fills {reading.shm_dir}"
    return fail(name, what, advice)


def check_memory(reading: MemoryReading, arena_bytes: int) -> Verdict:
    """Is there memory behind the arena? A memory file system as large as RAM proves nothing."""
    available = reading.available_bytes + reading.arenas_bytes
    what = f"{format_bytes(available)} available; the arena takes {format_bytes(arena_bytes)}"
    advice = f"set tier.host.arena_bytes to at most {int(available * MEMORY_SHARE)}, or free memory"
    if arena_bytes > available:
        return fail("memory", what, advice)
    if arena_bytes > available * MEMORY_SHARE:
        return warn("memory", f"{what}, which leaves little for the model", advice)
    return ok("memory", what)


def check_memory_monitor(reading: MemoryReading, arena_bytes: int, threshold: float) -> Verdict:
    """Ray kills workers above a share of the machine's memory, and an arena in shared memory counts."""
    total, used = reading.total_bytes, reading.total_bytes - reading.available_bytes
    if total <= 0:
        return ok("memory monitor", "how much memory there is, is not known")
    share = (used - min(used, reading.arenas_bytes) + arena_bytes) / total
    what = f"with the arena {share:.0%} of {format_bytes(total)} are used; Ray kills workers at {threshold:.0%}"
    most = max(0, int((threshold - 0.05) * total) - used + min(used, reading.arenas_bytes))
    advice = f"set tier.host.arena_bytes to at most {most}"
    if share >= threshold:
        return fail("memory monitor", what, advice)
    return warn("memory monitor", what, advice) if share >= threshold - 0.05 else ok("memory monitor", what)


def check_open_files(limits: Limits, flash: FlashConfig) -> Verdict:
    """A file for each segment stays open, and some for each worker process of Ray."""
    most = flash.limit_bytes // flash.segment_bytes if flash.segment_bytes else SEGMENTS * len(flash.directories)
    needed = OPEN_FILES + most
    if limits.open_files is None or limits.open_files >= needed:
        return ok("open files", "no limit" if limits.open_files is None else f"limit {limits.open_files}")
    what = f"limit {limits.open_files}, less than {needed} ({most} segments)"
    return warn("open files", what, f"ulimit -n {max(65536, needed)}, before starting Ray")


def check_locked_memory(limits: Limits, gpus: GpuReading, arena_bytes: int) -> Verdict:
    """Pinning the arena for a GPU may be held to the limit of locked memory; without a GPU nothing is pinned."""
    limit = "no limit" if limits.locked_bytes is None else f"limit {format_bytes(limits.locked_bytes)}"
    if not gpus.gpus:
        return ok("locked memory", f"{limit}; nothing is pinned without a GPU")
    if limits.locked_bytes is None or limits.locked_bytes >= arena_bytes:
        return ok("locked memory", limit)
    advice = "ulimit -l unlimited, before starting Ray (docker run: --ulimit memlock=-1)"
    return warn("locked memory", f"{limit}, less than the arena of {format_bytes(arena_bytes)}", advice)


def check_threads(cores: int, threads: int) -> Verdict:
    """`threads` as configured for one engine; 0 is all cores."""
    used = threads or cores
    what = f"{cores} cores, {used} threads of an engine"
    if used > cores:
        return warn("cores", what, f"set engine.threads to at most {cores}")
    return ok("cores", what)


def check_gpus(reading: GpuReading, device: str, gpu_bytes: int) -> Verdict:
    """Is there a GPU if the engine is to use one, with room for its pool?"""
    name = "gpu"
    if reading.problem:
        return warn(name, f"NVML: {reading.problem}", "check the driver with nvidia-smi")
    if not reading.gpus:
        if device.startswith("cuda"):
            return fail(name, f"none, and engine.device is {device}", "set engine.device to cpu")
        return ok(name, f"none; the pool of {format_bytes(gpu_bytes)} is ordinary memory")
    what = "; ".join(f"{gpu.name}, {format_bytes(gpu.free_bytes)} free" for gpu in reading.gpus)
    most = max(gpu.free_bytes for gpu in reading.gpus)
    if device != "cpu" and gpu_bytes > most:
        return fail(name, f"{what}; the pool takes {format_bytes(gpu_bytes)}", f"set engine.gpu_bytes below {most}")
    return ok(name, what)

"""The whole examination of this machine, for one configuration: what `hifc doctor` prints."""

from __future__ import annotations

from hifc_ray import env
from hifc_ray.config import Config
from hifc_ray.health import checks, readings
from hifc_ray.health.directory import read_directory
from hifc_ray.health.gpus import read_gpus
from hifc_ray.health.verdict import Verdict, fail


def examine(config: Config) -> list[Verdict]:
    """Verdicts in the order in which a person would put things right. Changes nothing."""
    limits, gpus, arena_bytes = readings.limits(), read_gpus(), config.tier.host.arena_bytes
    return [
        checks.check_python(readings.python_version()),
        *(checks.check_package(name, readings.package_version(name)) for name in checks.TESTED),
        *_memory(arena_bytes),
        *_flash(config),
        checks.check_open_files(limits),
        checks.check_locked_memory(limits, gpus, arena_bytes),
        checks.check_threads(readings.num_cores(), config.engine.threads),
        checks.check_gpus(gpus, config.engine.device, config.engine.gpu_bytes),
    ]


def _memory(arena_bytes: int) -> list[Verdict]:
    shm_dir = env.shm_dir()
    try:
        reading = readings.memory(shm_dir)
    except OSError as error:
        return [fail("shared memory", f"{shm_dir}: {error.strerror}", "set HIFC_SHM_DIR to a memory file system")]
    return [checks.check_shared_memory(reading, arena_bytes), checks.check_memory(reading, arena_bytes)]


def _flash(config: Config) -> list[Verdict]:
    directory = config.tier.flash.directory
    if directory is None:
        return [checks.check_flash(None, config.tier.flash)]
    try:
        reading = read_directory(directory)
    except OSError as error:
        return [fail("flash", f"{directory}: {error.strerror}", "set tier.flash.directory to one that you may enter")]
    verdict = checks.check_flash(reading, config.tier.flash)
    return [verdict, checks.check_direct_io(reading)] if reading.writable else [verdict]

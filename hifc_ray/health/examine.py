"""The whole examination of this machine, for one configuration: what `hifc doctor` prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hifc_ray import env
from hifc_ray.config import Config, FlashConfig
from hifc_ray.health import checks, device_checks, drive_checks, flash_checks, readings
from hifc_ray.health.devices import DeviceReading, read_device
from hifc_ray.health.directory import DirectoryReading, read_directory
from hifc_ray.health.gpu_checks import check_gpu
from hifc_ray.health.gpus import GpuReading, read_gpus
from hifc_ray.health.instances import instance_type, local_drives
from hifc_ray.health.patience import Patience
from hifc_ray.health.verdict import Verdict, fail


def examine(config: Config) -> list[Verdict]:
    """Verdicts in the order in which a person would put things right. Changes nothing."""
    limits, arena_bytes = readings.limits(), config.tier.host.arena_bytes
    gpus = Patience(read_gpus)() or GpuReading(problem="no answer within 5 s")
    return [
        checks.check_python(readings.python_version()),
        *(checks.check_package(name, readings.package_version(name)) for name in checks.TESTED),
        *_memory(arena_bytes),
        *_flash(config.tier.flash),
        checks.check_open_files(limits, config.tier.flash),
        checks.check_locked_memory(limits, gpus, arena_bytes),
        checks.check_threads(readings.num_cores(), config.engine.threads),
        checks.check_gpus(gpus, config.engine.device, config.engine.gpu_bytes),
        *(verdict for gpu in gpus.gpus for verdict in check_gpu(gpu)),
    ]


def _memory(arena_bytes: int) -> list[Verdict]:
    shm_dir = env.shm_dir()
    try:
        reading = readings.memory(shm_dir)
    except OSError as error:
        return [fail("shared memory", f"{shm_dir}: {error.strerror}", "set HIFC_SHM_DIR to a memory file system")]
    return [
        checks.check_shared_memory(reading, arena_bytes),
        checks.check_memory(reading, arena_bytes),
        checks.check_memory_monitor(reading, arena_bytes, env.ray_memory_share()),
    ]


def _flash(config: FlashConfig) -> list[Verdict]:
    if not config.directories:
        return [flash_checks.check_flash(None, config.limit_bytes, 0, config.read_only)]
    found = {path: _read(path) for path in config.directories}
    directories = [reading for reading in found.values() if isinstance(reading, DirectoryReading)]
    devices = {reading.path: read_device(reading.path) for reading in directories if reading.is_directory}
    verdicts: list[Verdict] = []
    for path, reading in found.items():
        mine = [reading] if isinstance(reading, Verdict) else _directory(reading, directories, config)
        if path in devices:
            mine.extend(_device(devices[path], config))
        verdicts.extend(mine if len(found) == 1 else [_named(verdict, path) for verdict in mine])
    verdicts.extend(verdict for device in devices.values() for verdict in _drives(device))
    instance = instance_type()
    placements = [device.placement for device in devices.values()]
    in_use = device_checks.check_drives_in_use(placements, local_drives(instance), instance)
    # Two directories on one drive say the same of it.
    return list(dict.fromkeys([*verdicts, *([in_use] if in_use is not None else [])]))


def _read(path: Path) -> DirectoryReading | Verdict:
    try:
        return read_directory(path)
    except OSError as error:
        return fail("flash", f"{path}: {error.strerror}", "set tier.flash.directories to one that you may enter")


def _directory(reading: DirectoryReading, all_of_them: list[DirectoryReading], config: FlashConfig) -> list[Verdict]:
    share = config.limit_bytes // len(config.directories)
    room = flash_checks.room_for(reading, all_of_them)
    verdicts = [flash_checks.check_flash(reading, share, room, config.read_only)]
    if reading.is_directory:
        verdicts.append(flash_checks.check_permissions(reading))
    if reading.writable:
        verdicts.append(flash_checks.check_direct_io(reading))
    return verdicts


def _device(reading: DeviceReading, config: FlashConfig) -> list[Verdict]:
    mount = device_checks.check_mount(reading.placement)
    verdicts = [device_checks.check_placement(reading.placement), *([mount] if mount is not None else [])]
    if not config.read_only:
        verdicts.append(device_checks.check_life(reading, config))
    return verdicts


def _drives(reading: DeviceReading) -> list[Verdict]:
    wrong = [verdict for smart in reading.smart for verdict in drive_checks.check_drive(smart)]
    return [*map(drive_checks.check_smart, reading.smart), *wrong, *device_checks.check_writable(reading.placement)]


def _named(verdict: Verdict, directory: Path) -> Verdict:
    return replace(verdict, name=f"{verdict.name} {directory}")

"""All there is to read about the device under one flash directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hifc_ray.health import kernel
from hifc_ray.health.block_devices import Placement, locate, written_bytes
from hifc_ray.health.endurance import bytes_per_day, capacity_bytes
from hifc_ray.health.instances import instance_type, local_drives
from hifc_ray.health.smart import SmartReading, read_smart


@dataclass(frozen=True)
class DeviceReading:
    """Where a directory lies, and what its drives say; one `smart` for each disk, in their order."""

    placement: Placement
    smart: tuple[SmartReading, ...] = ()
    capacity_bytes: int = 0  # 0: unknown
    written_bytes: int | None = None  # to all its disks since they appeared, by the kernel's count
    written_per_day: float | None = None  # the same over the time since the boot

    @property
    def directory(self) -> Path:
        return self.placement.directory


def read_device(
    directory: Path,
    smart: Callable[[str], SmartReading] = read_smart,
    proc: Path = kernel.PROC,
    sys: Path = kernel.SYS,
) -> DeviceReading:
    """Never raises; takes as long as `smart` does for each disk."""
    placement = locate(directory, proc, sys)
    counts = [written_bytes(disk.name, sys) for disk in placement.disks]
    written = sum(count for count in counts if count is not None) if counts and None not in counts else None
    uptime = kernel.uptime_s(proc)
    return DeviceReading(
        placement,
        tuple(smart(disk.name) for disk in placement.disks),
        capacity_bytes(placement, local_drives(instance_type(sys)), _file_system_bytes(directory)),
        written,
        None if written is None or uptime is None else bytes_per_day(written, uptime),
    )


def _file_system_bytes(directory: Path) -> int:
    try:
        stat = os.statvfs(directory)
    except OSError:
        return 0
    return stat.f_blocks * stat.f_frsize

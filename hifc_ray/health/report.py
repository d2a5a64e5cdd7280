"""What one look at the machine's health found: readings, verdicts that can be acted on, numbers for metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hifc_ray.health.devices import DeviceReading
from hifc_ray.health.gpus import GpuReading
from hifc_ray.health.verdict import DeviceVerdict, GpuVerdict, Level, Verdict


@dataclass(frozen=True)
class DeviceHealth:
    """Of the device under one flash directory."""

    path: Path
    reading: DeviceReading
    verdicts: tuple[DeviceVerdict, ...] = ()  # of what is wrong only
    written_per_day: float | None = None  # bytes
    projected_life_days: float | None = None

    @property
    def read_only(self) -> bool:
        """Write nothing more to it."""
        return any(verdict.read_only for verdict in self.verdicts)

    @property
    def drain(self) -> bool:
        """Move the blocks worth keeping to other devices."""
        return any(verdict.drain for verdict in self.verdicts)

    def metrics(self) -> dict[str, float]:
        """Of its drives together; what is unknown has no entry."""
        smart = self.reading.smart
        numbers = {
            "health_available_spare_percent": _least(drive.available_spare for drive in smart),
            "health_endurance_used_percent": _most(drive.percentage_used for drive in smart),
            "health_media_errors_total": _sum(drive.media_errors for drive in smart),
            "health_temperature_celsius": _most(drive.temperature_c for drive in smart),
            "health_drive_written_bytes": _sum(drive.written_bytes for drive in smart),
            "health_written_bytes_per_day": self.written_per_day,
            "health_projected_life_days": self.projected_life_days,
            "health_capacity_bytes": self.reading.capacity_bytes or None,
            "health_read_only_devices": int(self.read_only),
            "health_unknown_drives": sum(not drive.known for drive in smart),
        }
        return {name: number for name, number in numbers.items() if number is not None}


@dataclass(frozen=True)
class HealthReport:
    """All of one look; `new` and `gone` are events for the log."""

    devices: tuple[DeviceHealth, ...] = ()
    gpus: GpuReading = field(default_factory=GpuReading)
    gpu_verdicts: tuple[GpuVerdict, ...] = ()
    new: tuple[Verdict, ...] = ()
    gone: tuple[Verdict, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Everything that is wrong, each thing once, however many directories lie on a drive."""
        about_devices = (verdict for device in self.devices for verdict in device.verdicts)
        return tuple(dict.fromkeys([*about_devices, *self.gpu_verdicts]))

    @property
    def restart_gpus(self) -> tuple[int, ...]:
        """GPUs whose actors are to be restarted soon."""
        return tuple(sorted({verdict.gpu for verdict in self.gpu_verdicts if verdict.restart}))

    def metrics(self) -> dict[str, float]:
        """Of the whole node: the worst of its devices, or their sum; `DeviceHealth.metrics` has them one by one."""
        levels = [verdict.level for verdict in self.verdicts]
        numbers: dict[str, float] = {
            "health_warnings_count": levels.count(Level.WARN),
            "health_failures_count": levels.count(Level.FAIL),
        }
        own = [device.metrics() for device in self.devices]
        for name in dict.fromkeys(name for metrics in own for name in metrics):
            numbers[name] = _TOGETHER.get(name, sum)(metrics[name] for metrics in own if name in metrics)
        if self.gpus.gpus:
            numbers.update(self._gpu_metrics())
        return numbers

    def _gpu_metrics(self) -> dict[str, float]:
        memories = [gpu.memory for gpu in self.gpus.gpus]
        numbers = {
            "health_gpu_retired_pages": _sum(
                pages for memory in memories for pages in (memory.retired_single_bit, memory.retired_double_bit)
            ),
            "health_gpu_remapped_rows": _sum(
                rows for memory in memories for rows in (memory.remapped_corrected, memory.remapped_uncorrected)
            ),
            "health_gpu_ecc_corrected_total": _sum(memory.ecc_corrected for memory in memories),
            "health_gpu_ecc_uncorrected_total": _sum(memory.ecc_uncorrected for memory in memories),
            "health_gpu_restarts_wanted": len(self.restart_gpus),
        }
        return {name: number for name, number in numbers.items() if number is not None}


_TOGETHER = {
    "health_available_spare_percent": min,
    "health_endurance_used_percent": max,
    "health_temperature_celsius": max,
    "health_projected_life_days": min,
}


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _least(values: Iterable[float | None]) -> float | None:
    return min(_known(values), default=None)


def _most(values: Iterable[float | None]) -> float | None:
    return max(_known(values), default=None)


def _sum(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return sum(known) if known else None

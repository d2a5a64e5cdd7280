"""Looks at the devices and GPUs again and again, and says what has changed since the last look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hifc_ray.clock import Clock, MonotonicClock
from hifc_ray.health.device_checks import check_present, check_writable, life_days
from hifc_ray.health.devices import DeviceReading, read_device
from hifc_ray.health.drive_checks import check_drive, is_hot
from hifc_ray.health.endurance import bytes_per_day
from hifc_ray.health.gpu_checks import check_gpu
from hifc_ray.health.gpus import GpuReading, read_gpus
from hifc_ray.health.patience import Patience
from hifc_ray.health.report import DeviceHealth, HealthReport
from hifc_ray.health.smart import SmartReading
from hifc_ray.health.verdict import DeviceVerdict, GpuVerdict, Level, Verdict

LEAST_SPAN_S = 3600.0  # of writes that a rate is taken from; before that, it is the rate since the boot


@dataclass(frozen=True)
class _Drive:
    """What is remembered of one drive."""

    serial: str | None
    first: SmartReading  # what has risen is measured from here
    last: SmartReading  # what the drive says no longer is as it was
    hot: bool = False


@dataclass
class _Memory:
    """What is remembered of one directory's device."""

    since_s: float
    first_written_bytes: int | None
    reading: DeviceReading
    drives: dict[str, _Drive] = field(default_factory=dict)


class HealthWatch:
    """One set of verdicts for each flash directory, and one for the GPUs. For one thread; `look` never raises.

    A look takes as long as its readers; those used by default give up after 5 s for each drive and for the GPUs.
    What is not known any more (a tool that hangs, a log that is hidden) is taken to be as it was: it never heals.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        *,
        drive_writes_per_day: float = 1.0,
        clock: Clock | None = None,
        read_device: Callable[[Path], DeviceReading] = read_device,
        read_gpus: Callable[[], GpuReading] = read_gpus,
    ) -> None:
        self._directories = tuple(directories)
        self._drive_writes_per_day = drive_writes_per_day
        self._clock = clock if clock is not None else MonotonicClock()
        self._read_device = read_device
        self._read_gpus = Patience(read_gpus)
        self._memories: dict[Path, _Memory] = {}
        self._gpus = GpuReading()
        self._before: dict[tuple[str, Level], Verdict] = {}

    def look(self) -> HealthReport:
        """Readings, verdicts, and which of them are new or gone since the last look."""
        devices = tuple(self._look_at(directory) for directory in self._directories)
        gpus, about_gpus = self._look_at_gpus()
        verdicts = [*(verdict for device in devices for verdict in device.verdicts), *about_gpus]
        now: dict[tuple[str, Level], Verdict] = {(verdict.name, verdict.level): verdict for verdict in verdicts}
        before, self._before = self._before, now
        new = tuple(verdict for key, verdict in now.items() if key not in before)
        gone = tuple(verdict for key, verdict in before.items() if key not in now)
        return HealthReport(devices, gpus, about_gpus, new, gone)

    def _look_at(self, directory: Path) -> DeviceHealth:
        reading, now_s = self._read_device(directory), self._clock.now()
        memory = self._memories.setdefault(directory, _Memory(now_s, reading.written_bytes, reading))
        verdicts: list[DeviceVerdict] = check_present(reading.placement, memory.reading.placement)
        if verdicts:
            reading = memory.reading
        verdicts.extend(check_writable(reading.placement))
        for number, smart in enumerate(reading.smart):
            drive = _remember(memory.drives.get(smart.device), reading.placement.disks[number].serial, smart)
            memory.drives[smart.device] = drive
            verdicts.extend(check_drive(drive.last, drive.first, drive.hot))
        reading = replace(reading, smart=tuple(memory.drives[smart.device].last for smart in reading.smart))
        memory.reading = reading
        rate = _written_per_day(reading, memory, now_s)
        life = None if rate is None else life_days(reading, self._drive_writes_per_day, rate)
        return DeviceHealth(directory, reading, tuple(verdicts), rate, life)

    def _look_at_gpus(self) -> tuple[GpuReading, tuple[GpuVerdict, ...]]:
        reading = self._read_gpus()
        if reading is None:
            reading = replace(self._gpus, problem="NVML gives no answer")
        elif reading.problem and self._gpus.gpus:
            reading = replace(self._gpus, problem=reading.problem)
        self._gpus = reading
        verdicts = [verdict for gpu in reading.gpus for verdict in check_gpu(gpu)]
        if reading.problem:
            verdicts.append(GpuVerdict("gpus", Level.WARN, reading.problem, "check the driver with nvidia-smi", gpu=-1))
        return reading, tuple(verdicts)


def _remember(drive: _Drive | None, serial: str | None, smart: SmartReading) -> _Drive:
    """With what was known of the same drive; a drive that was replaced, or counts from 0 again, begins anew."""
    if drive is None or drive.serial != serial:
        return _Drive(serial, smart, smart, is_hot(smart, was_hot=False))
    last = smart.or_else(drive.last)
    started, counted = drive.first.media_errors, last.media_errors
    anew = counted is not None and (started is None or counted < started)
    return _Drive(serial, last if anew else drive.first, last, is_hot(last, drive.hot))


def _written_per_day(reading: DeviceReading, memory: _Memory, now_s: float) -> float | None:
    """Over the time of this watch, once it is long enough to mean something."""
    written, first = reading.written_bytes, memory.first_written_bytes
    if written is None:
        return None
    if first is None or written < first:  # the kernel counts from 0 for a device that was attached again
        memory.since_s, memory.first_written_bytes = now_s, written
        return reading.written_per_day
    span_s = now_s - memory.since_s
    return bytes_per_day(written - first, span_s) if span_s >= LEAST_SPAN_S else reading.written_per_day

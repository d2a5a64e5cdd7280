"""NVMe SMART (log page 02h) as nvme-cli prints it, or a temperature from the kernel where there is no more to be had.

The Python binding of libnvme (1.16) does not read log pages, so the tool is asked. None is unknown, never healthy:
drives in clouds may hide the log or fill it with zeros.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntFlag
from pathlib import Path
from typing import Any

from hifc_ray.health import kernel
from hifc_ray.health.command import Commands, Outcome

DATA_UNIT_BYTES = 512_000  # 1000 units of 512 bytes
_KELVIN = 273
_MOST = 2**128 - 1  # counters have 128 bits
# Names of nvme-cli in JSON, and those of its text.
_NAMES = {
    "available_spare": ("avail_spare", "available_spare"),
    "spare_threshold": ("spare_thresh", "available_spare_threshold"),
    "percentage_used": ("percent_used", "percentage_used"),
    "media_errors": ("media_errors",),
    "units_written": ("data_units_written",),
    "units_read": ("data_units_read",),
    "critical_warning": ("critical_warning",),
    "temperature": ("temperature",),
}
# By kernel: before 5.5 in a folder of its own, with multipath below the subsystem.
_SENSORS = (
    "hwmon*/temp1_input",
    "hwmon/hwmon*/temp1_input",
    "device/hwmon/hwmon*/temp1_input",
    "nvme*/hwmon*/temp1_input",
)
_run = Commands()


class CriticalWarning(IntFlag):
    """Bits of the byte Critical Warning."""

    SPARE = 1
    TEMPERATURE = 2
    RELIABILITY = 4
    READ_ONLY = 8
    BACKUP = 16
    PERSISTENT_MEMORY = 32


@dataclass(frozen=True)
class SmartReading:
    """What one drive says about itself; `problem` is why it says nothing."""

    device: str  # nvme1n1
    percentage_used: int | None = None  # of its rated endurance; may exceed 100
    available_spare: int | None = None  # percent
    spare_threshold: int | None = None
    media_errors: int | None = None
    written_bytes: int | None = None
    read_bytes: int | None = None
    critical_warning: CriticalWarning | None = None
    temperature_c: float | None = None
    problem: str = ""

    @property
    def known(self) -> bool:
        """Does it say anything about wear or faults?"""
        return any(getattr(self, name) is not None for name in _LASTING)

    def or_else(self, earlier: SmartReading | None) -> SmartReading:
        """With what an earlier reading of the same drive knew about wear and faults, where this one knows nothing."""
        if earlier is None or earlier.device != self.device:
            return self
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values.update({name: getattr(earlier, name) for name in _LASTING if values[name] is None})
        return SmartReading(**values)


# What does not heal by being out of sight.
_LASTING = (
    "percentage_used",
    "available_spare",
    "spare_threshold",
    "media_errors",
    "written_bytes",
    "critical_warning",
)


def read_smart(
    device: str, run: Callable[[Sequence[str]], Outcome] = _run, sys: Path = kernel.SYS, dev: Path = Path("/dev")
) -> SmartReading:
    """Of one disk by its name. Never raises, and never waits longer than `run` does."""
    if not device.startswith("nvme"):
        return SmartReading(device, temperature_c=_temperature(device, sys), problem="not an NVMe drive")
    outcome = run(["nvme", "smart-log", "-o", "json", str(dev / device)])
    reading = parse_smart_log(device, outcome.output)
    if reading.temperature_c is not None and reading.known:
        return reading
    problem = outcome.problem or reading.problem
    temperature = reading.temperature_c if reading.temperature_c is not None else _temperature(device, sys)
    return SmartReading(device, **{**_values(reading), "temperature_c": temperature, "problem": problem})


def parse_smart_log(device: str, output: str) -> SmartReading:
    """From the JSON of `nvme smart-log`, of any version; whatever is missing or makes no sense is None."""
    found = _object(output)
    if found is None:
        return SmartReading(device, problem="no SMART log in what nvme printed")
    log = {field: _first(found, names) for field, names in _NAMES.items()}
    spare, threshold = _percent(log["available_spare"]), _percent(log["spare_threshold"])
    written, read = log["units_written"], log["units_read"]
    warning = _warning(log["critical_warning"])
    if not written and not read:  # a drive with a mounted file system has read something, so these are not its counts
        written = read = None
    if not spare and not threshold and not (warning or 0) & CriticalWarning.SPARE:
        spare = threshold = None
    if written is None and spare is None and not warning:
        return SmartReading(device, temperature_c=_celsius(log["temperature"]), problem="the drive hides its SMART log")
    return SmartReading(
        device,
        percentage_used=None if written is None else _percent(log["percentage_used"]),
        available_spare=spare,
        spare_threshold=threshold,
        media_errors=log["media_errors"],
        written_bytes=None if written is None else written * DATA_UNIT_BYTES,
        read_bytes=None if read is None else read * DATA_UNIT_BYTES,
        critical_warning=warning,
        temperature_c=_celsius(log["temperature"]),
    )


def _values(reading: SmartReading) -> dict[str, Any]:
    return {field.name: getattr(reading, field.name) for field in fields(reading) if field.name != "device"}


def _object(output: str) -> Mapping[str, Any] | None:
    """The mapping with the log in it; tools and plugins wrap it in a name, or print a line before it."""
    try:
        data = json.loads(output[output.index("{") :])
    except (ValueError, RecursionError):
        return None
    candidates = [data, *data.values()]
    logs = [
        one for one in candidates if isinstance(one, Mapping) and _first(one, _NAMES["available_spare"]) is not None
    ]
    return logs[0] if logs else None


def _first(log: Mapping[str, Any], names: Sequence[str]) -> int | None:
    return next((found for found in (_count(log.get(name)) for name in names) if found is not None), None)


def _count(value: object) -> int | None:
    """A counter: 3, 3.0, "3", "3%", "3,141", {"value": 3} or {"hi": 0, "lo": 3}; None for anything else."""
    if isinstance(value, Mapping):
        low, high = value.get("lo"), value.get("hi", 0)
        if isinstance(low, int) and isinstance(high, int):
            return _count((high << 64) + low)
        value = value.get("value")
    if isinstance(value, str):
        words = value.replace(",", "").split()
        digits = words[0].rstrip("%") if words else ""
        value = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 40 else None
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= _MOST else None


def _percent(value: int | None) -> int | None:
    return value if value is not None and value <= 255 else None


def _warning(value: int | None) -> CriticalWarning | None:
    return CriticalWarning(value) if value is not None and value <= 255 else None


def _celsius(kelvin: int | None) -> float | None:
    """nvme-cli gives kelvin; below 200 or above 500 it is no temperature of a drive."""
    return float(kelvin - _KELVIN) if kelvin is not None and 200 <= kelvin <= 500 else None


def _temperature(device: str, sys: Path) -> float | None:
    """The first sensor of the kernel's hwmon, which needs no rights; None without one."""
    below = sys / "class/block" / device / "device"
    for pattern in _SENSORS:
        for path in sorted(below.glob(pattern)):
            thousandths = kernel.number(path)
            if thousandths and thousandths < 250_000:
                return thousandths / 1000
    return None

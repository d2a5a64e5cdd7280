"""What a drive is rated to bear, and how long it lasts at the rate at which it is written to: arithmetic only.

AWS publishes no drive writes per day (DWPD) for its instance stores. Unless `tier.flash.drive_writes_per_day` says
otherwise, 1 for 5 years is assumed: the class of read-intensive datacenter TLC, the lower of the two that such drives
are sold in (mixed use is 3).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from hifc_ray.config import FlashConfig
from hifc_ray.health.block_devices import Placement
from hifc_ray.health.instances import LocalDrives

WARRANTY_YEARS = 5.0
DAY_S = 86_400.0


def capacity_bytes(placement: Placement, drives: LocalDrives | None = None, file_system_bytes: int = 0) -> int:
    """Of the drives under a directory, which one drive write per day writes; 0 if nothing is known.

    As the kernel says; else from the instance type, if its drive is hidden; else the file system's size, which is less.
    """
    if placement.size_bytes:
        return placement.size_bytes
    if drives is not None and any(disk.instance_store for disk in placement.disks):
        return drives.bytes_each * len(placement.disks)
    return max(0, file_system_bytes)


def budget_bytes_per_day(config: FlashConfig, capacity: int) -> int:
    """What one device may be written a day; 0 is no budget, because none is wanted or no capacity is known."""
    if config.write_bytes_per_day:
        return config.write_bytes_per_day
    return math.ceil(config.drive_writes_per_day * max(0, capacity))  # a little is not none


def budgets_bytes_per_day(
    config: FlashConfig, placements: Sequence[Placement], capacities: Sequence[int]
) -> tuple[int, ...]:
    """`budget_bytes_per_day` for each directory; those that lie on the same disks share their budget evenly."""
    on = [frozenset(disk.name for disk in placement.disks) or placement.directory for placement in placements]
    sharing = Counter(on)
    return tuple(
        math.ceil(budget_bytes_per_day(config, capacity) / sharing[disks])
        for disks, capacity in zip(on, capacities, strict=True)
    )


def projected_life_days(
    written_bytes_per_day: float,
    capacity: int,
    drive_writes_per_day: float,
    percentage_used: int | None = None,
    warranty_years: float = WARRANTY_YEARS,
) -> float | None:
    """Days until the rated endurance (capacity × DWPD × 365 × years) is used up at this rate of writes.

    From what the drive says is used of it already, else as if it were new. None where there is no answer: nothing is
    written, or no endurance is known.
    """
    rated = capacity * drive_writes_per_day * 365 * warranty_years
    if written_bytes_per_day <= 0 or rated <= 0:
        return None
    return rated * max(0.0, 1 - (percentage_used or 0) / 100) / written_bytes_per_day


def bytes_per_day(written_bytes: int, seconds: float) -> float:
    """A rate of writes, 0 over no time."""
    return written_bytes * DAY_S / seconds if seconds > 0 else 0.0

"""Readings of a flash directory's device to verdicts: pure functions, each about one thing."""

from __future__ import annotations

from hifc_ray.config import FlashConfig, format_bytes
from hifc_ray.health.block_devices import BlockDevice, Placement
from hifc_ray.health.devices import DeviceReading
from hifc_ray.health.drive_checks import MOVE
from hifc_ray.health.endurance import projected_life_days
from hifc_ray.health.instances import LocalDrives
from hifc_ray.health.verdict import DeviceVerdict, Level, Verdict, ok, warn

LOCAL = ("ext4", "xfs")
SHORT_LIFE_DAYS = 365.0


def check_placement(placement: Placement) -> Verdict:
    """Does the directory have a local drive to itself?"""
    name = "device"
    if placement.mount is None:
        return warn(name, f"{placement.directory}: its file system is not known", "use a local NVMe drive")
    if not placement.disks:
        what = f"{placement.directory} is on {placement.mount.file_system}, with no drive of its own"
        return warn(name, what, "put --flash-dir on an ext4 or xfs file system on a local NVMe drive")
    what, advice = ", ".join([*map(_describe, placement.disks), *_through(placement)]), []
    if placement.shares_root:
        what += ", shared with the root volume"
        advice.append("give it an NVMe drive of its own: what else uses this one delays it")
    if "loop" in placement.layers:
        advice.append("a file as a drive writes everything twice: use a drive")
    if any(disk.network for disk in placement.disks):
        advice.append("EBS is reached over the network: use instance store")
    if any(disk.rotational for disk in placement.disks) and not _virtual(placement.disks):
        advice.append("a spinning disk is too slow: use NVMe")
    if len(placement.disks) > 1:
        advice.append(f"better one file system and one --flash-dir for each of the {len(placement.disks)} drives")
    return warn(name, what, "; ".join(advice)) if advice else ok(name, what)


def check_mount(placement: Placement) -> Verdict | None:
    """Is it a file system, with options, that suits a log of large direct writes?"""
    mount = placement.mount
    if mount is None:
        return None
    shown = sorted(mount.options & {"noatime", "relatime", "strictatime", "discard", "data=journal", "ro", "sync"})
    what, advice = ",".join([mount.file_system, *shown]), []
    if mount.file_system not in LOCAL:
        return warn("file system", what, "use ext4 or xfs")
    if "noatime" not in mount.options:
        advice.append("noatime: reads write no times")
    if "discard" in mount.options:
        advice.append("nodiscard and a weekly fstrim: each delete waits for the drive")
    if "data=journal" in mount.options:
        advice.append("data=ordered: all data is written twice")
    if "sync" in mount.options:
        advice.append("async: every write waits for the drive")
    return warn("file system", what, f"mount with {'; '.join(advice)}") if advice else ok("file system", what)


def check_drives_in_use(
    placements: list[Placement], drives: LocalDrives | None, instance: str | None
) -> Verdict | None:
    """Are all local drives of this instance type used? None where it is not known to have any."""
    if drives is None:
        return None
    used = {disk.name for placement in placements for disk in placement.disks if disk.instance_store}
    what = f"{instance} has {drives.num} drives of {format_bytes(drives.bytes_each)}, {len(used)} of them for flash"
    if len(used) >= drives.num:
        return ok("instance", what)
    return warn("instance", what, "a --flash-dir on each of the others too: their speeds and endurances add up")


def check_life(reading: DeviceReading, config: FlashConfig) -> Verdict:
    """Rated endurance against the writes since the boot (of everything on the device, not of this cache alone)."""
    name, rated = "endurance", reading.capacity_bytes * config.drive_writes_per_day
    if not rated:
        return ok(name, "no budget (drive_writes_per_day is 0)" if reading.capacity_bytes else "no capacity known")
    what = f"rated {format_bytes(rated)} a day ({config.drive_writes_per_day:g} × its capacity)"
    if config.write_bytes_per_day:
        what += f", limited to {format_bytes(config.write_bytes_per_day)}"
    if reading.written_per_day is None:
        return ok(name, f"{what}; what is written is not known")
    days = life_days(reading, config.drive_writes_per_day, reading.written_per_day)
    what += f", written {format_bytes(reading.written_per_day)} a day since the boot"
    counts = [smart.written_bytes for smart in reading.smart if smart.written_bytes is not None]
    if counts:
        what += f", {format_bytes(sum(counts))} ever"
    if days is None:
        return ok(name, what)
    what += f": lasts {_format_days(days)}"
    if days < SHORT_LIFE_DAYS or reading.written_per_day > rated:
        return warn(name, what, "set tier.flash.write_bytes_per_day lower, or find what else writes to it")
    return ok(name, what)


def life_days(reading: DeviceReading, drive_writes_per_day: float, written_per_day: float) -> float | None:
    """`projected_life_days` of the device, from the most used of its drives."""
    used = [smart.percentage_used for smart in reading.smart if smart.percentage_used is not None]
    return projected_life_days(
        written_per_day, reading.capacity_bytes, drive_writes_per_day, max(used) if used else None
    )


def _format_days(days: float) -> str:
    return f"{days:.0f} days" if days < 730 else f"{days / 365:.0f} years" if days < 36500 else "over 100 years"


def check_present(placement: Placement, before: Placement) -> list[DeviceVerdict]:
    """Did the drives under a directory disappear?"""
    if placement.disks or not before.disks:
        return []
    what = f"{before.name} under {before.directory} is no longer there"
    return [DeviceVerdict(f"{before.name} presence", Level.FAIL, what, "see dmesg; " + MOVE, read_only=True)]


def check_writable(placement: Placement) -> list[DeviceVerdict]:
    """The kernel mounts a file system read-only when its device fails under it."""
    if placement.mount is None or not placement.mount.read_only:
        return []
    what = f"{placement.mount.point} is mounted read-only"
    advice = "see dmesg: if the drive failed, " + MOVE
    return [DeviceVerdict(f"{placement.name} mount", Level.FAIL, what, advice, read_only=True, drain=True)]


def _describe(disk: BlockDevice) -> str:
    size = "" if disk.size_bytes is None else f" {format_bytes(disk.size_bytes)}"
    kind = "instance store" if disk.instance_store else "EBS" if disk.network else disk.model
    return f"{disk.name}{size}" + (f" ({kind})" if kind else "")


def _through(placement: Placement) -> list[str]:
    return [f"through {', '.join(placement.layers)}"] if placement.layers else []


def _virtual(disks: tuple[BlockDevice, ...]) -> bool:
    """Disks of virtual machines often say that they spin."""
    return all(disk.name.startswith(("vd", "xvd")) for disk in disks)

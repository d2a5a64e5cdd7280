"""Readings of a flash directory to verdicts: pure functions, each about one thing."""

from __future__ import annotations

import stat

from hifc_ray.config import format_bytes
from hifc_ray.health.directory import DirectoryReading
from hifc_ray.health.verdict import Verdict, fail, ok, warn

_PRIVATE = 0o700


def check_flash(reading: DirectoryReading | None, wanted_bytes: int, room_bytes: int, read_only: bool) -> Verdict:
    """Does the directory exist, may it be used, is there room for its share of the limit?"""
    name = "flash"
    if reading is None:
        return warn(name, "no directory, so blocks that leave host memory are lost", "set tier.flash.directories")
    path = reading.path
    if not reading.exists:
        return fail(name, f"{path} does not exist", f"mkdir -p -m 700 {path}")
    if not reading.is_directory:
        return fail(name, f"{path} is not a directory", "set tier.flash.directories to one of its own")
    if read_only and reading.readable:
        return ok(name, f"{path} is served and not written to (tier.flash.read_only)")
    if not reading.writable:
        advice = f"chown $USER {path}, or choose another"
        if reading.readable and not read_only:
            advice += "; tier.flash.read_only serves what is there"
        return fail(name, f"{path} cannot be {'read' if read_only else 'written to'}", advice)
    what = f"{path} has room for {format_bytes(room_bytes)}; its share of the limit is {format_bytes(wanted_bytes)}"
    if room_bytes < wanted_bytes:
        return warn(name, f"{what}: stores are refused once it is full", "set tier.flash.limit_bytes lower")
    return ok(name, what)


def check_direct_io(reading: DirectoryReading) -> Verdict:
    """Does its file system take O_DIRECT?"""
    if reading.direct:
        return ok("direct I/O", f"{reading.path} takes O_DIRECT")
    what = f"{reading.path} refuses O_DIRECT, so blocks on flash go through the page cache and take memory twice"
    return warn("direct I/O", what, "use a directory on a local ext4 or xfs file system")


def check_permissions(reading: DirectoryReading) -> Verdict:
    """What people said is in the blocks: nobody else should read them."""
    if reading.mode & ~_PRIVATE & 0o777 == 0:
        return ok("permissions", f"{reading.path} is {reading.mode & 0o777:03o}")
    what = f"{reading.path} is {reading.mode & 0o777:03o}: others may look into it"
    if reading.mode & stat.S_ISVTX:  # /tmp and its like belong to everybody
        return warn("permissions", what, f"a directory of its own: mkdir -m 700 {reading.path / 'hifc'}")
    return warn("permissions", what, f"chmod 700 {reading.path}")


def room_for(reading: DirectoryReading, readings: list[DirectoryReading]) -> int:
    """What one directory may grow to; directories on one file system share what is free there evenly."""
    sharing = sum(other.device == reading.device for other in readings if other.is_directory)
    return reading.used_bytes + reading.free_bytes // max(1, sharing)

"""The NVMe drives of AWS instance types, for where a drive's size cannot be read, or not all drives are in use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hifc_ray.health import kernel

_GB = 10**9


@dataclass(frozen=True)
class LocalDrives:
    """Instance store of one instance type."""

    num: int
    bytes_each: int


def _drives(num: int, gb_each: int) -> LocalDrives:
    return LocalDrives(num, gb_each * _GB)


# Bytes in all as Karpenter's list of instance types has them (2026-08). Types of which it is not known into how many
# drives they are cut (g7e, p6) are left out.
LOCAL_DRIVES = {
    "i3en.large": _drives(1, 1250),
    "i3en.xlarge": _drives(1, 2500),
    "i3en.2xlarge": _drives(2, 2500),
    "i3en.3xlarge": _drives(1, 7500),
    "i3en.6xlarge": _drives(2, 7500),
    "i3en.12xlarge": _drives(4, 7500),
    "i3en.24xlarge": _drives(8, 7500),
    "i3en.metal": _drives(8, 7500),
    "g4dn.xlarge": _drives(1, 125),
    "g4dn.2xlarge": _drives(1, 225),
    "g4dn.4xlarge": _drives(1, 225),
    "g4dn.8xlarge": _drives(1, 900),
    "g4dn.12xlarge": _drives(1, 900),
    "g4dn.16xlarge": _drives(1, 900),
    "g4dn.metal": _drives(2, 900),
    "g5.xlarge": _drives(1, 250),
    "g5.2xlarge": _drives(1, 450),
    "g5.4xlarge": _drives(1, 600),
    "g5.8xlarge": _drives(1, 900),
    "g5.16xlarge": _drives(1, 1900),
    "g5.12xlarge": _drives(1, 3800),
    "g5.24xlarge": _drives(1, 3800),
    "g5.48xlarge": _drives(2, 3800),
    "g6.xlarge": _drives(1, 250),
    "g6.2xlarge": _drives(1, 450),
    "g6.4xlarge": _drives(1, 600),
    "g6.8xlarge": _drives(2, 450),
    "g6.16xlarge": _drives(2, 940),
    "g6.12xlarge": _drives(4, 940),
    "g6.24xlarge": _drives(4, 940),
    "g6.48xlarge": _drives(8, 940),
    "g6e.xlarge": _drives(1, 250),
    "g6e.2xlarge": _drives(1, 450),
    "g6e.4xlarge": _drives(1, 600),
    "g6e.8xlarge": _drives(1, 900),
    "g6e.16xlarge": _drives(1, 1900),
    "g6e.12xlarge": _drives(2, 1900),
    "g6e.24xlarge": _drives(2, 1900),
    "g6e.48xlarge": _drives(4, 1900),
    "p4d.24xlarge": _drives(8, 1000),
    "p4de.24xlarge": _drives(8, 1000),
    "p5.4xlarge": _drives(1, 3840),
    "p5.48xlarge": _drives(8, 3840),
    "p5e.48xlarge": _drives(8, 3840),
    "p5en.48xlarge": _drives(8, 3840),
}


def instance_type(sys: Path = kernel.SYS) -> str | None:
    """i3en.3xlarge; None on other machines, and where the firmware's tables are hidden (some containers)."""
    dmi = sys / "devices/virtual/dmi/id"
    if kernel.text(dmi / "sys_vendor") != "Amazon EC2":
        return None
    return kernel.text(dmi / "product_name")


def local_drives(instance: str | None) -> LocalDrives | None:
    """None for types without local drives, and for those that the table does not know."""
    return LOCAL_DRIVES.get(instance) if instance is not None else None

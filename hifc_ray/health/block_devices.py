"""From a directory to the disks under it, through partitions, LVM, encryption and RAID, as /sys describes them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hifc_ray.health import kernel
from hifc_ray.health.mounts import Mount, mount_of

SECTOR_BYTES = 512  # of every figure in /sys/block, whatever the device's own sectors
INSTANCE_STORE = "Amazon EC2 NVMe Instance Storage"
EBS = "Amazon Elastic Block Store"
_MOST_LAYERS = 8
# In a container / is an overlay; these are then files of the host's root volume.
_ON_THE_ROOT_VOLUME = ("/", "/etc/hosts", "/etc/resolv.conf")


@dataclass(frozen=True)
class BlockDevice:
    """One whole disk; None is what the kernel does not say."""

    name: str  # nvme1n1
    model: str | None = None
    serial: str | None = None
    size_bytes: int | None = None
    rotational: bool | None = None

    @property
    def path(self) -> str:
        return f"/dev/{self.name}"

    @property
    def instance_store(self) -> bool:
        return self.model == INSTANCE_STORE

    @property
    def network(self) -> bool:
        """A volume over the network: writes cost bandwidth and money rather than wear."""
        return self.model == EBS


@dataclass(frozen=True)
class Placement:
    """Where a directory lies. No disks: its file system has none, or the kernel does not show them."""

    directory: Path
    mount: Mount | None = None
    disks: tuple[BlockDevice, ...] = ()
    layers: tuple[str, ...] = ()  # between the file system and the disks: "raid0", "LVM", "crypt", "loop"
    size_bytes: int | None = None  # of the device that the file system lies on, or of the disk that it is a part of
    shares_root: bool | None = None  # a disk of it also holds the root file system; None: unknown

    @property
    def name(self) -> str:
        """The names of its disks, or the directory."""
        return "+".join(disk.name for disk in self.disks) or str(self.directory)


def locate(directory: Path, proc: Path = kernel.PROC, sys: Path = kernel.SYS) -> Placement:
    """The mount and the disks under `directory`. Never raises."""
    mount = mount_of(directory, proc)
    block = None if mount is None else _block(mount, sys)
    if block is None:
        return Placement(directory, mount)
    disks, layers = _descend(block, sys)
    roots = _root_disks(proc, sys)
    shares_root = bool(roots & {disk.name for disk in disks}) if roots else None
    return Placement(directory, mount, disks, layers, _capacity(block, disks), shares_root)


def written_bytes(disk: str, sys: Path = kernel.SYS) -> int | None:
    """Bytes written to a disk since it appeared (sectors written, /sys/block/<disk>/stat)."""
    words = (kernel.text(sys / "class/block" / disk / "stat") or "").split()
    return int(words[6]) * SECTOR_BYTES if len(words) > 6 and kernel.is_number(words[6]) else None


def _block(mount: Mount, sys: Path) -> Path | None:
    """The directory of /sys of the device that is mounted."""
    links = [sys / "dev/block" / mount.device]
    if mount.device.startswith("0:") and mount.source.startswith("/dev/"):
        # btrfs shows a number of its own; its source is (one of) its devices.
        links.append(sys / "class/block" / Path(os.path.realpath(mount.source)).name)
    return next((Path(os.path.realpath(link)) for link in links if link.exists()), None)


def _descend(block: Path, sys: Path) -> tuple[tuple[BlockDevice, ...], tuple[str, ...]]:
    """The disks at the bottom, each once, and the layers passed on the way."""
    disks: dict[str, BlockDevice] = {}
    layers: dict[str, None] = {}
    todo = [(block, 0)]
    while todo:
        here, depth = todo.pop()
        if (here / "partition").exists():
            here = here.parent
        layer = _layer(here)
        if layer is not None:
            layers[layer] = None
        below = _slaves(here, sys) if depth < _MOST_LAYERS else []
        if below:
            todo.extend((slave, depth + 1) for slave in below)
        else:
            disks[here.name] = _disk(here)
    return tuple(disks[name] for name in sorted(disks)), tuple(layers)


def _slaves(block: Path, sys: Path) -> list[Path]:
    try:
        names = sorted(entry.name for entry in (block / "slaves").iterdir())
    except OSError:
        return []
    found = [sys / "class/block" / name for name in names]
    return [Path(os.path.realpath(slave)) for slave in found if slave.exists()]


def _layer(block: Path) -> str | None:
    if (block / "md").is_dir():
        return kernel.text(block / "md/level") or "RAID"
    if (block / "dm").is_dir():
        kind = (kernel.text(block / "dm/uuid") or "").partition("-")[0].lower()
        return {"lvm": "LVM", "crypt": "crypt", "mpath": "multipath"}.get(kind, "device mapper")
    if (block / "loop").is_dir():
        return "loop"
    return None


def _disk(block: Path) -> BlockDevice:
    sectors, turns = kernel.number(block / "size"), kernel.number(block / "queue/rotational")
    return BlockDevice(
        block.name,
        model=_name(kernel.text(block / "device/model")),
        serial=_name(kernel.text(block / "device/serial") or kernel.text(block / "serial")),
        size_bytes=None if not sectors else sectors * SECTOR_BYTES,
        rotational=None if turns is None else bool(turns),
    )


def _name(words: str | None) -> str | None:
    """On one line, printable and no longer than the 40 characters of an NVMe model."""
    return None if words is None else "".join(c for c in " ".join(words.split()) if c.isprintable())[:40] or None


def _capacity(block: Path, disks: tuple[BlockDevice, ...]) -> int | None:
    """What one drive write per day writes: a RAID array's own size, since mirrors write twice; else the disks'."""
    if (block / "md").is_dir():
        sectors = kernel.number(block / "size")
        return sectors * SECTOR_BYTES if sectors else None
    sizes = [disk.size_bytes for disk in disks]
    return sum(size for size in sizes if size is not None) if sizes and None not in sizes else None


def _root_disks(proc: Path, sys: Path) -> set[str]:
    for place in _ON_THE_ROOT_VOLUME:
        mount = mount_of(Path(place), proc)
        block = None if mount is None else _block(mount, sys)
        if block is not None:
            return {disk.name for disk in _descend(block, sys)[0]}
    return set()

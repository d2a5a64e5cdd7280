"""A machine made of files: /proc and /sys with the disks, partitions, arrays and mounts that a test needs."""

from __future__ import annotations

from pathlib import Path


class FakeMachine:
    """Writes the files that the kernel would show, under `root`."""

    def __init__(self, root: Path) -> None:
        self.root, self.proc, self.sys = root, root / "proc", root / "sys"
        for folder in ("proc/self", "sys/class/block", "sys/dev/block", "sys/devices/virtual/dmi/id"):
            (root / folder).mkdir(parents=True)
        self._mounts: list[str] = []
        self._numbers = 0
        self.write("proc/uptime", "86400.00 100.00\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def disk(
        self,
        name: str,
        *,
        model: str = "",
        serial: str = "",
        sectors: int = 1000,
        rotational: int = 0,
        sectors_written: int = 0,
    ) -> None:
        self._device(name, f"sys/devices/pci/{name}", sectors)
        self.write(f"sys/devices/pci/{name}/queue/rotational", f"{rotational}\n")
        self.write(f"sys/devices/pci/{name}/stat", f"  1 2 3 4 5 6 {sectors_written} 8 9 10 11\n")
        for what, text in (("model", model), ("serial", serial)):
            if text:
                self.write(f"sys/devices/pci/{name}/device/{what}", f"{text}   \n")

    def partition(self, name: str, disk: str, sectors: int = 100) -> None:
        self._device(name, f"sys/devices/pci/{disk}/{name}", sectors)
        self.write(f"sys/devices/pci/{disk}/{name}/partition", "1\n")

    def array(self, name: str, members: list[str], sectors: int, level: str = "raid0") -> None:
        self._layered(name, members, sectors)
        self.write(f"sys/devices/virtual/block/{name}/md/level", f"{level}\n")

    def mapped(self, name: str, members: list[str], uuid: str, sectors: int = 100) -> None:
        self._layered(name, members, sectors)
        self.write(f"sys/devices/virtual/block/{name}/dm/uuid", f"{uuid}\n")

    def mount(self, point: str, name: str, kind: str = "ext4", options: str = "rw,relatime", more: str = "rw") -> None:
        """`name` is a device of this machine, or anything for a file system without one."""
        path = self.root / "sys/class/block" / name
        number = (path / "dev").read_text().strip() if path.exists() else "0:99"
        source = f"/dev/{name}" if path.exists() else name
        line = f"{len(self._mounts) + 20} 1 {number} / {point} {options} shared:1 - {kind} {source} {more}"
        self._mounts.append(line)
        self.write("proc/self/mountinfo", "\n".join(self._mounts) + "\n")

    def amazon(self, instance: str) -> None:
        self.write("sys/devices/virtual/dmi/id/sys_vendor", "Amazon EC2\n")
        self.write("sys/devices/virtual/dmi/id/product_name", f"{instance}\n")

    def _device(self, name: str, folder: str, sectors: int) -> None:
        self._numbers += 1
        number = f"259:{self._numbers}"
        self.write(f"{folder}/dev", f"{number}\n")
        self.write(f"{folder}/size", f"{sectors}\n")
        (self.root / "sys/class/block" / name).symlink_to(self.root / folder)
        (self.root / "sys/dev/block" / number).symlink_to(self.root / folder)

    def _layered(self, name: str, members: list[str], sectors: int) -> None:
        folder = f"sys/devices/virtual/block/{name}"
        self._device(name, folder, sectors)
        slaves = self.root / folder / "slaves"
        slaves.mkdir()
        for member in members:
            (slaves / member).symlink_to(self.root / "sys/class/block" / member)

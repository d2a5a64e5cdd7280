"""The disks under a directory: plain, partitioned, joined, and hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from hifc_ray.health.block_devices import EBS, INSTANCE_STORE, Placement, locate, written_bytes
from tests.fakes.machine import FakeMachine

FLASH = Path("/flash/cache")


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    fake = FakeMachine(tmp_path)
    fake.disk("nvme0n1", model=EBS, serial="vol0")
    fake.partition("nvme0n1p1", "nvme0n1")
    fake.mount("/", "nvme0n1p1")
    return fake


def find(machine: FakeMachine, directory: Path = FLASH) -> Placement:
    return locate(directory, machine.proc, machine.sys)


def test_a_whole_drive_of_its_own(machine: FakeMachine) -> None:
    machine.disk("nvme1n1", model=INSTANCE_STORE, serial="AWS1", sectors=14_648_437_500)
    machine.mount("/flash", "nvme1n1", kind="xfs")
    found = find(machine)
    (disk,) = found.disks
    assert (disk.name, disk.path, disk.model, disk.serial) == ("nvme1n1", "/dev/nvme1n1", INSTANCE_STORE, "AWS1")
    assert (disk.instance_store, disk.network, disk.rotational) == (True, False, False)
    assert (disk.size_bytes, found.size_bytes) == (7_500_000_000_000, 7_500_000_000_000)
    assert (found.layers, found.shares_root, found.name) == ((), False, "nvme1n1")


def test_a_partition_of_the_root_drive(machine: FakeMachine) -> None:
    machine.partition("nvme0n1p2", "nvme0n1")
    machine.mount("/flash", "nvme0n1p2")
    found = find(machine)
    assert [disk.name for disk in found.disks] == ["nvme0n1"]
    assert found.shares_root is True
    assert found.disks[0].network
    assert found.size_bytes == 1000 * 512  # of the disk: others write to it as well


def test_an_array_of_drives(machine: FakeMachine) -> None:
    machine.disk("nvme1n1", model=INSTANCE_STORE)
    machine.disk("nvme2n1", model=INSTANCE_STORE)
    machine.array("md0", ["nvme1n1", "nvme2n1"], sectors=1990)
    machine.mount("/flash", "md0", kind="xfs")
    found = find(machine)
    assert [disk.name for disk in found.disks] == ["nvme1n1", "nvme2n1"]
    assert (found.layers, found.size_bytes, found.name) == (("raid0",), 1990 * 512, "nvme1n1+nvme2n1")


def test_volumes_on_partitions_of_arrays(machine: FakeMachine) -> None:
    for name in ("sda", "sdb"):
        machine.disk(name, rotational=1)
        machine.partition(f"{name}1", name)
    machine.array("md0", ["sda1", "sdb1"], sectors=100, level="raid1")
    machine.mapped("dm-0", ["md0"], "CRYPT-LUKS2-abc")
    machine.mapped("dm-1", ["dm-0"], "LVM-xyz")
    machine.mount("/flash", "dm-1")
    found = find(machine)
    assert [disk.name for disk in found.disks] == ["sda", "sdb"]
    assert found.layers == ("LVM", "crypt", "raid1")
    assert [disk.rotational for disk in found.disks] == [True, True]


def test_slaves_that_go_in_circles_end(machine: FakeMachine) -> None:
    machine.mapped("dm-0", [], "LVM-a")
    machine.mapped("dm-1", ["dm-0"], "LVM-b")
    (machine.sys / "devices/virtual/block/dm-0/slaves/dm-1").symlink_to(machine.sys / "class/block/dm-1")
    machine.mount("/flash", "dm-1")
    assert {disk.name for disk in find(machine).disks} <= {"dm-0", "dm-1"}


@pytest.mark.parametrize("kind", ["tmpfs", "overlay", "nfs4", "fuse"])
def test_file_systems_without_a_disk(machine: FakeMachine, kind: str) -> None:
    machine.mount("/flash", "somewhere", kind=kind)
    found = find(machine)
    assert (found.disks, found.size_bytes, found.shares_root, found.name) == ((), None, None, str(FLASH))
    assert found.mount is not None
    assert found.mount.file_system == kind


def test_btrfs_is_found_by_its_source(machine: FakeMachine) -> None:
    machine.disk("nvme1n1")
    machine.mount("/flash", "nvme1n1", kind="btrfs")
    text = (machine.proc / "self/mountinfo").read_text()
    number = (machine.sys / "class/block/nvme1n1/dev").read_text().strip()
    machine.write("proc/self/mountinfo", text.replace(number, "0:42"))
    assert [disk.name for disk in find(machine).disks] == ["nvme1n1"]


def test_a_container_finds_the_root_volume_by_what_docker_mounts(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.disk("nvme0n1")
    machine.mount("/", "overlay", kind="overlay")
    machine.mount("/etc/hosts", "nvme0n1")
    machine.mount("/flash", "nvme0n1")
    assert find(machine).shares_root is True


def test_where_nothing_tells_the_root(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.disk("nvme1n1")
    machine.mount("/", "overlay", kind="overlay")
    machine.mount("/flash", "nvme1n1")
    assert find(machine).shares_root is None


@pytest.mark.parametrize("size", ["", "garbage", "-5", "9" * 400, "0", "\0"])
def test_sizes_that_make_no_sense(machine: FakeMachine, size: str) -> None:
    machine.disk("nvme1n1", model="\x1b[31m evil \n\n model" + "x" * 100)
    machine.mount("/flash", "nvme1n1")
    machine.write("sys/devices/pci/nvme1n1/size", size)
    machine.write("sys/devices/pci/nvme1n1/queue/rotational", size)
    found = find(machine)
    assert (found.disks[0].size_bytes, found.size_bytes) == (None, None)
    assert found.disks[0].rotational in (None, False)
    model = found.disks[0].model or ""
    assert model.isprintable()
    assert len(model) <= 40


def test_files_that_are_not_permitted(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.disk("nvme1n1", model="m")
    machine.mount("/flash", "nvme1n1")
    plain = Path.open

    def refuse(self: Path, *args, **kwargs):
        if "pci" in str(self):
            raise PermissionError(13, "Permission denied")
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    (disk,) = find(machine).disks
    assert (disk.name, disk.model, disk.size_bytes, disk.rotational) == ("nvme1n1", None, None, None)


@pytest.mark.parametrize(
    ("stat", "written"),
    [
        ("1 2 3 4 5 6 217 8", 217 * 512),
        ("", None),
        ("1 2 3", None),
        ("a b c d e f g h", None),
        (f"1 2 3 4 5 6 {2**64 - 1}", (2**64 - 1) * 512),
        (f"1 2 3 4 5 6 {'9' * 30}", None),
    ],
)
def test_sectors_written(machine: FakeMachine, stat: str, written: int | None) -> None:
    machine.write("sys/devices/pci/nvme0n1/stat", stat)
    assert written_bytes("nvme0n1", machine.sys) == written
    assert written_bytes("none", machine.sys) is None


def test_this_machine() -> None:
    assert locate(Path("/")).mount is not None
    assert locate(Path("/no/such/directory")).directory == Path("/no/such/directory")

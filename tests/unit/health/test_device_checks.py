"""Verdicts on where a directory lies, how it is mounted, and what its drives say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hifc_ray.config import FlashConfig
from hifc_ray.health import device_checks, drive_checks
from hifc_ray.health.block_devices import EBS, INSTANCE_STORE, BlockDevice, Placement
from hifc_ray.health.devices import DeviceReading, read_device
from hifc_ray.health.instances import LocalDrives
from hifc_ray.health.mounts import Mount
from hifc_ray.health.smart import CriticalWarning, SmartReading
from hifc_ray.health.verdict import Level, Verdict
from tests.fakes.machine import FakeMachine

TB = 10**12
XFS = Mount(Path("/flash"), "259:1", "xfs", "/dev/nvme1n1", frozenset({"rw", "noatime"}))
DISK = BlockDevice("nvme1n1", INSTANCE_STORE, "AWS1", 7 * TB, False)
PLACE = Placement(Path("/flash"), XFS, (DISK,), size_bytes=7 * TB, shares_root=False)
SMART = SmartReading("nvme1n1", 3, 100, 10, 0, 5 * TB, 9 * TB, CriticalWarning(0), 40.0)


def assert_verdict(verdict: Verdict | None, level: Level, *words: str) -> None:
    assert verdict is not None
    assert verdict.level == level, verdict
    assert (verdict.advice != "") == (level != Level.OK)
    text = f"{verdict.what} -> {verdict.advice}"
    assert "\n" not in text
    assert [word for word in words if word not in text] == []


def test_a_drive_of_its_own_is_fine() -> None:
    assert_verdict(device_checks.check_placement(PLACE), Level.OK, "nvme1n1 7.0 TB (instance store)")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (replace(PLACE, shares_root=True), ("shared with the root volume", "NVMe drive of its own")),
        (replace(PLACE, disks=(replace(DISK, model=EBS),)), ("(EBS)", "instance store")),
        (replace(PLACE, disks=(DISK, replace(DISK, name="nvme2n1")), layers=("raid0",)), ("raid0", "each of the 2")),
        (replace(PLACE, layers=("loop",)), ("through loop", "use a drive")),
        (replace(PLACE, disks=(BlockDevice("sda", rotational=True),)), ("spinning",)),
        (replace(PLACE, disks=(), mount=replace(XFS, file_system="tmpfs")), ("is on tmpfs",)),
        (replace(PLACE, mount=None), ("not known",)),
    ],
)
def test_places_that_could_be_better(place: Placement, words: tuple[str, ...]) -> None:
    assert_verdict(device_checks.check_placement(place), Level.WARN, *words)


def test_a_virtual_disk_that_says_it_spins_is_believed_less() -> None:
    place = replace(PLACE, disks=(BlockDevice("vda", rotational=True),), shares_root=None)
    assert_verdict(device_checks.check_placement(place), Level.OK)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("ext4", "rw,relatime", ("noatime",)),
        ("xfs", "rw,noatime,discard", ("nodiscard", "fstrim")),
        ("ext4", "rw,noatime,data=journal", ("data=ordered",)),
        ("ext4", "rw,noatime,sync", ("async",)),
        ("nfs4", "rw,noatime", ("use ext4 or xfs",)),
        ("overlay", "rw", ("use ext4 or xfs",)),
        ("tmpfs", "rw,noatime", ("use ext4 or xfs",)),
    ],
)
def test_mounts_that_could_be_better(kind: str, options: str, words: tuple[str, ...]) -> None:
    mount = replace(XFS, file_system=kind, options=frozenset(options.split(",")))
    assert_verdict(device_checks.check_mount(replace(PLACE, mount=mount)), Level.WARN, kind, *words)


def test_a_mount_that_is_fine() -> None:
    assert_verdict(device_checks.check_mount(PLACE), Level.OK, "xfs,noatime")
    assert device_checks.check_mount(replace(PLACE, mount=None)) is None


def test_drives_in_use() -> None:
    drives = LocalDrives(2, 7 * TB)
    one, both = [PLACE], [PLACE, replace(PLACE, disks=(replace(DISK, name="nvme2n1"),))]
    verdict = device_checks.check_drives_in_use(one, drives, "i3en.6xlarge")
    assert_verdict(verdict, Level.WARN, "2 drives of 7.0 TB, 1 of them", "--flash-dir on each")
    assert_verdict(device_checks.check_drives_in_use(both, drives, "i3en.6xlarge"), Level.OK)
    assert device_checks.check_drives_in_use(one, None, None) is None


def life(reading: DeviceReading, **config: float) -> Verdict:
    return device_checks.check_life(reading, FlashConfig(**config))  # type: ignore[arg-type]


def test_life() -> None:
    reading = DeviceReading(PLACE, (SMART,), 7 * TB, 100, 7 * TB / 2)
    assert_verdict(life(reading), Level.OK, "rated 7.0 TB a day", "written 3.5 TB a day", "5.0 TB ever", "10 years")
    busy = replace(reading, written_per_day=8 * TB)
    assert_verdict(life(busy), Level.WARN, "8.0 TB a day", "4 years", "write_bytes_per_day")
    assert_verdict(life(busy, drive_writes_per_day=3.0), Level.OK, "rated 21.0 TB", "13 years")
    worn = replace(reading, smart=(SMART, replace(SMART, percentage_used=96)))
    assert_verdict(life(worn), Level.WARN, "146 days")
    assert_verdict(life(reading, write_bytes_per_day=TB), Level.OK, "limited to 1.0 TB")


def test_life_of_which_little_is_known() -> None:
    assert_verdict(life(DeviceReading(PLACE)), Level.OK, "no capacity")
    assert_verdict(life(DeviceReading(PLACE, capacity_bytes=7), drive_writes_per_day=0.0), Level.OK, "no budget")
    assert_verdict(life(DeviceReading(PLACE, capacity_bytes=7)), Level.OK, "not known")
    idle = DeviceReading(PLACE, capacity_bytes=7, written_bytes=0, written_per_day=0.0)
    assert "lasts" not in life(idle).what


def test_a_healthy_drive_has_no_verdicts() -> None:
    assert drive_checks.check_drive(SMART, SMART) == []
    assert drive_checks.check_drive(SmartReading("nvme1n1")) == []
    assert_verdict(drive_checks.check_smart(SMART), Level.OK, "endurance used 3 %", "spare 100 %", "40 °C")


@pytest.mark.parametrize(
    "smart",
    [
        replace(SMART, available_spare=4, spare_threshold=None),
        replace(SMART, available_spare=4, spare_threshold=0),
        replace(SMART, available_spare=9, spare_threshold=10),
        replace(SMART, critical_warning=CriticalWarning.READ_ONLY),
        replace(SMART, critical_warning=CriticalWarning.RELIABILITY | CriticalWarning.BACKUP),
        replace(SMART, critical_warning=CriticalWarning.SPARE),
    ],
)
def test_what_stops_writes_and_drains(smart: SmartReading) -> None:
    (verdict,) = drive_checks.check_drive(smart)
    assert (verdict.level, verdict.read_only, verdict.drain) == (Level.FAIL, True, True)
    assert verdict.advice


@pytest.mark.parametrize(
    "smart",
    [
        replace(SMART, available_spare=5, spare_threshold=5),
        replace(SMART, available_spare=10),
        replace(SMART, critical_warning=CriticalWarning.BACKUP),
        replace(SMART, critical_warning=CriticalWarning(192)),
        replace(SMART, percentage_used=89),
        replace(SMART, temperature_c=69.9),
    ],
)
def test_what_is_still_well(smart: SmartReading) -> None:
    assert drive_checks.check_drive(smart) == []


@pytest.mark.parametrize(("used", "level"), [(90, Level.WARN), (99, Level.WARN), (100, Level.FAIL), (255, Level.FAIL)])
def test_wear(used: int, level: Level) -> None:
    (verdict,) = drive_checks.check_drive(replace(SMART, percentage_used=used))
    assert (verdict.level, verdict.read_only) == (level, False)


def test_media_errors_count_by_their_rise() -> None:
    many = replace(SMART, media_errors=12)
    assert drive_checks.check_drive(many) == []
    assert drive_checks.check_drive(many, many) == []
    (verdict,) = drive_checks.check_drive(many, replace(SMART, media_errors=10))
    assert_verdict(verdict, Level.WARN, "2 media errors", "12 in all")
    assert drive_checks.check_drive(many, replace(SMART, media_errors=None)) == []


def test_heat_ends_lower_than_it_begins() -> None:
    warm = replace(SMART, temperature_c=67.0)
    assert drive_checks.check_drive(warm) == []
    (verdict,) = drive_checks.check_drive(warm, was_hot=True)
    assert_verdict(verdict, Level.WARN, "67 °C")
    assert drive_checks.check_drive(replace(SMART, temperature_c=64.0), was_hot=True) == []
    warned = replace(SMART, critical_warning=CriticalWarning.TEMPERATURE, temperature_c=None)
    assert_verdict(drive_checks.check_drive(warned)[0], Level.WARN, "warns of its temperature")


@pytest.mark.parametrize(
    ("problem", "level", "words"),
    [
        ("nvme is not installed", Level.WARN, "apt-get install nvme-cli"),
        ("/dev/nvme1n1: Permission denied", Level.WARN, "run as root"),
        ("/dev/nvme1n1: Operation not permitted", Level.WARN, "run as root"),
        ("the drive hides its SMART log", Level.OK, "unknown"),
        ("", Level.OK, "unknown: no answer"),
    ],
)
def test_unknown_is_said(problem: str, level: Level, words: str) -> None:
    verdict = drive_checks.check_smart(SmartReading("nvme1n1", temperature_c=50.0, problem=problem))
    assert_verdict(verdict, level, words, "50 °C")


def test_a_mount_that_the_kernel_made_read_only() -> None:
    assert device_checks.check_writable(PLACE) == []
    (verdict,) = device_checks.check_writable(replace(PLACE, mount=replace(XFS, options=frozenset({"ro"}))))
    assert (verdict.level, verdict.read_only, verdict.drain) == (Level.FAIL, True, True)


def test_drives_that_disappear() -> None:
    gone = replace(PLACE, disks=())
    assert device_checks.check_present(PLACE, PLACE) == []
    assert device_checks.check_present(gone, gone) == []
    (verdict,) = device_checks.check_present(gone, PLACE)
    assert (verdict.level, verdict.read_only) == (Level.FAIL, True)


def test_reading_a_device_of_files(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.disk("nvme1n1", model=INSTANCE_STORE, sectors=14_648_437_500, sectors_written=2000)
    machine.mount("/flash", "nvme1n1", kind="xfs")
    machine.write("proc/uptime", "43200.5 1\n")
    reading = read_device(Path("/flash/x"), lambda name: SmartReading(name, 3), machine.proc, machine.sys)
    assert reading.smart == (SmartReading("nvme1n1", 3),)
    assert (reading.capacity_bytes, reading.written_bytes) == (7_500_000_000_000, 1_024_000)
    assert reading.written_per_day == pytest.approx(2_048_000, rel=1e-4)


@pytest.mark.parametrize("uptime", ["", "garbage", "0.0 0", "-5 1", "nan", "1e3", "9" * 50])
def test_an_uptime_that_makes_no_sense(tmp_path: Path, uptime: str) -> None:
    machine = FakeMachine(tmp_path)
    machine.disk("nvme1n1", sectors_written=2000)
    machine.mount("/flash", "nvme1n1")
    machine.write("proc/uptime", uptime)
    reading = read_device(Path("/flash"), SmartReading, machine.proc, machine.sys)
    assert (reading.written_bytes, reading.written_per_day) == (1_024_000, None)


def test_a_device_of_nothing(tmp_path: Path) -> None:
    reading = read_device(Path("/no/such"), SmartReading, tmp_path / "proc", tmp_path / "sys")
    assert reading == DeviceReading(Placement(Path("/no/such")))

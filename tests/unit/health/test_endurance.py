"""Rated endurance and the life that it leaves: arithmetic by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from hifc_ray.config import FlashConfig
from hifc_ray.health import endurance
from hifc_ray.health.block_devices import INSTANCE_STORE, BlockDevice, Placement
from hifc_ray.health.instances import LOCAL_DRIVES, LocalDrives, instance_type, local_drives
from tests.fakes.machine import FakeMachine

TB = 10**12


def place(directory: str, *disks: str, size: int | None = None, model: str = "") -> Placement:
    return Placement(Path(directory), disks=tuple(BlockDevice(name, model=model) for name in disks), size_bytes=size)


def test_one_drive_write_a_day_for_five_years() -> None:
    # 7.5 TB a day are rated for 1825 days; at 15 TB a day they last half of that, and half used a quarter.
    assert endurance.projected_life_days(15 * TB, 15 * TB // 2, 1.0) == 912.5
    assert endurance.projected_life_days(15 * TB, 15 * TB // 2, 1.0, percentage_used=50) == 456.25
    assert endurance.projected_life_days(15 * TB, 15 * TB // 2, 3.0) == 2737.5
    assert endurance.projected_life_days(TB, TB, 1.0, warranty_years=3) == 1095


@pytest.mark.parametrize("used", [100, 104, 255])
def test_a_drive_that_is_used_up_has_no_days(used: int) -> None:
    assert endurance.projected_life_days(TB, TB, 1.0, percentage_used=used) == 0


@pytest.mark.parametrize(("rate", "capacity", "dwpd"), [(0, TB, 1.0), (-1, TB, 1.0), (TB, 0, 1.0), (TB, TB, 0.0)])
def test_no_answer(rate: float, capacity: int, dwpd: float) -> None:
    assert endurance.projected_life_days(rate, capacity, dwpd) is None


def test_huge_figures() -> None:
    days = endurance.projected_life_days(1, 2**70, 100.0, 0)
    assert days is not None
    assert days > 10**20
    assert endurance.projected_life_days(2.0**128, 2**40, 1.0, 0) == pytest.approx(0, abs=1e-9)


def test_the_budget_of_a_device() -> None:
    assert endurance.budget_bytes_per_day(FlashConfig(drive_writes_per_day=3), 2 * TB) == 6 * TB
    assert endurance.budget_bytes_per_day(FlashConfig(drive_writes_per_day=0), 2 * TB) == 0
    assert endurance.budget_bytes_per_day(FlashConfig(write_bytes_per_day=5), 2 * TB) == 5
    assert endurance.budget_bytes_per_day(FlashConfig(), 0) == 0


def test_directories_on_one_drive_share_its_budget() -> None:
    places = [place("/a", "nvme1n1"), place("/b", "nvme2n1"), place("/c", "nvme1n1"), place("/d"), place("/e")]
    budgets = endurance.budgets_bytes_per_day(FlashConfig(), places, [TB, 2 * TB, TB, 10, 20])
    assert budgets == (TB // 2, 2 * TB, TB // 2, 10, 20)


def test_a_budget_that_is_next_to_nothing_is_not_none() -> None:
    places = [place("/a", "nvme1n1"), place("/b", "nvme1n1")]
    assert endurance.budgets_bytes_per_day(FlashConfig(write_bytes_per_day=1), places, [TB, TB]) == (1, 1)
    assert endurance.budget_bytes_per_day(FlashConfig(drive_writes_per_day=1e-15), TB) == 1


def test_capacity_comes_from_the_best_source() -> None:
    drives = LocalDrives(2, 7 * TB)
    assert endurance.capacity_bytes(place("/a", "nvme1n1", size=3 * TB), drives, TB) == 3 * TB
    hidden = place("/a", "nvme1n1", "nvme2n1", model=INSTANCE_STORE)
    assert endurance.capacity_bytes(hidden, drives, TB) == 14 * TB
    assert endurance.capacity_bytes(place("/a", "nvme0n1"), drives, TB) == TB
    assert endurance.capacity_bytes(place("/a"), None, -5) == 0


def test_a_rate() -> None:
    assert endurance.bytes_per_day(100, 43_200) == 200
    assert endurance.bytes_per_day(100, 0) == 0


def test_instance_types(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert instance_type(machine.sys) is None
    machine.amazon("i3en.24xlarge")
    assert instance_type(machine.sys) == "i3en.24xlarge"
    assert local_drives(instance_type(machine.sys)) == LocalDrives(8, 7_500 * 10**9)
    machine.write("sys/devices/virtual/dmi/id/sys_vendor", "QEMU\n")
    assert instance_type(machine.sys) is None
    assert local_drives(None) is None
    assert local_drives("t3.micro") is None
    assert "i3en.8xlarge" not in LOCAL_DRIVES  # there is no such type

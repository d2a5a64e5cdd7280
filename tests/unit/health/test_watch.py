"""Looking again and again: deltas, events, and what must not heal by being out of sight."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hifc_ray.clock import ManualClock
from hifc_ray.health.block_devices import BlockDevice, Placement
from hifc_ray.health.devices import DeviceReading
from hifc_ray.health.gpus import Gpu, GpuMemory, GpuReading
from hifc_ray.health.mounts import Mount
from hifc_ray.health.smart import CriticalWarning, SmartReading
from hifc_ray.health.verdict import Level, Verdict
from hifc_ray.health.watch import LEAST_SPAN_S, HealthWatch
from tests.fakes.machine import FakeMachine

pytestmark = pytest.mark.timeout(60)
TB, DAY_S = 10**12, 86_400.0
MOUNT = Mount(Path("/a"), "259:1", "xfs", "/dev/nvme1n1", frozenset({"rw"}))
SMART = SmartReading("nvme1n1", 3, 100, 10, 7, 5 * TB, 9 * TB, CriticalWarning(0), 40.0)
HIDDEN = SmartReading("nvme1n1", problem="nvme gave no answer within 5 s")


def device(directory: str, smart: SmartReading = SMART, serial: str = "one", written: int | None = 0) -> DeviceReading:
    place = Placement(Path(directory), MOUNT, (BlockDevice(smart.device, serial=serial),), size_bytes=TB)
    return DeviceReading(place, (smart,), TB, written, float(TB))


class Scene:
    """A watch of the directories /a and /b, and what its readers will find."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        other = replace(SMART, device="nvme2n1")
        self.found = {Path("/a"): device("/a"), Path("/b"): device("/b", other)}
        self.gpus = GpuReading()
        self.watch = HealthWatch(
            list(self.found), clock=self.clock, read_device=lambda path: self.found[path], read_gpus=lambda: self.gpus
        )

    def finds(self, smart: SmartReading, **more: object) -> None:
        self.found[Path("/a")] = device("/a", smart, **more)  # type: ignore[arg-type]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def names(verdicts: tuple[Verdict, ...]) -> list[str]:
    return [verdict.name for verdict in verdicts]


def test_a_healthy_machine_has_nothing_to_say(scene: Scene) -> None:
    for _ in range(3):
        report = scene.watch.look()
        assert (report.verdicts, report.new, report.gone, report.restart_gpus) == ((), (), (), ())
        assert [health.read_only for health in report.devices] == [False, False]


def test_a_worn_drive_stops_its_own_directory_only(scene: Scene) -> None:
    scene.watch.look()
    scene.finds(replace(SMART, available_spare=4))
    report = scene.watch.look()
    assert [(health.path, health.read_only, health.drain) for health in report.devices] == [
        (Path("/a"), True, True),
        (Path("/b"), False, False),
    ]
    assert (names(report.new), report.gone) == (["nvme1n1 spare"], ())
    again = scene.watch.look()
    assert (again.new, again.gone, names(again.verdicts)) == ((), (), ["nvme1n1 spare"])


def test_what_is_no_longer_known_does_not_heal(scene: Scene) -> None:
    scene.finds(replace(SMART, critical_warning=CriticalWarning.READ_ONLY))
    assert scene.watch.look().devices[0].read_only
    for _ in range(3):
        scene.finds(HIDDEN)
        report = scene.watch.look()
        assert report.devices[0].read_only
        assert report.gone == ()
        assert report.devices[0].reading.smart[0].problem == HIDDEN.problem
    scene.finds(SMART)
    assert names(scene.watch.look().gone) == ["nvme1n1 warning"]


def test_drives_that_disappear_keep_their_verdicts(scene: Scene) -> None:
    scene.finds(replace(SMART, available_spare=1))
    scene.watch.look()
    scene.found[Path("/a")] = DeviceReading(Placement(Path("/a"), MOUNT))
    for _ in range(2):
        report = scene.watch.look()
        assert names(report.verdicts) == ["nvme1n1 presence", "nvme1n1 spare"]
        assert report.devices[0].read_only
    scene.finds(SMART)
    report = scene.watch.look()
    assert (report.verdicts, names(report.gone)) == ((), ["nvme1n1 presence", "nvme1n1 spare"])


def test_another_drive_in_its_place_begins_anew(scene: Scene) -> None:
    scene.finds(replace(SMART, available_spare=1))
    scene.watch.look()
    scene.finds(replace(HIDDEN, media_errors=900), serial="two")
    report = scene.watch.look()
    assert report.verdicts == ()
    assert not report.devices[0].read_only


def test_media_errors_that_rise(scene: Scene) -> None:
    scene.watch.look()
    scene.finds(replace(SMART, media_errors=8))
    (verdict,) = scene.watch.look().new
    assert "1 media errors more" in verdict.what
    scene.finds(replace(SMART, media_errors=12))
    report = scene.watch.look()
    assert (report.new, report.gone) == ((), ())
    assert "5 media errors more" in report.verdicts[0].what
    assert report.metrics()["health_media_errors_total"] == 12 + 7


def test_media_errors_that_are_counted_from_0_again(scene: Scene) -> None:
    scene.watch.look()
    scene.finds(replace(SMART, media_errors=2))
    assert scene.watch.look().verdicts == ()
    scene.finds(replace(SMART, media_errors=3))
    assert "1 media errors more" in scene.watch.look().verdicts[0].what


def test_media_errors_that_become_known_late(scene: Scene) -> None:
    scene.finds(HIDDEN)
    scene.watch.look()
    scene.finds(SMART)
    assert scene.watch.look().verdicts == ()
    scene.finds(replace(SMART, media_errors=9))
    assert "2 media errors more" in scene.watch.look().verdicts[0].what


def test_heat_does_not_flutter(scene: Scene) -> None:
    events = []
    for degrees in (69.0, 71.0, 69.0, 71.0, 66.0, 64.0, 69.0):
        scene.finds(replace(SMART, temperature_c=degrees))
        report = scene.watch.look()
        events.append((len(report.new), len(report.gone)))
    assert events == [(0, 0), (1, 0), (0, 0), (0, 0), (0, 0), (0, 1), (0, 0)]


def test_what_gets_worse_is_new(scene: Scene) -> None:
    scene.finds(replace(SMART, percentage_used=95))
    assert [verdict.level for verdict in scene.watch.look().new] == [Level.WARN]
    scene.finds(replace(SMART, percentage_used=101))
    report = scene.watch.look()
    assert [verdict.level for verdict in report.new] == [Level.FAIL]
    assert [verdict.level for verdict in report.gone] == [Level.WARN]


def test_two_directories_on_one_drive_are_one_event(scene: Scene) -> None:
    bad = replace(SMART, available_spare=1)
    scene.found = {Path("/a"): device("/a", bad), Path("/b"): device("/b", bad)}
    report = scene.watch.look()
    assert (len(report.new), len(report.verdicts)) == (1, 1)
    assert [health.read_only for health in report.devices] == [True, True]


def test_the_rate_of_writes_is_of_this_watch_once_it_is_long_enough(scene: Scene) -> None:
    assert scene.watch.look().devices[0].written_per_day == TB  # since the boot
    scene.clock.advance(LEAST_SPAN_S - 1)
    scene.finds(SMART, written=TB // 4)
    assert scene.watch.look().devices[0].written_per_day == TB
    scene.clock.advance(DAY_S / 2 - LEAST_SPAN_S + 1)
    (health, _) = scene.watch.look().devices
    assert health.written_per_day == TB / 2
    assert health.projected_life_days == pytest.approx(5 * 365 * 0.97 * 2)


def test_a_count_of_writes_that_begins_again(scene: Scene) -> None:
    scene.finds(SMART, written=TB)
    scene.watch.look()
    scene.clock.advance(DAY_S)
    scene.finds(SMART, written=100)
    assert scene.watch.look().devices[0].written_per_day == TB
    scene.clock.advance(DAY_S)
    scene.finds(SMART, written=300)
    assert scene.watch.look().devices[0].written_per_day == 200
    scene.finds(SMART, written=None)
    (health, _) = scene.watch.look().devices
    assert (health.written_per_day, health.projected_life_days) == (None, None)


def test_gpus_to_restart(scene: Scene) -> None:
    bad, good = GpuMemory(remap_pending=True, remapped_uncorrected=2, ecc_corrected=5), GpuMemory(ecc_corrected=1)
    scene.gpus = GpuReading((Gpu(0, "H100", 80, 70, good), Gpu(1, "H100", 80, 70, bad)))
    report = scene.watch.look()
    assert (report.restart_gpus, names(report.new)) == ((1,), ["gpu 1 remap"])
    metrics = report.metrics()
    assert metrics["health_gpu_restarts_wanted"] == 1
    assert metrics["health_gpu_remapped_rows"] == 2
    assert metrics["health_gpu_ecc_corrected_total"] == 6
    assert "health_gpu_retired_pages" not in metrics
    scene.gpus = GpuReading(problem="Driver/library version mismatch")
    report = scene.watch.look()
    assert report.restart_gpus == (1,)
    assert names(report.new) == ["gpus"]


def test_a_driver_that_hangs(scene: Scene) -> None:
    go_on = threading.Event()

    def hang() -> GpuReading:
        go_on.wait(30)
        return GpuReading()

    watch = HealthWatch([], read_gpus=hang)
    watch._read_gpus._limit_s = 0.05
    try:
        assert names(watch.look().new) == ["gpus"]
        assert watch.look().new == ()
    finally:
        go_on.set()


def test_metrics_of_the_node_are_the_worst_or_the_sum(scene: Scene) -> None:
    scene.finds(replace(SMART, available_spare=4, percentage_used=95, temperature_c=71.0))
    report = scene.watch.look()
    metrics = report.metrics()
    assert all(name.startswith("health_") for name in metrics)
    expected = {
        "health_available_spare_percent": 4,
        "health_endurance_used_percent": 95,
        "health_temperature_celsius": 71.0,
        "health_media_errors_total": 14,
        "health_drive_written_bytes": 10 * TB,
        "health_capacity_bytes": 2 * TB,
        "health_read_only_devices": 1,
        "health_unknown_drives": 0,
        "health_failures_count": 1,
        "health_warnings_count": 2,
    }
    assert {name: metrics[name] for name in expected} == expected
    assert metrics["health_projected_life_days"] == pytest.approx(5 * 365 * 0.05)
    assert report.devices[1].metrics()["health_available_spare_percent"] == 100


def test_what_is_unknown_has_no_metric(scene: Scene) -> None:
    scene.finds(HIDDEN)
    metrics = scene.watch.look().devices[0].metrics()
    assert metrics["health_unknown_drives"] == 1
    assert not {"health_available_spare_percent", "health_media_errors_total"} & set(metrics)


def test_this_machine(tmp_path: Path) -> None:
    watch = HealthWatch([tmp_path, tmp_path / "none"])
    first, second = watch.look(), watch.look()
    assert [health.path for health in first.devices] == [tmp_path, tmp_path / "none"]
    assert second.new == ()
    assert all(isinstance(number, int | float) for number in second.metrics().values())


def test_a_machine_of_files_that_vanishes(tmp_path: Path) -> None:
    from hifc_ray.health.devices import read_device

    machine = FakeMachine(tmp_path / "machine")
    machine.disk("nvme1n1", model="m")
    machine.mount("/flash", "nvme1n1")
    watch = HealthWatch(
        [Path("/flash")],
        read_device=lambda path: read_device(path, SmartReading, machine.proc, machine.sys),
        read_gpus=GpuReading,
    )
    assert watch.look().verdicts == ()
    machine.root.rename(tmp_path / "elsewhere")
    assert names(watch.look().new) == ["nvme1n1 presence"]
    (tmp_path / "elsewhere").rename(machine.root)
    assert names(watch.look().gone) == ["nvme1n1 presence"]

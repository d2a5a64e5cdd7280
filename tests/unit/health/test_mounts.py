"""Which mount holds a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from hifc_ray.health.mounts import mount_of, read_mounts
from tests.fakes.machine import FakeMachine


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    fake = FakeMachine(tmp_path)
    fake.mount("/", "root-overlay", kind="overlay")
    return fake


def test_the_longest_point_holds(machine: FakeMachine) -> None:
    machine.mount("/flash", "a", kind="xfs", options="rw,noatime", more="rw,discard")
    machine.mount("/flash/deep", "b", kind="ext4")
    machine.mount("/fla", "c", kind="tmpfs")
    found = mount_of(Path("/flash/cache"), machine.proc)
    assert found is not None
    assert (found.point, found.file_system) == (Path("/flash"), "xfs")
    assert found.options == {"rw", "noatime", "discard"}
    assert not found.read_only
    assert getattr(mount_of(Path("/flash/deep"), machine.proc), "file_system", None) == "ext4"
    assert getattr(mount_of(Path("/flashy"), machine.proc), "file_system", None) == "overlay"


def test_the_last_of_those_at_one_point_holds(machine: FakeMachine) -> None:
    machine.mount("/flash", "below", kind="ext4")
    machine.mount("/flash", "above", kind="xfs")
    assert getattr(mount_of(Path("/flash"), machine.proc), "file_system", None) == "xfs"


@pytest.mark.parametrize(("options", "more"), [("ro,noatime", "rw"), ("rw", "ro,errors=remount-ro")])
def test_read_only_by_either_side(machine: FakeMachine, options: str, more: str) -> None:
    machine.mount("/flash", "a", options=options, more=more)
    found = mount_of(Path("/flash"), machine.proc)
    assert found is not None
    assert found.read_only


def test_spaces_in_names(machine: FakeMachine) -> None:
    machine.mount(r"/my\040flash\134x", "a", kind="xfs")
    assert getattr(mount_of(Path("/my flash\\x/y"), machine.proc), "file_system", None) == "xfs"


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    machine = FakeMachine(tmp_path / "machine")
    machine.mount(str(tmp_path / "real"), "a", kind="xfs")
    assert mount_of(tmp_path / "link" / "below", machine.proc) is not None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n\n",
        "garbage",
        "1 2 3",
        "20 1 0:1 / / rw",
        "20 1 0:1 / / rw - ",
        " - - - ",
        "\0\0 - \0 \0",
        "20 1 - ext4 x",
    ],
)
def test_garbage_is_no_mount(tmp_path: Path, content: str) -> None:
    machine = FakeMachine(tmp_path)
    machine.write("proc/self/mountinfo", content)
    assert read_mounts(machine.proc) == []
    assert mount_of(Path("/flash"), machine.proc) is None


def test_a_line_without_options_of_the_file_system(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.write("proc/self/mountinfo", "20 1 0:1 / / rw - ext4 /dev/vda")
    assert [mount.options for mount in read_mounts(machine.proc)] == [{"rw"}]


def test_no_proc_at_all(tmp_path: Path) -> None:
    assert mount_of(Path("/"), tmp_path / "none") is None


def test_this_machine() -> None:
    found = mount_of(Path("/dev/shm"))
    assert found is not None
    assert found.file_system == "tmpfs"

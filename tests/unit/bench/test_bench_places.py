"""A bench writes to a disk, into a directory of its own, and says what is wrong with one that it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from hifc_ray.bench import places
from hifc_ray.errors import ConfigError


def test_file_systems_are_told_apart() -> None:
    assert places.file_system_of(Path("/proc/self")) == "proc"
    assert places.file_system_of(Path("/dev/shm")) == "tmpfs"


@pytest.mark.parametrize(
    ("path", "words"),
    [("/nowhere", "no such directory"), ("/dev/shm", "in memory"), ("/proc", "not writable")],
)
def test_a_wrong_directory_is_named_with_the_reason(path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"--flash-dir is {path}: .*{words}.*; allowed: .*O_DIRECT"):
        places.disk_directory(Path(path), 0)


def test_too_little_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_IN_MEMORY", ())
    with pytest.raises(ConfigError, match=r"free; allowed: .* with 1152921.5 TB free"):
        places.disk_directory(tmp_path, 1 << 60)


def test_of_the_usual_places_the_first_that_will_do_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_why_not", lambda path, need_bytes: "" if path == tmp_path else "too small")
    monkeypatch.setattr(places, "_USUAL", (Path("/dev/shm"), tmp_path, Path("/tmp")))
    assert places.disk_directory(None, 10) == tmp_path
    monkeypatch.setattr(places, "_why_not", lambda path, need_bytes: "too small")
    with pytest.raises(ConfigError, match=r"no directory .*too small.*--flash-dir"):
        places.disk_directory(None, 10)


def test_scratch_is_gone_at_the_end(tmp_path: Path) -> None:
    with places.scratch(tmp_path) as directory:
        (directory / "segment").write_bytes(b"x")
        assert directory.parent == tmp_path
    assert list(tmp_path.iterdir()) == []

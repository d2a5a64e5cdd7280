from __future__ import annotations

from pathlib import Path

import pytest

from hifc_ray.demo.places import parent_on_disk


@pytest.fixture
def dirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The usual temporary directory and the one of the cache; both exist."""
    usual, cache = tmp_path / "usual", tmp_path / "home" / "hifc"
    usual.mkdir()
    cache.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(usual))
    monkeypatch.setenv("HIFC_CACHE_DIR", str(cache))
    return usual, cache.parent


def mounts(tmp_path: Path, *lines: str) -> Path:
    table = tmp_path / "mounts"
    table.write_text("".join(f"none {line} rw 0 0\n" for line in lines))
    return table


def test_the_usual_directory_if_it_is_on_a_disk(tmp_path: Path, dirs: tuple[Path, Path]) -> None:
    table = mounts(tmp_path, "/ ext4", f"{tmp_path}/other tmpfs")
    assert parent_on_disk(table) == dirs[0]


def test_another_one_if_the_usual_is_in_memory(tmp_path: Path, dirs: tuple[Path, Path]) -> None:
    table = mounts(tmp_path, "/ ext4", f"{dirs[0]} tmpfs", "/var/tmp tmpfs")
    assert parent_on_disk(table) == dirs[1]


def test_the_usual_one_if_everything_is_in_memory(tmp_path: Path, dirs: tuple[Path, Path]) -> None:
    assert parent_on_disk(mounts(tmp_path, "/ tmpfs")) == dirs[0]

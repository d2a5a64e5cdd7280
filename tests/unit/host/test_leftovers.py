"""What a Ray that was killed has left in memory: removed when nobody owns or uses it, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from hifc_ray.host import arena, leftovers
from hifc_ray.locks import FileLock
from hifc_ray.tiering.holders import lock_holder_file

_SLOT = 4096


def left(directory: Path, name: str) -> Path:
    """An arena as a killed tier leaves it, with the file of a holder that died too."""
    path = directory / name
    arena.create(path, 4 * _SLOT, _SLOT).close()  # the file stays, and so does its lock's
    lock_holder_file(path).release()
    assert path.exists()
    return path


def test_the_dead_are_found_and_removed_with_all_that_is_theirs(tmp_path: Path) -> None:
    paths = {left(tmp_path, "hifc-aa-0"), left(tmp_path, "hifc-aa-1")}
    found = leftovers.dead(tmp_path)
    assert set(found) == paths
    assert leftovers.remove(found) == 2
    assert not list(tmp_path.iterdir())
    assert leftovers.remove(found) == 0
    assert not list(tmp_path.iterdir())


def test_what_is_owned_is_left_alone(tmp_path: Path) -> None:
    path = left(tmp_path, "hifc-aa-0")
    found = leftovers.dead(tmp_path)
    owner = arena.create(path, 4 * _SLOT, _SLOT)
    assert leftovers.dead(tmp_path) == {}
    assert leftovers.remove(found) == 0
    owner.close(unlink=True)


def test_what_a_live_process_holds_is_left_alone(tmp_path: Path) -> None:
    path = left(tmp_path, "hifc-aa-0")
    found = leftovers.dead(tmp_path)
    holder = lock_holder_file(path)
    assert leftovers.dead(tmp_path) == {}
    assert leftovers.remove(found) == 0
    assert path.exists()
    assert not FileLock(arena.lock_path(path)).held
    holder.release()
    assert leftovers.remove(found) == 1


def test_one_that_was_made_anew_is_another(tmp_path: Path) -> None:
    path = left(tmp_path, "hifc-aa-0")
    found = {path: path.stat().st_ino + 1}
    assert leftovers.remove(found) == 0
    assert path.exists()


@pytest.mark.parametrize("content", [b"", b"somebody's notes", arena.MAGIC[:4]])
def test_files_of_others_are_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "hifc-notes").write_bytes(content)
    (tmp_path / "hifc-directory").mkdir()
    left(tmp_path, "another-name")
    assert leftovers.dead(tmp_path) == {}

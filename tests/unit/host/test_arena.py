from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash

from hifc_ray.errors import DirectoryLocked, ForeignFiles, NewerFormat, NoRoom, StorageError
from hifc_ray.host import Arena, arena
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.locks import is_locked

SLOT_BYTES = 2 * PAGE_BYTES
NUM_SLOTS = 5
SIZE = NUM_SLOTS * SLOT_BYTES
OWN = """
import sys
from pathlib import Path
from hifc_ray.host import arena
owner = arena.create(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
owner.slot(1)[:5] = b"bytes"
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hifc-test"


@pytest.fixture
def owner(path: Path) -> Iterator[Arena]:
    made = arena.create(path, SIZE, SLOT_BYTES)
    yield made
    made.close()


def write_header(path: Path, version: int = arena.VERSION, slots: int = NUM_SLOTS, *, damage: bool = False) -> None:
    """The header of an arena, of any version, on a file of an arena's size."""
    header = arena._HEADER.pack(arena.MAGIC, version, 0, slots, SLOT_BYTES, 1)
    body = bytearray(header + xxhash.xxh3_64_digest(header))
    if damage:
        body[20] ^= 1
    path.write_bytes(bytes(body).ljust(arena.file_bytes(NUM_SLOTS, SLOT_BYTES), b"\0"))


def test_created_whole_private_and_aligned(owner: Arena, path: Path) -> None:
    stat = path.stat()
    assert (owner.num_slots, owner.slot_bytes, owner.owned, owner.reattached) == (NUM_SLOTS, SLOT_BYTES, True, False)
    assert stat.st_mode & 0o777 == 0o600
    assert stat.st_size == arena.file_bytes(NUM_SLOTS, SLOT_BYTES)
    assert stat.st_blocks * 512 >= stat.st_size  # no holes: a full machine says so now
    for index in range(NUM_SLOTS):
        slot = owner.slot(index)
        assert (len(slot), slot.readonly) == (SLOT_BYTES, False)
        assert np.frombuffer(slot, np.uint8).ctypes.data % mmap.PAGESIZE == 0


def test_slots_do_not_overlap_and_are_bounded(owner: Arena) -> None:
    for index in range(NUM_SLOTS):
        owner.slot(index)[:] = bytes([index + 1]) * SLOT_BYTES
    assert [set(bytes(owner.slot(index))) for index in range(NUM_SLOTS)] == [{index + 1} for index in range(NUM_SLOTS)]
    assert not owner.table.state.any()  # and none lies over the table
    for index in (-1, NUM_SLOTS):
        with pytest.raises(IndexError, match=str(NUM_SLOTS)):
            owner.slot(index)


def test_slots_are_rounded_up_to_pages(path: Path) -> None:
    made = arena.create(path, SIZE, SLOT_BYTES - 1)
    assert (made.slot_bytes, made.num_slots) == (SLOT_BYTES, NUM_SLOTS)
    made.close(unlink=True)


def test_engines_map_the_same_bytes(owner: Arena, path: Path) -> None:
    engine = arena.attach(path)
    assert (engine.num_slots, engine.slot_bytes, engine.incarnation) == (NUM_SLOTS, SLOT_BYTES, owner.incarnation)
    assert not engine.owned
    engine.slot(2)[:4] = b"here"
    owner.table.generation[3] = 7
    assert bytes(owner.slot(2)[:4]) == b"here"
    assert engine.table.generation[3] == 7
    engine.close(unlink=True)
    assert path.exists()  # only its owner removes it


def test_a_restart_finds_the_same_memory_under_a_new_incarnation(path: Path) -> None:
    first = arena.create(path, SIZE, SLOT_BYTES)
    first.slot(1)[:5] = b"bytes"
    first.table.generation[1] = 3
    inode, incarnation = path.stat().st_ino, first.incarnation
    first.close()
    again = arena.create(path, SIZE, SLOT_BYTES)
    assert again.reattached
    assert path.stat().st_ino == inode
    assert again.incarnation not in (0, incarnation)
    assert bytes(again.slot(1)[:5]) == b"bytes"
    assert again.table.generation[1] == 3
    again.close(unlink=True)
    assert not path.exists()
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize(("size", "slot_bytes"), [(SIZE + SLOT_BYTES, SLOT_BYTES), (SIZE * 2, SLOT_BYTES * 2)])
def test_another_shape_is_another_arena(path: Path, size: int, slot_bytes: int) -> None:
    first = arena.create(path, SIZE, SLOT_BYTES)
    first.table.generation[:] = 9
    first.close()
    other = arena.create(path, size, slot_bytes)
    assert not other.reattached
    assert (other.num_slots, other.slot_bytes) == (size // slot_bytes, slot_bytes)
    assert not other.table.generation.any()
    other.close(unlink=True)


def test_a_live_owner_is_left_alone(owner: Arena, path: Path) -> None:
    with pytest.raises(DirectoryLocked, match=path.name):
        arena.create(path, SIZE * 2, SLOT_BYTES)
    assert arena.attach(path).num_slots == NUM_SLOTS


@pytest.mark.timeout(30)
def test_an_owner_in_another_process_and_its_death(path: Path) -> None:
    command = [sys.executable, "-c", OWN, str(path), str(SIZE), str(SLOT_BYTES)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"ready\n"
    with pytest.raises(DirectoryLocked):
        arena.create(path, SIZE, SLOT_BYTES)
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    heir = arena.create(path, SIZE, SLOT_BYTES)
    assert heir.reattached
    assert bytes(heir.slot(1)[:5]) == b"bytes"
    heir.close(unlink=True)


@pytest.mark.parametrize("content", [b"someone's photographs", bytes(64) + b"a disk image", bytes(8) + b"x" * 100])
def test_a_foreign_file_is_refused_and_untouched(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ForeignFiles, match=path.name):
        arena.create(path, SIZE, SLOT_BYTES)
    with pytest.raises(ForeignFiles):
        arena.attach(path)
    assert path.read_bytes() == content
    assert not is_locked(path.with_name(path.name + ".lock"))


@pytest.mark.parametrize("make", [lambda p: write_header(p, version=99), lambda p: write_header(p, damage=True)])
def test_newer_and_damaged_arenas_are_untouched(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    before = path.read_bytes()
    with pytest.raises((NewerFormat, ForeignFiles), match=path.name):
        arena.create(path, SIZE, SLOT_BYTES)
    with pytest.raises(StorageError):
        arena.attach(path)
    assert path.read_bytes() == before


def test_an_older_arena_is_made_anew_and_nobody_attaches_to_it(path: Path) -> None:
    write_header(path, version=arena.VERSION - 1)
    with pytest.raises(ForeignFiles, match=f"format {arena.VERSION - 1}; this release uses {arena.VERSION}"):
        arena.attach(path)
    made = arena.create(path, SIZE, SLOT_BYTES)
    assert not made.reattached
    made.close()
    again = arena.create(path, SIZE, SLOT_BYTES)
    assert again.reattached
    again.close(unlink=True)


def test_newer_says_what_this_release_reads(path: Path) -> None:
    write_header(path, version=99)
    with pytest.raises(NewerFormat, match=rf"format 99.*up to {arena.VERSION}"):
        arena.create(path, SIZE, SLOT_BYTES)


def test_killed_while_it_was_made_it_is_made_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(os, "posix_fallocate", die)
    with pytest.raises(Killed):
        arena.create(path, SIZE, SLOT_BYTES)
    assert path.exists()
    monkeypatch.undo()
    made = arena.create(path, SIZE, SLOT_BYTES)
    assert not made.reattached
    assert path.stat().st_blocks * 512 >= path.stat().st_size
    made.close(unlink=True)


def test_an_empty_file_is_an_arena_that_never_began(path: Path) -> None:
    path.touch()
    made = arena.create(path, SIZE, SLOT_BYTES)
    assert not made.reattached
    made.close(unlink=True)


def test_an_arena_that_was_cut_is_made_again(path: Path) -> None:
    arena.create(path, SIZE, SLOT_BYTES).close()
    with path.open("r+b") as file:
        file.truncate(arena.file_bytes(NUM_SLOTS, SLOT_BYTES) - 1)
    made = arena.create(path, SIZE, SLOT_BYTES)
    assert not made.reattached
    made.close(unlink=True)


class Shm:
    def __init__(self, free: int) -> None:
        self.f_bavail, self.f_frsize = free // PAGE_BYTES, PAGE_BYTES


@pytest.mark.parametrize("reader", ["memory", "shm"])
def test_too_little_memory_names_what_is_asked_and_what_there_is(
    path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    if reader == "memory":
        monkeypatch.setattr(arena, "available_memory_bytes", lambda: 32_000)
    else:
        monkeypatch.setattr(os, "statvfs", lambda _: Shm(32_768))
    with pytest.raises(NoRoom, match=r"host\.arena_bytes needs .* (32\.0|32\.8) KB") as caught:
        arena.create(path, SIZE, SLOT_BYTES)
    assert "\n" not in str(caught.value)
    assert not list(path.parent.iterdir())


def test_no_room_for_a_larger_arena_leaves_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arena.create(path, SIZE, SLOT_BYTES).close()
    monkeypatch.setattr(arena, "available_memory_bytes", lambda: 4 * SIZE)
    with pytest.raises(NoRoom):
        arena.create(path, 10 * SIZE, SLOT_BYTES)
    again = arena.create(path, SIZE, SLOT_BYTES)
    assert again.reattached
    again.close(unlink=True)


def test_the_room_of_the_old_arena_counts_for_the_new_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arena.create(path, SIZE, SLOT_BYTES).close()
    monkeypatch.setattr(arena, "available_memory_bytes", lambda: SLOT_BYTES)
    smaller = arena.create(path, SIZE - SLOT_BYTES, SLOT_BYTES)
    assert smaller.num_slots == NUM_SLOTS - 1
    smaller.close(unlink=True)


def test_an_arena_without_two_slots_is_refused(path: Path) -> None:
    with pytest.raises(NoRoom, match=rf"host\.arena_bytes is {SLOT_BYTES}.*at least {2 * SLOT_BYTES}"):
        arena.create(path, SLOT_BYTES, SLOT_BYTES)


def test_a_disk_that_fills_on_the_way_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoRoom, match="No space left"):
        arena.create(path, SIZE, SLOT_BYTES)
    assert not list(path.parent.iterdir())


def test_a_directory_that_is_not_there_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        arena.create(tmp_path / "nowhere" / "arena", SIZE, SLOT_BYTES)


def test_something_else_than_a_file_is_foreign(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StorageError, match=path.name):
        arena.create(path, SIZE, SLOT_BYTES)
    assert path.is_dir()


def test_memory_is_read_from_this_machine() -> None:
    assert arena.available_memory_bytes() > 1 << 20

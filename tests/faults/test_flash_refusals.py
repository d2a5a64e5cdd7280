"""Directories that the cache may not use: one line that names them and says what is allowed; nothing is touched."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hifc_ray.errors import DirectoryLocked, FlashFull, ForeignFiles, NewerFormat, NoRoom, StorageError
from hifc_ray.flash import FaultyDevice, MemoryDevice
from hifc_ray.flash.format import CHECKPOINT_NAME, FAULTS_NAME, PURGES_NAME, hint_name, segment_name
from hifc_ray.stats import Stats
from hifc_ray.types import Tier
from tests.fakes.flash import (
    SEGMENT_BYTES,
    abandon,
    block,
    blocks,
    open_store,
    stored_numbers,
)

pytestmark = pytest.mark.timeout(60)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def one_line(error: BaseException, *parts: object) -> None:
    text = str(error)
    assert "\n" not in text
    for part in parts:
        assert str(part) in text


def test_a_missing_directory_says_how_to_make_it(tmp_path: Path) -> None:
    missing = tmp_path / "not" / "there"
    with pytest.raises(StorageError) as caught:
        open_store(missing)
    one_line(caught.value, missing, "mkdir -p")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(StorageError) as caught:
        open_store(file)
    one_line(caught.value, file, "allowed")
    assert file.read_text() == "mine"


def test_a_read_only_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK and real(path, mode))
    with pytest.raises(StorageError) as caught:
        open_store(tmp_path)
    one_line(caught.value, tmp_path, "read-only", "allowed")
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    def statvfs(path: Any) -> os.statvfs_result:
        values = list(real(path))
        values[8] |= os.ST_RDONLY
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", statvfs)
    with pytest.raises(StorageError, match="read-only"):
        open_store(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["photo.jpg", "0000000000000001.segment.bak", "LOCK.old", "x.tmp", "1.segment"])
def test_foreign_files_are_named_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"dear to somebody")
    before = contents(tmp_path)
    with pytest.raises(ForeignFiles) as caught:
        open_store(tmp_path)
    one_line(caught.value, tmp_path, name, "allowed")
    assert contents(tmp_path) == before


def test_a_foreign_directory_is_foreign_too(tmp_path: Path) -> None:
    (tmp_path / "holiday").mkdir()
    with pytest.raises(ForeignFiles, match="holiday"):
        open_store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday"]


def test_foreign_files_among_ours_stop_us_as_well(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(blocks(range(5)))
    abandon(store)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / (hint_name(1) + ".tmp")).write_bytes(b"half")
    before = contents(tmp_path)
    with pytest.raises(ForeignFiles):
        open_store(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", [segment_name(2), hint_name(2)])
def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    with open_store(tmp_path) as store:
        store.append(blocks(range(25)))
    (tmp_path / (hint_name(1) + ".tmp")).write_bytes(b"half")
    data = bytearray((tmp_path / name).read_bytes())
    data[8:16] = struct.pack("<II", 3, 3 ^ 0xFFFFFFFF)
    data[16:32] = os.urandom(16)  # a newer release may lay out the rest as it likes
    (tmp_path / name).write_bytes(data)
    before = contents(tmp_path)
    with pytest.raises(NewerFormat) as caught:
        open_store(tmp_path)
    one_line(caught.value, "format 3", "allowed")
    assert contents(tmp_path) == before
    with pytest.raises(NewerFormat):  # and not DirectoryLocked: the lock was given back
        open_store(tmp_path)


def test_two_stores_in_one_directory(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.append([block(1)])
        before = contents(tmp_path)
        with pytest.raises(DirectoryLocked) as caught:
            open_store(tmp_path)
        one_line(caught.value, tmp_path, "allowed")
        assert contents(tmp_path) == before
        assert stored_numbers(store, [1]) == [1]
    open_store(tmp_path).close()


def test_a_directory_that_another_live_process_owns(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from hifc_ray.flash import FileDevice\n"
        "FileDevice(Path(sys.argv[1])).lock(); print('locked', flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdin is not None
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == b"locked\n"
        with pytest.raises(DirectoryLocked):
            open_store(tmp_path)
    finally:
        owner.kill()
        owner.wait()
        owner.stdin.close()
        owner.stdout.close()
    open_store(tmp_path).close()


def test_a_disk_without_room_for_one_segment() -> None:
    device = MemoryDevice(capacity_bytes=SEGMENT_BYTES - 4096)
    with pytest.raises(NoRoom) as caught:
        open_store(device)
    one_line(caught.value, "memory", SEGMENT_BYTES - 4096, SEGMENT_BYTES, "allowed")


def test_a_full_disk_still_serves_what_it_holds() -> None:
    device = MemoryDevice(capacity_bytes=SEGMENT_BYTES + 4096)
    with open_store(device) as store:
        store.append(blocks(range(20)))
    with open_store(device) as store:
        assert stored_numbers(store, range(20)) == list(range(20))


def test_disk_full_while_running_refuses_stores_and_loses_nothing() -> None:
    stats = Stats()
    device = FaultyDevice(MemoryDevice())
    with open_store(device, stats) as store:
        store.append(blocks(range(20)))
        device.fail("create", errno.ENOSPC, count=None)
        used = store.used_bytes
        for attempt in range(1, 4):
            with pytest.raises(FlashFull, match="no room for a segment"):
                store.append([block(20)])
            assert stats.get("write_refused", tier=Tier.FLASH, reason="full") == attempt
        assert store.used_bytes <= used
        assert stored_numbers(store, range(21)) == list(range(20))
        device.heal()
        store.append([block(20)])
        assert stored_numbers(store, range(21)) == list(range(21))
        assert stats.get("dropped_blocks") == 0


def test_a_device_that_fails_at_every_write_costs_no_stored_block() -> None:
    """Were each failure to begin a new segment, a broken drive would wipe the cache one segment after another."""
    stats = Stats()
    device = FaultyDevice(MemoryDevice())
    with open_store(device, stats, max_faults=1000) as store:
        store.append(blocks(range(110)))
        device.fail("write", count=None)
        for number in range(110, 170):
            with pytest.raises(OSError, match="Input/output"):
                store.append([block(number)])
        device.heal()
        assert stats.get("write_refused", tier=Tier.FLASH, reason="error") == 60
        assert stored_numbers(store, range(170)) == list(range(110))


def test_a_device_that_deletes_nothing_costs_no_stored_block() -> None:
    """As one that was mounted read-only after an error: making room must not forget what then stays."""
    device = FaultyDevice(MemoryDevice())
    with open_store(device, max_faults=1000) as store:
        store.append(blocks(range(120)))
        device.fail("delete", errno.EROFS, count=None)
        stored = list(range(120))
        for number in range(120, 180):
            with suppress(OSError):
                store.append([block(number)])
                stored.append(number)
        assert len(stored) <= 140  # the segment that was kept free is full then
        assert stored_numbers(store, range(180)) == stored
        assert store.used_bytes <= store.limit_bytes
        device.heal()
        store.append(blocks(range(180, 190)))
        assert stored_numbers(store, range(180, 190)) == list(range(180, 190))


def test_small_files_keep_to_the_limit_too() -> None:
    with open_store(MemoryDevice()) as store:
        store.append(blocks(range(115)))
        files = store.volumes[0].files
        room = store.limit_bytes - store.used_bytes
        files.put(PURGES_NAME, bytes(4096))
        with pytest.raises(OSError, match="no room for") as caught:
            files.put(CHECKPOINT_NAME, bytes(room))
        assert caught.value.errno == errno.EDQUOT
        assert store.used_bytes <= store.limit_bytes
        files.put(CHECKPOINT_NAME, bytes(room // 4))
        store.append(blocks(range(115, 140)))
        assert store.used_bytes <= store.limit_bytes
        with pytest.raises(FileNotFoundError):
            files.get(FAULTS_NAME)


def test_what_earlier_writes_of_a_batch_stored_stays() -> None:
    device = FaultyDevice(MemoryDevice())
    with open_store(device) as store:
        store.append([block(0)])
        device.fail("create", errno.ENOSPC, count=None)
        with pytest.raises(FlashFull):
            store.append(blocks(range(1, 40)))
        assert stored_numbers(store, range(40)) == list(range(20))


def test_a_store_that_could_not_open_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(tmp_path) as store:
        store.append([block(1)])
    real = os.preadv

    def preadv(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(StorageError, match=f"^flash directory {tmp_path} cannot be opened: .*Input/output error"):
        open_store(tmp_path)
    monkeypatch.setattr(os, "preadv", real)
    with open_store(tmp_path) as store:
        assert stored_numbers(store, [1]) == [1]

from __future__ import annotations

import errno
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hifc_ray.errors import DirectoryLocked, StorageError
from hifc_ray.flash import FileDevice
from hifc_ray.flash.device import pages
from hifc_ray.flash.format import CHECKPOINT_NAME, LOCK_NAME
from tests.fakes.flash import blocks, open_store, stored_numbers


@pytest.mark.parametrize("refusal", ["open", "read"])
def test_where_o_direct_is_refused_it_falls_back_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusal: str
) -> None:
    real_open, real_preadv, direct = os.open, os.preadv, set()

    def open_(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_DIRECT and refusal == "open":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fd = real_open(path, flags, *rest, **named)
        if flags & os.O_DIRECT:
            direct.add(fd)
        else:
            direct.discard(fd)
        return fd

    def preadv(fd: int, *rest: Any) -> int:
        if fd in direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_preadv(fd, *rest)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "preadv", preadv)
    with open_store(tmp_path) as store:
        store.append(blocks(range(25)))
        assert not store.direct
        assert caplog.messages == [f"{tmp_path}: its file system refuses O_DIRECT; I/O goes through the page cache"]
        assert stored_numbers(store, range(25)) == list(range(25))


def test_a_memory_file_system_serves_too(caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hifc-flash-") as name, open_store(Path(name)) as store:
        store.append(blocks(range(5)))
        assert stored_numbers(store, range(5)) == list(range(5))
        assert store.direct != ("refuses O_DIRECT" in caplog.text), "kernels before 6.6 refuse it there"


def test_the_root_of_a_fresh_file_system_is_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    with open_store(tmp_path) as store:
        store.append(blocks(range(2)))
    assert (tmp_path / "lost+found").exists()


def test_an_error_other_than_refusal_is_no_reason_to_fall_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = FileDevice(tmp_path)
    device.create("0000000000000001.segment", 8192).close()

    def preadv(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(OSError, match="Input/output"):
        device.open("0000000000000001.segment")
    assert device.direct


def test_a_hint_that_fails_halfway_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space"):
        FileDevice(tmp_path).put("0000000000000001.hint", b"data")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_made_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = FileDevice(tmp_path)

    def open_(*_: Any) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", open_)
    with pytest.raises(StorageError, match=r"cannot be locked \(Read-only file system\); allowed"):
        device.lock()


EXTENT = "0000000000000001.segment"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A directory that a device has locked, written to and left."""
    device = FileDevice(tmp_path)
    device.lock()
    extent = device.create(EXTENT, 8192)
    data = pages(4096)
    data[:] = b"x" * 4096
    extent.pwritev([data], 4096)
    extent.close()
    device.put(CHECKPOINT_NAME, b"kept")
    device.unlock()
    return tmp_path


def test_everything_is_its_owners_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o2755)
    previous = os.umask(0)
    try:
        device = FileDevice(tmp_path)
        device.lock()
        device.create(EXTENT, 8192).close()
        device.put(CHECKPOINT_NAME, b"data")
    finally:
        os.umask(previous)
    assert mode(tmp_path) == 0o2700
    assert {path.name: mode(path) for path in tmp_path.iterdir()} == dict.fromkeys(
        (LOCK_NAME, EXTENT, CHECKPOINT_NAME), 0o600
    )
    device.unlock()


def test_a_directory_that_is_not_ours_alone_keeps_its_mode_and_is_spoken_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "notes.txt").touch()
    tmp_path.chmod(0o755)
    device = FileDevice(tmp_path)
    device.lock()
    assert mode(tmp_path) == 0o755
    device.unlock()
    (tmp_path / "notes.txt").unlink()
    tmp_path.chmod(0o1777)
    device.lock()
    assert mode(tmp_path) == 0o1777
    device.unlock()
    assert [message.split("(")[1].split(")")[0] for message in caplog.messages] == ["mode 755", "mode 1777"]


def test_only_reading_changes_nothing(used: Path) -> None:
    used.chmod(0o755)
    before = {path.name: (mode(path), path.read_bytes()) for path in used.iterdir()}
    device = FileDevice(used, read_only=True)
    device.lock()
    for change in (
        lambda: device.create("0000000000000002.segment", 8192),
        lambda: device.put(CHECKPOINT_NAME, b"other"),
        lambda: device.delete(EXTENT),
    ):
        with pytest.raises(OSError, match="Read-only") as caught:
            change()
        assert caught.value.errno == errno.EROFS
    extent = device.open(EXTENT)
    out = pages(4096)
    assert extent.preadv([out], 4096) == 4096
    assert bytes(out) == b"x" * 4096
    for spoil in (lambda: extent.pwritev([pages(4096)], 0), lambda: extent.truncate(0)):
        with pytest.raises(OSError):
            spoil()
    extent.close()
    assert device.get(CHECKPOINT_NAME) == b"kept"
    device.unlock()
    assert {path.name: (mode(path), path.read_bytes()) for path in used.iterdir()} == before
    assert mode(used) == 0o755


def test_several_may_read_what_nobody_writes(used: Path) -> None:
    first, second, writer = FileDevice(used, read_only=True), FileDevice(used, read_only=True), FileDevice(used)
    first.lock()
    second.lock()
    with pytest.raises(DirectoryLocked):
        writer.lock()
    first.unlock()
    second.unlock()
    writer.lock()
    with pytest.raises(DirectoryLocked, match="only read"):
        first.lock()
    writer.unlock()
    first.lock()
    first.unlock()


def test_a_copy_without_its_lock_can_be_read(used: Path) -> None:
    (used / LOCK_NAME).unlink()
    device = FileDevice(used, read_only=True)
    device.lock()
    assert set(device.sizes()) == {EXTENT, CHECKPOINT_NAME}
    device.unlock()


def test_another_users_lock_does_not_keep_a_reader_out(used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def open_(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if Path(path).name == LOCK_NAME:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real_open(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", open_)
    FileDevice(used, read_only=True).lock()
    with pytest.raises(StorageError, match="cannot be locked"):
        FileDevice(used).lock()


def test_a_read_only_directory_is_for_reading(used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _, wanted: not wanted & os.W_OK)
    with pytest.raises(StorageError, match="read-only; allowed"):
        FileDevice(used)
    FileDevice(used, read_only=True)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StorageError, match="closed to this user; allowed"):
        FileDevice(used, read_only=True)


def test_it_falls_back_once(used: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    real_open = os.open

    def open_(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_open(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", open_)
    device = FileDevice(used, read_only=True)
    assert device.direct
    for _ in range(3):
        device.open(EXTENT).close()
    assert not device.direct
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("failing", ["the file", "the directory"])
def test_data_that_may_not_be_durable_is_an_error(used: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    real_fsync, calls = os.fsync, []

    def fsync(fd: int) -> None:
        calls.append(fd)
        if len(calls) == ("the file", "the directory").index(failing) + 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output"):
        FileDevice(used).put(CHECKPOINT_NAME, b"new")
    assert (used / CHECKPOINT_NAME).read_bytes() == (b"kept" if failing == "the file" else b"new")


def test_capacity_is_that_of_the_file_system(tmp_path: Path) -> None:
    device = FileDevice(tmp_path)
    assert (
        0
        < device.free_bytes()
        < device.capacity_bytes()
        == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    )

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hifc_ray.errors import StorageError
from hifc_ray.flash import FileDevice
from tests.fakes.flash import blocks, open_store, stored_numbers


@pytest.mark.parametrize("refusal", ["open", "read"])
def test_where_o_direct_is_refused_it_falls_back_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
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
        assert stored_numbers(store, range(25)) == list(range(25))


def test_a_memory_file_system_serves_too() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hifc-flash-") as name, open_store(Path(name)) as store:
        store.append(blocks(range(5)))
        assert stored_numbers(store, range(5)) == list(range(5))


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

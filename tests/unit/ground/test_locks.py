from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hifc_ray.errors import HifcError
from hifc_ray.locks import FileLock, is_locked

HOLD = """
import sys
from pathlib import Path
from hifc_ray.locks import FileLock
lock = FileLock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_two_locks_exclude_each_other(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)
    assert first.acquire()
    assert not second.acquire()
    assert (first.held, second.held) == (True, False)
    first.release()
    assert second.acquire()
    assert not first.acquire()
    second.release()


def test_acquire_and_release_twice_are_once(path: Path) -> None:
    lock = FileLock(path)
    assert lock.acquire()
    assert lock.acquire()
    lock.release()
    lock.release()
    assert not is_locked(path)


def test_the_file_is_private(path: Path) -> None:
    with FileLock(path) as lock:
        assert lock.acquire()
        assert path.stat().st_mode & 0o777 == 0o600


def test_leaving_the_block_releases(path: Path) -> None:
    with FileLock(path) as lock:
        lock.acquire()
        assert is_locked(path)
    assert not is_locked(path)


def test_asking_whether_it_is_locked_takes_nothing(path: Path) -> None:
    assert not is_locked(path)
    assert not path.exists()
    path.touch()
    assert not is_locked(path)
    assert FileLock(path).acquire()


@pytest.mark.timeout(30)
def test_a_killed_process_holds_nothing(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert is_locked(path)
        assert not FileLock(path).acquire()
        holder.kill()
        holder.wait()
        assert not is_locked(path)
        assert FileLock(path).acquire()


def test_a_file_unlinked_between_open_and_lock_is_not_believed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder unlinks and releases just after we opened its file: our lock must be on the file that has the name."""
    holder, late = FileLock(path), FileLock(path)
    assert holder.acquire()
    plain_flock = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", plain_flock)
        holder.release(unlink=True)
        plain_flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert late.acquire()
    assert path.exists()
    assert not FileLock(path).acquire()
    late.release()


def test_release_with_unlink_removes_the_file(path: Path) -> None:
    lock = FileLock(path)
    assert lock.acquire()
    lock.release(unlink=True)
    assert not path.exists()
    lock.release(unlink=True)


def test_a_lock_is_not_inherited_by_programs_that_we_start(path: Path) -> None:
    with FileLock(path) as lock:
        assert lock.acquire()
        assert path in {Path(fd).resolve() for fd in Path("/proc/self/fd").iterdir()}
        listing = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True).stdout
        assert str(path) not in listing


def test_a_directory_that_is_missing_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        FileLock(tmp_path / "none" / "lock").acquire()
    assert not isinstance(caught.value, HifcError)


def test_who_only_asks_does_not_keep_others_out(path: Path) -> None:
    """A tier that starts again takes its lock while engines ask whether it lives."""
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            is_locked(path)

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for asker in askers:
        asker.start()
    try:
        for _ in range(200):
            lock = FileLock(path)
            assert lock.acquire()
            lock.release()
    finally:
        stop.set()
        for asker in askers:
            asker.join()


def test_shared_locks_exclude_only_exclusive_ones(path: Path) -> None:
    first, second, alone = FileLock(path, shared=True), FileLock(path, shared=True), FileLock(path)
    with pytest.raises(FileNotFoundError):
        first.acquire()
    path.touch()
    assert first.acquire()
    assert second.acquire()
    assert not alone.acquire()
    first.release()
    second.release()
    assert alone.acquire()
    assert not first.acquire()
    alone.release()

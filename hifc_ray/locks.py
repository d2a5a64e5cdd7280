"""Liveness is a lock, not a guess: a process is alive as long as it holds an flock on its own file."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

_ASKING_S = 0.1  # `is_locked` has the lock for some microseconds, more if its process is not let run


class FileLock:
    """A flock on `path`, held until `release` or the death of the process. Exclusive, on a file made 0600 if need be.

    With `shared` it excludes only exclusive ones and makes nothing: no such file raises FileNotFoundError.
    flock belongs to the open file, so two `FileLock`s in one process exclude each other like two processes.
    """

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        self.path = path
        self._flags = os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT
        self._operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._fd = -1

    def acquire(self) -> bool:
        """True if the lock is now held; False if a live process has it. Waits only for who is just asking."""
        if self._fd >= 0:
            return True
        give_up_s = time.monotonic() + _ASKING_S
        while True:
            fd = os.open(self.path, self._flags | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, self._operation | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                if time.monotonic() >= give_up_s:
                    return False
                time.sleep(_ASKING_S / 20)
                continue
            # Whoever released the lock may have unlinked the file between our open and our flock.
            if _same_file(fd, self.path):
                self._fd = fd
                return True
            os.close(fd)

    @property
    def held(self) -> bool:
        return self._fd >= 0

    def release(self, *, unlink: bool = False) -> None:
        """Give the lock back, once; with `unlink` the file goes first, while it is still ours."""
        if self._fd < 0:
            return
        if unlink:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


def is_locked(path: Path) -> bool:
    """Does a live process hold the lock on `path`? A file that is not there is not locked."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that ask do not take each other for the holder
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _same_file(fd: int, path: Path) -> bool:
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)

"""Runs a tool of the system that may hang: never waits beyond its time, never reads beyond its bytes."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

_SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"  # often not on the path of those who are not root
_END_S = 1.0  # for a killed process to be gone; one that waits for a dead device goes when the device lets it


@dataclass(frozen=True)
class Outcome:
    """What a tool printed, or why there is nothing to be had from it (one line)."""

    output: str = ""
    problem: str = ""


class Commands:
    """Runs tools with a time limit. Safe from any thread.

    One that cannot be ended (it waits in the kernel for a dead device) is left behind and not started again with the
    same arguments until it has gone, so that they do not pile up.
    """

    def __init__(self, timeout_s: float = 5.0, most_bytes: int = 1 << 16) -> None:
        self._timeout_s, self._most_bytes = timeout_s, most_bytes
        self._lock = threading.Lock()
        self._left_behind: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}

    def __call__(self, command: Sequence[str]) -> Outcome:
        """Never raises."""
        program = shutil.which(command[0]) or shutil.which(command[0], path=_SYSTEM_FOLDERS)
        if program is None:
            return Outcome(problem=f"{command[0]} is not installed")
        key = tuple(command)
        with self._lock:
            stuck = self._left_behind.get(key)
            if stuck is not None and stuck.poll() is None:
                return Outcome(problem=f"{command[0]} started earlier still hangs (pid {stuck.pid})")
            self._left_behind.pop(key, None)
        try:
            process = _start([program, *command[1:]])
        except OSError as error:
            return Outcome(problem=f"{command[0]}: {error.strerror}")
        printed, problem = self._read(process)
        if not _end(process):
            with self._lock:
                self._left_behind[key] = process
        if problem:
            return Outcome(problem=f"{command[0]} {problem}")
        output, complaints = printed
        if process.returncode != 0:
            return Outcome(problem=_first_line(complaints or output) or f"{command[0]} failed: {process.returncode}")
        return Outcome(output.decode("utf-8", "replace"))

    def _read(self, process: subprocess.Popen[bytes]) -> tuple[list[bytes], str]:
        """Its stdout and stderr, and why it has to be ended, if it has not ended by itself."""
        printed, deadline = [b"", b""], time.monotonic() + self._timeout_s
        with selectors.DefaultSelector() as waiting:
            for number, pipe in enumerate((process.stdout, process.stderr)):
                assert pipe is not None
                waiting.register(pipe, selectors.EVENT_READ, number)
            while waiting.get_map() and time.monotonic() < deadline:
                for key, _ in waiting.select(deadline - time.monotonic()):
                    some = os.read(key.fd, 1 << 14)
                    printed[key.data] += some
                    if not some:
                        waiting.unregister(key.fileobj)
                    if len(printed[key.data]) > self._most_bytes:
                        return printed, f"printed more than {self._most_bytes} bytes"
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return printed, f"gave no answer within {self._timeout_s:g} s"
        return printed, ""


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that its children can be ended with it
    )


def _end(process: subprocess.Popen[bytes]) -> bool:
    """Closes its pipes and ends it; False if it does not go."""
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(_END_S)
        except (ProcessLookupError, PermissionError):
            return process.poll() is not None
        except subprocess.TimeoutExpired:
            return False
    return True


def _first_line(printed: bytes) -> str:
    lines = [line.strip() for line in printed.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[0][:200] if lines else ""

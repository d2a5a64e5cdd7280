"""Tools that answer, fail, hang, flood, and will not die."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hifc_ray.health import command
from hifc_ray.health.command import Commands, Outcome

pytestmark = pytest.mark.timeout(30)
Tool = Callable[[str], str]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Makes an executable called nvme from lines of shell."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def make(script: str) -> str:
        path = tmp_path / "nvme"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return "nvme"

    return make


def test_what_it_prints(tool: Tool) -> None:
    assert Commands()([tool("echo $1; echo remark >&2"), "hello"]) == Outcome("hello\n")


def test_what_is_not_installed() -> None:
    assert Commands()(["no-such-tool-here"]) == Outcome(problem="no-such-tool-here is not installed")


def test_a_failure_is_told_by_its_first_complaint(tool: Tool) -> None:
    name = tool("echo '/dev/nvme0: Permission denied' >&2; echo usage >&2; exit 1")
    assert Commands()([name]) == Outcome(problem="/dev/nvme0: Permission denied")
    assert Commands()([tool("exit 3")]) == Outcome(problem="nvme failed: 3")


def test_a_tool_that_hangs_is_ended_with_its_children(tool: Tool, tmp_path: Path) -> None:
    name = tool(f"sleep 60 & echo $! > {tmp_path}/child; wait")
    started = time.monotonic()
    assert Commands(timeout_s=0.5)([name]) == Outcome(problem="nvme gave no answer within 0.5 s")
    assert time.monotonic() - started < 5
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not _runs(child):
            break
        time.sleep(0.02)
    assert not _runs(child)


def test_a_tool_that_closes_its_output_and_hangs(tool: Tool) -> None:
    name = tool("exec >&- 2>&-; sleep 60")
    assert "no answer within 0.3 s" in Commands(timeout_s=0.3)([name]).problem


def test_a_flood_is_cut(tool: Tool) -> None:
    outcome = Commands(timeout_s=20, most_bytes=1000)([tool("yes")])
    assert outcome == Outcome(problem="nvme printed more than 1000 bytes")


def test_garbage_is_text(tool: Tool) -> None:
    assert "�" in Commands()([tool(r"printf '\377\376{}'")]).output


def test_one_that_does_not_die_is_not_started_again(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    name, started = tool("sleep 60"), []
    start, end = command._start, command._end

    def counted(line: list[str]) -> subprocess.Popen[bytes]:
        started.append(start(line))
        return started[-1]

    monkeypatch.setattr(command, "_start", counted)
    monkeypatch.setattr(command, "_end", lambda process: False)
    commands = Commands(timeout_s=0.2)
    try:
        assert "no answer" in commands([name, "one"]).problem
        assert "still hangs" in commands([name, "one"]).problem
        assert "no answer" in commands([name, "other"]).problem
        assert len(started) == 2
    finally:
        assert all(end(process) for process in started)
    tool("echo well again")
    assert commands([name, "one"]).output == "well again\n"


def test_what_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "nvme"
    path.write_bytes(b"\x7fELF garbage")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "nvme: " in Commands()(["nvme"]).problem


def test_nothing_is_left_open(tool: Tool) -> None:
    name, commands = tool("echo x"), Commands(timeout_s=0.1)
    commands([name])
    before = len(list(Path("/proc/self/fd").iterdir()))
    for script in ("echo x", "exit 1", "sleep 60", "yes"):
        commands([tool(script), script])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def _runs(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False

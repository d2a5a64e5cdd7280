"""kill -9 of a process that stores, serves and demotes, its arena kept: nothing committed is lost, nothing is wrong.

Flash has room for everything that the child stores, so each block whose commit has returned must be served again, from
host memory or from flash, with exactly its bytes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.tier import WAIT_S, in_host, on_flash, open_tier, serve

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
QUIET = subprocess.DEVNULL
BLOCKS = 150
CHILD = """
import os, signal, sys
from pathlib import Path
from hifc_ray import points
from tests.fakes.tier import in_host, open_tier, serve
from tests.fakes.blocks import store

directory, point, visits = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def die():
    global visits
    visits -= 1
    if not visits:
        os.kill(os.getpid(), signal.SIGKILL)

tier = open_tier(directory, flash=directory / "flash", low_watermark=0.25, high_watermark=0.5, background=True)
with points.at(point, die):
    for number in range(150):
        while not store(tier, [number]) and not in_host(tier, [number]):
            tier.idle(1.0)
        os.write(1, b"%d\\n" % number)
        if number % 3 == 0:
            serve(tier, range(max(0, number - 20), number))
os.write(1, b"all\\n")
sys.stdin.read()
"""
POINTS = [
    ("tier.reserve.before", 40),
    ("tier.reserve.after", 40),
    ("tier.commit.before", 40),
    ("tier.commit.after", 40),
    ("tier.evict.before", 3),
    ("tier.evict.after", 3),
    ("tier.demote.before", 3),
    ("tier.demote.after", 3),
    ("host.reserve.named", 40),
    ("host.commit.published", 40),
    ("host.lease.marked", 10),
    ("host.release.cleared", 10),
    ("host.forget.withdrawn", 4),
    ("flash.append.header", 3),
    ("flash.append.written", 3),
    ("flash.read.before", 5),
    ("flash.read.done", 5),
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "flash").mkdir()
    return tmp_path


def command(directory: Path, point: str, visits: int) -> list[str]:
    return [sys.executable, "-c", CHILD, str(directory), point, str(visits)]


def check_reopened(directory: Path, returned: list[int]) -> None:
    """Everything that was committed is served exactly; books and arena are sound and go on."""
    assert returned == list(range(len(returned)))
    assert returned
    tier = open_tier(directory, flash=directory / "flash", low_watermark=0.25, high_watermark=0.5)
    assert tier._arena.reattached
    tier.check()
    counts = tier._books.counts()
    assert (counts["reserved"], counts["leased"], counts["demoting"], counts["quarantined"]) == (0, 0, 0, 0)
    assert in_host(tier, range(BLOCKS))
    everywhere = {*in_host(tier, range(BLOCKS)), *on_flash(tier, range(BLOCKS))}
    assert everywhere >= set(returned)
    assert everywhere <= {*returned, len(returned)}  # the one that was being committed may be there
    for number in sorted(everywhere):
        tier.tick()  # before each: the arena may have been full when its owner was killed
        assert tier.idle(WAIT_S)
        assert serve(tier, [number]) == [number]
    tier.check()
    assert tier.stats.get("corrupt") == 0
    tier.close()
    assert not list(directory.glob("hifc-test*"))


@pytest.mark.parametrize(("point", "visits"), POINTS)
def test_killed_at_a_named_point(directory: Path, point: str, visits: int) -> None:
    done = subprocess.run(
        command(directory, point, visits),
        cwd=ROOT,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.returncode == -9, done.stderr.decode()
    check_reopened(directory, [int(line) for line in done.stdout.split()])


@pytest.mark.parametrize("after", [25, 70, 110])
def test_killed_between_any_two_instructions(directory: Path, after: int) -> None:
    child = subprocess.Popen(
        command(directory, "nowhere", 1), cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdin is not None
    returned = [int(child.stdout.readline()) for _ in range(after)]
    child.kill()
    returned += [int(line) for line in child.stdout.read().split() if line.isdigit()]
    child.stdout.close()
    child.stdin.close()
    child.wait()
    check_reopened(directory, returned)


def test_killed_twice_in_a_row(directory: Path) -> None:
    for visits in (60, 30):
        done = subprocess.run(
            command(directory, "tier.commit.after", visits), cwd=ROOT, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == -9, done.stderr.decode()
    check_reopened(directory, list(range(59)))

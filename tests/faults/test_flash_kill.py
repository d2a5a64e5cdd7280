"""kill -9 of a process that stores blocks, at each named point: every block whose append returned is there, exactly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.flash import open_store, stored_numbers

pytestmark = pytest.mark.timeout(120)

CHILD = """
import os, signal, sys
from pathlib import Path
from hifc_ray import points
from tests.fakes.flash import block, open_store

directory, point, visits = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def die():
    global visits
    visits -= 1
    if not visits:
        os.kill(os.getpid(), signal.SIGKILL)

store = open_store(directory)
with points.at(point, die):
    for number in range(400):
        store.append([block(number)])
        os.write(1, b"%d\\n" % number)
"""
RECOVER = """
import os, signal, sys
from pathlib import Path
from hifc_ray import points
from tests.fakes.flash import open_store

with points.at("flash.hint.tmp", lambda: os.kill(os.getpid(), signal.SIGKILL)):
    open_store(Path(sys.argv[1]))
"""
ROOT = Path(__file__).parents[2]
PER_SEGMENT, NUM_SEGMENTS = 20, 6


def returned_appends(directory: Path, point: str, visits: int) -> list[int]:
    """Runs the child until it dies at this point; the numbers of the blocks whose append returned."""
    command = [sys.executable, "-c", CHILD, str(directory), point, str(visits)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr.decode()
    return [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize(
    ("point", "visits", "num_dropped"),
    [
        ("flash.append.header", 1, 0),
        ("flash.append.header", 33, 0),
        ("flash.append.written", 33, 0),
        ("flash.seal.before", 2, 0),
        ("flash.hint.tmp", 2, 0),
        ("flash.hint.renamed", 2, 0),
        ("flash.append.part", 33, 0),
        ("flash.seal.footer", 2, 0),
        ("flash.seal.synced", 2, 0),
        ("flash.reclaim.before", 2, 1),
        ("flash.drop.before", 2, 1),
        ("flash.drop.hint", 2, 1),
        ("flash.drop.index", 2, 2),
    ],
)
def test_every_block_whose_append_returned_is_there(tmp_path: Path, point: str, visits: int, num_dropped: int) -> None:
    returned = returned_appends(tmp_path, point, visits)
    assert returned == list(range(len(returned)))
    with open_store(tmp_path) as store:
        found = stored_numbers(store, range(400))
        assert set(found) >= set(returned[num_dropped * PER_SEGMENT :])
        assert set(found) <= {*returned, len(returned)}  # the one that was written and not yet answered may be there
        assert store.used_bytes <= store.limit_bytes
        assert store.recovered.num_scanned == {"flash.hint.renamed": 0, "flash.drop.hint": 2}.get(point, 1)
    assert not list(tmp_path.glob("*.tmp"))


def test_a_process_killed_between_any_two_instructions(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path), "nowhere", "1"]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout is not None
    returned = [int(child.stdout.readline()) for _ in range(50)]
    child.kill()
    returned += [int(line) for line in child.stdout.read().split() if line]
    child.stdout.close()
    child.wait()
    with open_store(tmp_path) as store:
        found = stored_numbers(store, range(400))
        newest = returned[-(NUM_SEGMENTS - 1) * PER_SEGMENT :]
        assert set(found) >= set(newest)


def test_killed_while_it_recovers_it_recovers_the_next_time(tmp_path: Path) -> None:
    returned = returned_appends(tmp_path, "flash.append.header", 11)
    command = [sys.executable, "-c", RECOVER, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, timeout=60, check=False).returncode == -9
    with open_store(tmp_path) as store:
        assert stored_numbers(store, range(400)) == returned

"""kill -9 at every named point and between, hundreds of times, of a process that stores, reads, purges and reclaims."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hifc_ray.flash import FlashStore
from tests.fakes.flash import abandon, key, load, payload
from tests.fakes.killed import Told, open_telling, run_until_killed

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

# The point, and up to how many visits a process lives on average.
POINTS = {
    "flash.append.header": 40,
    "flash.append.part": 150,
    "flash.append.written": 40,
    "flash.seal.before": 5,
    "flash.seal.footer": 5,
    "flash.seal.synced": 5,
    "flash.hint.tmp": 6,
    "flash.hint.renamed": 6,
    "flash.reclaim.before": 5,
    "flash.reclaim.carried": 5,
    "flash.drop.before": 5,
    "flash.drop.hint": 5,
    "flash.drop.blank": 5,
    "flash.drop.index": 5,
    "flash.segment.renamed": 5,
    "flash.purge.barred": 2,
    "flash.purge.erased": 2,
    "flash.json.tmp": 2,
    "flash.json.renamed": 2,
    "flash.read.before": 60,
    "any time": 0,
}
KILLS_OF_EACH = 15
KILLS_OF_A_DIRECTORY = 40


def occupied_bytes(directory: Path) -> int:
    return sum(max(s.st_size, s.st_blocks * 512) for s in (path.stat() for path in directory.iterdir()))


def check(directories: list[Path], told: Told, limit_bytes: int) -> FlashStore:
    """Open what was left behind: it serves exact bytes, all that it must and nothing that was purged, in its limit."""
    assert sum(map(occupied_bytes, directories)) <= limit_bytes
    store = open_telling(directories, told.hear)
    assert sum(map(occupied_bytes, directories)) <= store.used_bytes <= limit_bytes
    numbers = sorted(told.tried)
    found = [n for n, at in zip(numbers, store.locate([key(n) for n in numbers]), strict=True) if at is not None]
    for number in found:
        assert load(store, number) == payload(number), f"block {number}"
    lost = set(told.where) - set(found)
    assert not lost, f"{len(lost)} blocks that were stored are gone: {sorted(lost)[:9]}"
    back = told.purged & set(found)
    assert not back, f"{len(back)} blocks that were purged are back: {sorted(back)[:9]}"
    assert len(store._index) == len(found)
    return store


def test_whenever_it_is_killed_it_comes_back_with_what_it_had(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    dice = random.Random(11)
    plan = [point for point in POINTS for _ in range(KILLS_OF_EACH)]
    dice.shuffle(plan)
    kills: Counter[str] = Counter()
    served = number = row = 0
    while sum(kills.values()) < len(plan) and row < 2 * len(plan):
        if row % KILLS_OF_A_DIRECTORY == 0:
            part = tmp_path / str(row)
            directories = [part / name for name in ("a", "b")[: 1 + row // KILLS_OF_A_DIRECTORY % 2]]
            for directory in directories:
                directory.mkdir(parents=True)
            told = Told()
            store = open_telling(directories, told.hear)
            limit_bytes = store.limit_bytes
            store.close()
        point = plan[row % len(plan)]
        after_s = 0.01 + 0.25 * dice.random() if point == "any time" else 0.0
        visits = dice.randint(1, max(1, POINTS[point]))
        status = run_until_killed(directories, told, number, row, point, visits, after_s)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            kills[point] += 1
        number = max(told.tried, default=number) + 1
        store = check(directories, told, limit_bytes)
        served += store.num_blocks
        store.close() if row % 3 else abandon(store)
        row += 1
    record_property("kills", dict(kills))
    sys.stdout.write(f"{sum(kills.values())} kills, {served} blocks served after them: {dict(kills)}\n")
    assert sum(kills.values()) >= 300
    assert set(kills) == set(POINTS)

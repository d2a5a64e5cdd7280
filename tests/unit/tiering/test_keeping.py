"""Checkpoints: what a tier has learned outlives it, and changes what it does; one that is no good is left aside."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest

from hifc_ray.clock import ManualClock
from hifc_ray.flash import FaultyDevice, MemoryDevice, checkpoint
from hifc_ray.flash.format import CHECKPOINT_NAME
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.messages import Weights
from hifc_ray.policies import registry
from hifc_ray.tiering import TieredCache, keeping
from hifc_ray.types import Namespace, Tier
from tests.fakes.blocks import OURS, SLOT_BYTES, THEIRS, keys, store
from tests.fakes.tier import WAIT_S, in_host, keep_up, on_flash, open_tier, push_out, serve

pytestmark = pytest.mark.timeout(60)

DAY_S = 86_400.0
RECORD_BYTES = SLOT_BYTES + PAGE_BYTES
ROOT = Path(__file__).parents[3]


def refused(tier: TieredCache, reason: str) -> float:
    return tier.stats.get("checkpoint_refused", tier=Tier.FLASH, reason=reason)


def level(tier: TieredCache) -> float:
    assert tier._shared.flash is not None
    return tier._shared.flash.volumes[0].budget.level


def fill_flash(tier: TieredCache, numbers: range, namespace: Namespace = OURS) -> None:
    for begin in range(0, len(numbers), 16):
        store(tier, numbers[begin : begin + 16], namespace)
        push_out(tier, numbers[begin : begin + 16], namespace)


def test_weights_ghosts_and_budgets_are_there_after_a_restart(tmp_path: Path) -> None:
    device, clock = MemoryDevice(), ManualClock()
    options = {"write_bytes_per_day": 100 * RECORD_BYTES}

    def opened() -> TieredCache:
        policies = registry.eviction("lru"), registry.admission("second-sight")
        return open_tier(tmp_path, flash=device, clock=clock, policies=policies, flash_options=options)

    first = opened()
    assert first.use_weights(Weights(2.0, 1.0, 0.5, version=7))
    store(first, range(16))
    serve(first, range(8))
    push_out(first, range(16))
    assert on_flash(first, range(16)) == list(range(8))
    before = level(first)
    first.close(flush=False)
    again = opened()
    assert again.weights == Weights(2.0, 1.0, 0.5, version=7)
    assert not again.use_weights(Weights(version=6))
    assert before - 0.5 < level(again) <= before
    store(again, range(8, 17))  # 16 is new
    push_out(again, range(8, 17))
    assert on_flash(again, range(8, 17)) == list(range(8, 16))
    again.close(flush=False)


HOT = range(187, 189)  # deep in their sequence: only history speaks for them


def hot_survivors(tmp_path: Path, device: MemoryDevice, spoil: bool) -> list[int]:
    """Which blocks that were asked for often are still on flash when as much again was written after a restart."""
    first = open_tier(tmp_path, flash=device)
    fill_flash(first, range(200))
    assert first._shared.flash is not None
    index = first._shared.flash._index
    for _ in range(400):
        index.hotness.touch(index.find(keys(HOT)), 0)  # as lookups do
    first.close(flush=False)
    if spoil:
        device.files[CHECKPOINT_NAME][100] ^= 1
    again = open_tier(tmp_path, flash=device)
    assert on_flash(again, range(200)) == list(range(200))
    assert serve(again, [1000]) == []  # this model is in use
    fill_flash(again, range(200), THEIRS)
    survivors = on_flash(again, HOT)
    assert again.stats.get("dropped_blocks") > 60
    assert refused(again, "corrupt") == spoil
    again.close(flush=False)
    return survivors


def test_history_of_flash_decides_what_is_kept_after_a_restart(tmp_path: Path) -> None:
    assert hot_survivors(tmp_path, MemoryDevice(), spoil=False) == list(HOT)


def test_without_a_checkpoint_to_be_believed_it_is_learned_anew(tmp_path: Path) -> None:
    assert hot_survivors(tmp_path, MemoryDevice(), spoil=True) == []


@pytest.mark.parametrize("spoil", [False, True])
def test_history_of_host_memory_decides_what_leaves_after_a_restart(tmp_path: Path, spoil: bool) -> None:
    device = MemoryDevice()
    first = open_tier(tmp_path, flash=device)
    store(first, range(16))
    for number in (15, 14, 13):
        assert serve(first, [number]) == [number]
    first.close(flush=False, keep_arena=True)
    if spoil:
        del device.files[CHECKPOINT_NAME]
    again = open_tier(tmp_path, flash=device, low_watermark=0.25, high_watermark=0.25)
    again.tick()
    assert again.idle(WAIT_S)
    left = sorted(set(range(16)) - set(in_host(again, range(16))))
    assert left == ([12, 13, 14, 15] if spoil else [9, 10, 11, 12])
    again.close(flush=False)


def test_history_is_taken_up_as_it_was(tmp_path: Path) -> None:
    device = MemoryDevice()
    first = open_tier(tmp_path, flash=device)
    fill_flash(first, range(64))
    for number in (5, 40, 5):
        serve(first, [number])
    assert first._shared.flash is not None
    index = first._shared.flash._index
    before = index.features(index.find(keys(range(64))))
    first.close(flush=False)
    again = open_tier(tmp_path, flash=device)
    assert again._shared.flash is not None
    index = again._shared.flash._index
    after = index.features(index.find(keys(range(64))))
    assert (after.now - after.last_access).tolist() == (before.now - before.last_access).tolist()
    had = before.previous_access >= 0
    assert had.sum() == 2
    assert (after.previous_access >= 0).tolist() == had.tolist()
    np.testing.assert_allclose(after.frequency, before.frequency, rtol=1e-5)
    assert after.position.tolist() == before.position.tolist()
    again.close(flush=False)


@pytest.mark.parametrize("fault", ["flipped", "torn", "old", "future", "foreign"])
def test_a_checkpoint_that_cannot_be_believed_is_counted_and_left_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    device = MemoryDevice()
    first = open_tier(tmp_path, flash=device, flash_options={"write_bytes_per_day": 100 * RECORD_BYTES})
    first.use_weights(Weights(version=7))
    store(first, range(8))
    first.close()
    data, ages_s = device.files[CHECKPOINT_NAME], {"old": 8 * DAY_S, "future": -DAY_S}
    if fault == "flipped":
        data[len(data) // 2] ^= 1
    elif fault == "torn":
        del data[len(data) // 2 :]
    elif fault == "foreign":
        checkpoint.save(device, {}, {"weights": {"delta": 1.0}}, time.time())
    later = time.time() + ages_s.get(fault, 0.0)
    monkeypatch.setattr(keeping, "time", SimpleNamespace(time=lambda: later))
    again = open_tier(tmp_path, flash=device, flash_options={"write_bytes_per_day": 100 * RECORD_BYTES})
    assert refused(again, {"flipped": "corrupt", "torn": "corrupt", "foreign": "content"}.get(fault, fault)) == 1
    assert again.stats.get("checkpoints_restored") == 0
    assert again.weights == Weights()
    assert level(again) <= 1 - 8 / 100  # what lies here may have been written today
    assert serve(again, range(8)) == list(range(8))
    again.close(flush=False)


def test_a_directory_that_was_moved_keeps_its_history_and_not_its_budget(tmp_path: Path) -> None:
    device, options = MemoryDevice(path="here"), {"write_bytes_per_day": 100 * RECORD_BYTES}
    first = open_tier(tmp_path, flash=device, flash_options=options)
    first.use_weights(Weights(version=7))
    store(first, range(8))
    first.close()
    device.path = "there"
    again = open_tier(tmp_path, flash=device, flash_options=options)
    assert again.weights.version == 7
    assert level(again) <= 1 - 8 / 100
    again.close(flush=False)


def test_checkpoints_take_a_hundredth_of_the_budget_at_most(tmp_path: Path) -> None:
    clock = ManualClock()
    per_day = 2000 * RECORD_BYTES
    tier = open_tier(tmp_path, flash=MemoryDevice(), clock=clock, flash_options={"write_bytes_per_day": per_day})
    fill_flash(tier, range(200))
    for _ in range(2000):
        clock.advance(DAY_S / 200)
        assert tier._upkeep is not None
        if tier._upkeep.keeper.due:
            keep_up(tier)
    spent = tier.stats.get("device_written_bytes", reason=CHECKPOINT_NAME)
    one = spent / tier.stats.get("checkpoints")
    assert 0.9 * 0.01 * per_day * 10 < spent <= 0.01 * per_day * 10 + one
    tier.close(flush=False)


def test_with_budget_enough_they_come_at_the_interval(tmp_path: Path) -> None:
    clock = ManualClock()
    tier = open_tier(tmp_path, flash=MemoryDevice(), clock=clock)
    for _ in range(10):
        clock.advance(30.0)
        keep_up(tier)
    assert tier.stats.get("checkpoints") == 5
    tier.close(flush=False)


def test_a_checkpoint_goes_to_the_next_device_if_the_first_fails_or_hangs(tmp_path: Path) -> None:
    devices = [FaultyDevice(MemoryDevice(path=f"nvme{number}")) for number in range(2)]
    tier = open_tier(tmp_path, flash=devices, flash_options={"write_deadline_s": 0.2})
    assert tier._upkeep is not None
    keeper = tier._upkeep.keeper
    assert keeper.save(Weights(version=1))
    devices[0].fail("put")
    assert keeper.save(Weights(version=2))
    assert tier.stats.get("checkpoint_failures", reason="OSError") == 1
    with devices[0].hang("put") as hang:
        assert keeper.save(Weights(version=3))
        assert hang.entered.is_set()
        assert tier.stats.get("checkpoint_failures", reason="late") == 1
        devices[1].fail("put")
        assert not keeper.save(Weights(version=4))
    assert tier._upkeep._errands.wait(WAIT_S)
    tier._upkeep._weights = lambda: Weights(version=5)
    devices[0].fail("put")
    tier.close(flush=False)
    again = open_tier(tmp_path, flash=devices)
    assert again.weights.version == 5  # the newest, from the second
    again.close(flush=False)


@pytest.mark.parametrize("op", ["put", "sync"])
def test_a_device_that_hangs_does_not_hold_up_the_end(tmp_path: Path, op: Literal["put", "sync"]) -> None:
    device = FaultyDevice(MemoryDevice())
    tier = open_tier(tmp_path, flash=device, flash_options={"write_deadline_s": 0.1})
    store(tier, range(4))
    with device.hang(op, count=None) as hang, pytest.MonkeyPatch.context() as patch:
        patch.setattr("hifc_ray.tiering.cache.CLOSE_TIMEOUT_S", 0.5)
        tier.close()
        assert hang.entered.is_set()
    assert tier._upkeep is not None
    assert tier._upkeep._errands.wait(WAIT_S)


CHILD = f"""
import os, signal, sys
from pathlib import Path
from hifc_ray.messages import Weights
from hifc_ray.policies import registry
from tests.fakes.blocks import store
from tests.fakes.tier import keep_up, open_tier, push_out, serve

directory = Path(sys.argv[1])
policies = registry.eviction("lru"), registry.admission("second-sight")
options = {{"write_bytes_per_day": {200 * RECORD_BYTES}, "checkpoint_interval_s": 1e-6}}
tier = open_tier(directory, flash=directory / "flash", policies=policies, flash_options=options)
tier.use_weights(Weights(2.0, 1.0, 0.5, version=7))
store(tier, range(16))
serve(tier, range(8))
push_out(tier, range(16))
keep_up(tier)
for begin in range(100, 164, 8):  # after the checkpoint
    store(tier, range(begin, begin + 8))
    serve(tier, range(begin, begin + 8))
    push_out(tier, range(begin, begin + 8))
print(tier._shared.flash.budget_level, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_costs_what_was_learned_since_the_checkpoint_and_gives_no_budget_back(tmp_path: Path) -> None:
    (tmp_path / "flash").mkdir()
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    killed_s = time.time()
    assert child.returncode == -9, child.stderr
    policies = registry.eviction("lru"), registry.admission("second-sight")
    options = {"write_bytes_per_day": 200 * RECORD_BYTES}
    tier = open_tier(tmp_path, flash=tmp_path / "flash", policies=policies, flash_options=options)
    assert tier.stats.get("checkpoints_restored") == 1
    assert tier.weights == Weights(2.0, 1.0, 0.5, version=7)
    before = float(child.stdout)
    assert before - 0.2 < level(tier) <= before + (time.time() - killed_s + 1) / DAY_S
    assert on_flash(tier, range(16)) == list(range(8))
    store(tier, range(8, 12))  # refused before the checkpoint: the ghosts know them
    push_out(tier, range(8, 12))
    assert on_flash(tier, range(8, 12)) == [8, 9, 10, 11]
    tier.close(flush=False)

"""What cannot be used is said in one line, typed, to whoever asks; nothing loops, nothing is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hifc_ray.actors import cluster
from hifc_ray.actors.calls import ask
from hifc_ray.config import HostConfig, TierConfig
from hifc_ray.errors import (
    ConfigError,
    DirectoryLocked,
    HifcError,
    NoRoom,
    TierUnavailable,
)
from hifc_ray.flash.format import LOCK_NAME
from hifc_ray.locks import FileLock
from tests.fakes.blocks import SLOT_BYTES
from tests.fakes.stage import BLOCK_BYTES, WAIT_S, Stage, eventually, kill_process, pid
from tests.fakes.tier import serve

pytestmark = pytest.mark.timeout(90)


def one_line(error: HifcError) -> str:
    assert "\n" not in str(error)
    assert "Traceback" not in str(error)
    return str(error)


def refusal(tier: Any) -> HifcError:
    """What keeps a tier from serving."""
    with pytest.raises(HifcError) as caught:
        ask(tier.arena_path.remote(), WAIT_S)
    assert not isinstance(caught.value, TierUnavailable)
    one_line(caught.value)
    return caught.value


def test_a_locked_directory_serves_when_its_owner_is_gone(stage: Stage, tmp_path: Path) -> None:
    """Nor does a restart help, or do harm: it is one process, and it says why."""
    lock = FileLock(tmp_path / LOCK_NAME)
    assert lock.acquire()
    tier = stage.tier(16, SLOT_BYTES, flash=tmp_path)
    assert isinstance(refusal(tier), DirectoryLocked)
    killed = kill_process(tier)
    number = eventually(lambda: (now := pid(tier)) != killed and now)
    assert isinstance(refusal(tier), DirectoryLocked)
    lock.release()
    eventually(lambda: ask(tier.arena_path.remote(), WAIT_S))
    assert pid(tier) == number
    assert serve(stage.client(), [0]) == []


def test_what_no_tier_can_start_for_comes_up_as_what_it_is(stage: Stage) -> None:
    config = TierConfig(HostConfig(arena_bytes=SLOT_BYTES))
    with pytest.raises(NoRoom, match=r"host\.arena_bytes") as caught:
        cluster.up(config, SLOT_BYTES, stage.namespace)
    assert one_line(caught.value).startswith(f"node {stage.node[:8]}: ")
    assert cluster.find(stage.namespace).is_empty  # what did not come up is not left half up


def test_slots_smaller_than_a_block_are_refused_by_the_engine(stage: Stage) -> None:
    stage.tier(16, SLOT_BYTES)
    engine = stage.start_engine("misfit")
    with pytest.raises(ConfigError, match=f"a block of this model is {BLOCK_BYTES} ") as caught:
        ask(engine.ready.remote(), 60.0)
    assert f"tier are {SLOT_BYTES} bytes" in one_line(caught.value)


def test_a_closed_tier_says_so(stage: Stage) -> None:
    tier = stage.small_tier()
    assert stage.small_tier()._actor_id == tier._actor_id  # a node has one, however often it is started
    client = stage.client()
    ask(tier.close.remote(flush=False), WAIT_S)
    ask(tier.close.remote(flush=False), WAIT_S)
    with pytest.raises(TierUnavailable, match="the cache tier was closed"):
        ask(tier.summary.remote(), WAIT_S)
    assert serve(client, [0]) == []
    assert not client.connected(0.5)

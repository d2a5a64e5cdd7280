from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hifc_ray import env
from hifc_ray.config import FlashConfig, HostConfig, TierConfig
from hifc_ray.errors import ConfigError, DirectoryLocked, ForeignFiles, StorageError
from hifc_ray.messages import Weights
from hifc_ray.policies import registry
from hifc_ray.tiering import TieredCache
from hifc_ray.tiering import cache as cache_module
from tests.fakes.blocks import SLOT_BYTES, SOON, holds_bytes, query, request, store
from tests.fakes.tier import WAIT_S, Held, faulty, in_host, on_flash, open_tier, push_out, serve

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def flash_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "flash"
    directory.mkdir()
    return directory


def test_flush_at_close_and_a_warm_start(tmp_path: Path, flash_dir: Path) -> None:
    first = open_tier(tmp_path, flash=flash_dir)
    store(first, range(12))
    first.close()
    first.close()
    assert not (tmp_path / "hifc-test").exists()
    with_holders = list(tmp_path.glob("hifc-test*"))
    assert not with_holders
    second = open_tier(tmp_path, flash=flash_dir)
    assert serve(second, range(12)) == list(range(8))  # its window
    assert serve(second, range(8, 12)) == [8, 9, 10, 11]
    second.check()
    second.close()


def test_blocks_that_are_leased_are_flushed_too(tmp_path: Path, flash_dir: Path) -> None:
    first = open_tier(tmp_path, flash=flash_dir)
    store(first, range(4))
    reply = first.lookup(query(range(4)), SOON)  # and never released
    first.close()
    for number in range(4):
        assert holds_bytes(first, int(reply.slots[number]), number)
    second = open_tier(tmp_path, flash=flash_dir)
    assert serve(second, range(4)) == [0, 1, 2, 3]
    second.close(flush=False)


def test_close_without_flush_writes_nothing(tmp_path: Path, flash_dir: Path) -> None:
    first = open_tier(tmp_path, flash=flash_dir)
    store(first, range(4))
    first.close(flush=False)
    second = open_tier(tmp_path, flash=flash_dir)
    assert serve(second, range(4)) == []
    second.close(flush=False)


def test_a_kept_arena_is_warm(tmp_path: Path) -> None:
    first = open_tier(tmp_path)
    store(first, range(6))
    grant = first.reserve(request([50]), SOON)
    first.lookup(query(range(2)), SOON)
    first.close(flush=False, keep_arena=True)
    second = open_tier(tmp_path)
    assert second._arena.incarnation != first._arena.incarnation
    assert serve(second, range(6)) == list(range(6))
    assert in_host(second, [50]) == []
    assert second._books.num_free == 10
    assert second.commit(grant, None, SOON) == 0  # of an old incarnation
    assert second.stats.get("commits_refused") == 1
    second.check()
    second.close(flush=False)


def test_a_hung_read_keeps_a_kept_arena_from_others(
    tmp_path: Path, flash_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = faulty()
    monkeypatch.setattr(cache_module, "CLOSE_TIMEOUT_S", 0.1)
    first = open_tier(tmp_path, flash=device)
    store(first, [0])
    push_out(first, [0])
    held = Held()
    device.on_read = held
    first.lookup(query([0]), SOON)
    held.wait_entered()
    first.close(flush=False, keep_arena=True)
    with pytest.raises(DirectoryLocked):
        open_tier(tmp_path)
    held.let_go()
    assert first.idle(WAIT_S)
    first._arena.close(unlink=True)


def test_a_background_tier_moves_by_itself_and_ends(tmp_path: Path) -> None:
    device, written = faulty(), Held()
    device.on_write = written
    tier = open_tier(tmp_path, flash=device, background=True, low_watermark=0.25, high_watermark=0.5)
    store(tier, range(13))
    written.wait_entered()
    written.let_go()
    assert tier.idle(WAIT_S)
    assert len(on_flash(tier, range(13))) == 5
    tier.check()
    tier.close(flush=False)
    assert not tier._thread.is_alive()


def test_a_failing_tick_is_counted_and_the_next_one_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = open_tier(tmp_path)
    came = Held()
    calls = iter([RuntimeError("a bug"), None])

    def tick() -> None:
        error = next(calls, None)
        if error is not None:
            raise error
        came()

    monkeypatch.setattr(tier, "tick", tick)
    tier._thread.start()
    came.wait_entered()
    came.let_go()
    assert tier.stats.get("tick_failures", reason="RuntimeError") == 1
    tier.close(flush=False)


def test_newer_weights_reach_the_policy_and_older_ones_do_not(tmp_path: Path) -> None:
    policy = registry.eviction("retention")
    tier = open_tier(tmp_path, policies=(policy, registry.admission("always")))
    assert tier.use_weights(Weights(0.5, 0.2, 0.3, version=3))
    assert not tier.use_weights(Weights(1.0, 0.0, 0.0, version=2))
    assert not tier.use_weights(Weights(1.0, 0.0, 0.0, version=3))
    assert tier.weights.version == 3
    assert policy.weights.alpha == 0.5  # type: ignore[attr-defined]
    assert tier.report(7).weights_version == 3
    tier.close(flush=False)


def test_the_report_and_the_summary_say_what_happened(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, flash=faulty(), low_watermark=0.5, high_watermark=0.5)
    store(tier, range(10))
    tier.tick()
    assert tier.idle(WAIT_S)
    serve(tier, range(4))
    report = tier.report(5)
    assert (report.node, report.sequence, report.accesses, report.hits, report.evictions) == ("local", 5, 4, 4, 2)
    assert report.incarnation == tier._arena.incarnation
    summary = tier.summary()
    assert summary["host"] == {"slots": tier._books.counts(), "num_slots": 16, "slot_bytes": SLOT_BYTES}
    assert summary["flash"]["blocks"] == 2  # type: ignore[index]
    assert sum(tier._books.counts().values()) == 16
    tier.close(flush=False)


@pytest.fixture
def config(flash_dir: Path) -> TierConfig:
    return TierConfig(
        HostConfig(arena_bytes=8 * SLOT_BYTES), FlashConfig(directories=(flash_dir,), limit_bytes=4 << 20)
    )


def make(config: TierConfig, **options: object) -> TieredCache:
    policies = registry.eviction("lru"), registry.admission("always")
    return TieredCache(config, SLOT_BYTES, *policies, background=False, **options)  # type: ignore[arg-type]


def test_two_tiers_on_one_flash_directory_are_refused_by_its_name(config: TierConfig) -> None:
    tier = make(config)
    with pytest.raises(DirectoryLocked, match="flash"):
        make(config)
    tier.close(flush=False)
    make(config).close(flush=False)
    assert not list(env.shm_dir().iterdir())


def test_a_flash_directory_that_cannot_be_used_leaves_no_arena(config: TierConfig, flash_dir: Path) -> None:
    (flash_dir / "holiday.jpg").write_bytes(b"photo")
    with pytest.raises(ForeignFiles, match=r"holiday\.jpg"):
        make(config)
    flash_dir.joinpath("holiday.jpg").unlink()
    flash_dir.rmdir()
    with pytest.raises((StorageError, ConfigError)):
        make(config)
    assert not list(env.shm_dir().iterdir())


def test_an_arena_that_cannot_be_used_lets_the_flash_directory_go(config: TierConfig, tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"someone's file")
    with pytest.raises(ForeignFiles):
        make(config, arena_path=tmp_path / "taken")
    make(config).close(flush=False)


CHILD = """
import os, signal
from hifc_ray.config import FlashConfig, HostConfig, TierConfig
from hifc_ray.policies import registry
from hifc_ray.tiering import TieredCache
from pathlib import Path
import sys
from tests.fakes.blocks import SLOT_BYTES, store
directory = Path(sys.argv[1]) if sys.argv[1] else None
config = TierConfig(HostConfig(arena_bytes=8 * SLOT_BYTES), FlashConfig((directory,) if directory else (), 4 << 20))
tier = TieredCache(config, SLOT_BYTES, registry.eviction("lru"), registry.admission("always"))
store(tier, range(4))
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_a_library_user(directory: Path | None) -> None:
    command = [sys.executable, "-c", CHILD, str(directory or "")]
    root = Path(__file__).parents[3]
    assert subprocess.run(command, cwd=root, timeout=60, check=False).returncode == -9


def test_the_arena_of_a_killed_library_user_is_found_by_its_flash_directory(
    config: TierConfig, flash_dir: Path
) -> None:
    kill_a_library_user(flash_dir)
    tier = make(config)
    assert serve(tier, [0, 1]) == [0, 1]
    assert serve(tier, [2, 3]) == [2, 3]
    tier.close(flush=False)
    assert not list(env.shm_dir().iterdir())


def test_memory_of_killed_users_without_flash_is_given_back_by_the_next() -> None:
    kill_a_library_user(None)
    assert list(env.shm_dir().iterdir())
    living = make(TierConfig(HostConfig(arena_bytes=8 * SLOT_BYTES)))
    store(living, [0])
    make(TierConfig(HostConfig(arena_bytes=8 * SLOT_BYTES))).close()
    assert serve(living, [0]) == [0]
    assert [path for path in env.shm_dir().iterdir() if path.name == living._arena.path.name]
    living.close()
    assert not list(env.shm_dir().iterdir())

"""A directory that is only read: it serves and verifies what another tier has left there, and stays as it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hifc_ray.config import FlashConfig, HostConfig, TierConfig
from hifc_ray.errors import DirectoryLocked, StorageError
from hifc_ray.flash import FaultyDevice, MemoryDevice
from hifc_ray.flash.format import CHECKPOINT_NAME, FAULTS_NAME, LOCK_NAME
from hifc_ray.messages import Purge, Weights
from hifc_ray.policies import registry
from hifc_ray.tiering import TieredCache
from hifc_ray.types import Fate, Lookup, Tier
from tests.contracts.tier_client import ALICE
from tests.fakes.blocks import SLOT_BYTES, SOON, keys, query, store
from tests.fakes.tier import WAIT_S, in_host, keep_up, on_flash, open_tier, push_out, serve, words

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[3]
READ = {"read_only": True, "checkpoint_interval_s": 1e-6, "health_interval_s": 1e-6}
WRITER = """
import os, signal, sys
from pathlib import Path
from tests.contracts.tier_client import ALICE
from tests.fakes.blocks import store
from tests.fakes.tier import open_tier, push_out

place = Path(sys.argv[1])
tier = open_tier(place, flash=place / "flash")
store(tier, range(12), owner=ALICE)
push_out(tier, range(12))
os.kill(os.getpid(), signal.SIGKILL)
"""
READER = """
import os, sys
from pathlib import Path
from hifc_ray.flash import MemoryDevice
from tests.fakes.blocks import store
from tests.fakes.tier import open_tier, serve

place = Path(sys.argv[1])
device = MemoryDevice()
for _ in range(2):  # so that all is imported: another user may not be able to
    tier = open_tier(place / "own", flash=device)
    store(tier, [0])
    tier.close()
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
assert not os.access(place / "flash", os.W_OK)
tier = open_tier(place / "own", flash=place / "flash", flash_options={"read_only": True})
print(serve(tier, range(8)) + serve(tier, range(8, 12)))
tier.check()
tier.close()
"""

Tree = dict[str, tuple[int, int, bytes]]


def tree(directory: Path) -> Tree:
    """Everything that can be told of the files of a directory, and of itself, but for when it was read."""
    found = {
        path.name: (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes()) for path in directory.iterdir()
    }
    return {**found, ".": (directory.stat().st_mode, directory.stat().st_mtime_ns, b"")}


def run(code: str, place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(place)], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )


@pytest.fixture(params=["closed", "killed"])
def flash_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """12 blocks that another tier has left, in sealed segments, or in one that it was writing when it was killed."""
    directory = tmp_path / "flash"
    directory.mkdir()
    if request.param == "killed":
        assert run(WRITER, tmp_path).returncode == -9
        return directory
    writer = open_tier(tmp_path, flash=directory)
    writer.use_weights(Weights(version=3))
    store(writer, range(12), owner=ALICE)
    writer.close()
    return directory


@pytest.fixture
def tier(tmp_path: Path, flash_dir: Path) -> Iterator[TieredCache]:
    before = tree(flash_dir)
    made = open_tier(tmp_path, name="reader", flash=flash_dir, flash_options=READ)
    yield made
    keep_up(made)
    made.check()
    made.close()
    assert tree(flash_dir) == before


def test_what_another_tier_has_left_is_served(tier: TieredCache, flash_dir: Path) -> None:
    assert serve(tier, range(8)) + serve(tier, range(8, 12)) == list(range(12))
    learned = (flash_dir / CHECKPOINT_NAME).exists()
    assert tier.weights.version == (3 if learned else 0)
    assert tier.stats.get("checkpoints") == 0


def test_host_memory_works_and_nothing_goes_to_flash(tier: TieredCache) -> None:
    assert store(tier, range(100, 116)) == list(range(100, 116))
    assert serve(tier, range(100, 108)) == list(range(100, 108))
    push_out(tier, range(100, 108))
    assert tier.stats.get("refused_bytes", tier=Tier.FLASH, reason="read-only") == 8 * SLOT_BYTES
    assert tier._shared.fate(keys([100])[0]) == Fate.NOT_ADMITTED
    assert on_flash(tier, range(100, 116)) == []
    assert serve(tier, range(8)) == list(range(8))
    push_out(tier, range(8))  # flash has them
    assert serve(tier, range(8)) == list(range(8))
    assert tier.demote_all(WAIT_S)
    assert in_host(tier, range(116)) == []


def test_a_purge_is_refused_and_what_it_names_is_not_served(tier: TieredCache) -> None:
    store(tier, [100], owner=ALICE)
    assert serve(tier, range(4)) == [0, 1, 2, 3]
    with pytest.raises(StorageError, match="read-only"):
        tier.purge(Purge(tenant=ALICE.tenant))
    assert tier.stats.get("purges_refused", tier=Tier.FLASH, reason="read-only") == 1
    assert in_host(tier, range(101)) == []
    keep_up(tier)
    for number in (0, 11, 100):
        reply = tier.lookup(query([number]), SOON)
        assert words(reply) == "M"
        tier.release(reply.lease)


@pytest.mark.parametrize("flash_dir", ["closed"], indirect=True)
def test_corruption_is_found_and_written_nowhere(tmp_path: Path, flash_dir: Path) -> None:
    segment = max(flash_dir.glob("*.segment"), key=lambda path: path.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[4096 + 4096 + 10] ^= 1  # behind the headers of segment and record
    segment.write_bytes(data)
    before = tree(flash_dir)
    tier = open_tier(tmp_path, name="reader", flash=flash_dir, flash_options=READ)
    served = [number for number in range(12) if serve(tier, [number])]
    assert len(served) == 11
    assert tier.stats.get("corrupt", tier=Tier.FLASH) == 1
    tier.close()
    assert tree(flash_dir) == before
    assert not (flash_dir / FAULTS_NAME).exists()


def test_two_may_read_at_once_but_not_beside_a_writer(flash_dir: Path) -> None:
    def opened(*, read_only: bool) -> TieredCache:
        flash = FlashConfig((flash_dir,), limit_bytes=4 << 20, read_only=read_only)
        config = TierConfig(HostConfig(arena_bytes=16 * SLOT_BYTES), flash)
        return TieredCache(config, SLOT_BYTES, registry.eviction("lru"), registry.admission("always"), background=False)

    readers = [opened(read_only=True) for _ in range(2)]
    replies = [reader.lookup(query(range(2)), SOON) for reader in readers]
    for reader, reply in zip(readers, replies, strict=True):
        assert reader.wait(reply, WAIT_S).tolist() == [Lookup.HIT] * 2
        reader.release(reply.lease)
    with pytest.raises(DirectoryLocked):
        opened(read_only=False)
    readers[0].close()
    with pytest.raises(DirectoryLocked):
        opened(read_only=False)
    assert serve(readers[1], range(2)) == [0, 1]
    readers[1].close()
    writer = opened(read_only=False)
    with pytest.raises(DirectoryLocked):
        opened(read_only=True)
    writer.close()


def test_a_directory_that_may_not_be_written_to(flash_dir: Path, short_dir: Path) -> None:
    place = short_dir / "flash"
    shutil.copytree(flash_dir, place)
    (short_dir / "own").mkdir()
    place.chmod(0o500)
    if os.geteuid() == 0:  # then the reader becomes somebody else, whose files these are
        short_dir.chmod(0o755)
        for path in (short_dir / "own", place, *place.iterdir()):
            os.chown(path, 65534, 65534)
    before = tree(place)
    child = run(READER, short_dir)
    assert child.stdout.strip() == str(list(range(12))), child.stderr
    assert tree(place) == before
    assert not list((short_dir / "own").iterdir())


@pytest.mark.parametrize("flash_dir", ["closed"], indirect=True)
def test_a_copy_without_its_lock_file_is_served_too(tmp_path: Path, flash_dir: Path) -> None:
    (flash_dir / LOCK_NAME).unlink()
    before = tree(flash_dir)
    tier = open_tier(tmp_path, name="reader", flash=flash_dir, flash_options=READ)
    assert serve(tier, range(8)) == list(range(8))
    tier.close()
    assert tree(flash_dir) == before


def test_no_device_is_asked_to_change_anything(tmp_path: Path) -> None:
    inner = MemoryDevice()
    writer = open_tier(tmp_path, flash=inner)
    store(writer, range(8))
    writer.close()
    device = FaultyDevice(inner)
    reader = open_tier(tmp_path, name="reader", flash=device, flash_options=READ)
    assert serve(reader, range(8)) == list(range(8))
    store(reader, range(20, 28))
    push_out(reader, range(20, 28))
    keep_up(reader)
    reader.close()
    assert set(device.calls) <= {"open", "read", "get"}

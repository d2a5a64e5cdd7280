"""The cache-tier actor as the plain class that it is: what keeps it from serving, and its mail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from hifc_ray.actors import cache_tier, names
from hifc_ray.actors.cache_tier import CacheTierActor
from hifc_ray.config import FlashConfig, HostConfig, PolicyConfig, TierConfig
from hifc_ray.errors import ConfigError, ForeignFiles, HifcError, NoRoom, StorageError, TierUnavailable
from hifc_ray.flash.format import LOCK_NAME
from hifc_ray.host import arena
from hifc_ray.messages import Weights
from hifc_ray.reports import reports_from_arrow
from tests.fakes.blocks import SLOT_BYTES

pytestmark = pytest.mark.timeout(30)

WAIT_S = 10.0
ARENA = HostConfig(arena_bytes=16 * SLOT_BYTES)
Start = Callable[[TierConfig], CacheTierActor]


def eventually(what: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(cache_tier, "REOPEN_PAUSE_S", 0.01)
    monkeypatch.setattr(names, "find", lambda name, namespace: None)
    monkeypatch.delenv("HIFC_FLASH_DIR", raising=False)
    started: list[CacheTierActor] = []

    def start(config: TierConfig) -> CacheTierActor:
        started.append(CacheTierActor(config, SLOT_BYTES, str(tmp_path / "arena"), "n" * 40, "test"))
        return started[-1]

    yield start
    for actor in started:
        actor.close(flush=False)
        actor._thread.join(WAIT_S)
        assert not actor._thread.is_alive()


def refusal(actor: CacheTierActor, kind: type[HifcError]) -> str:
    """Every call says the same, in one line."""
    said = set()
    for call in (actor.arena_path, actor.summary, actor.check, lambda: actor.attach("x"), lambda: actor.detach(1)):
        with pytest.raises(kind) as caught:
            call()
        said.add(str(caught.value))
    (line,) = said
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("change", "kind", "named"),
    [
        (lambda d: TierConfig(HostConfig(arena_bytes=SLOT_BYTES)), NoRoom, "host.arena_bytes"),
        (lambda d: TierConfig(HostConfig(arena_bytes=1 << 50)), NoRoom, "host.arena_bytes"),
        (lambda d: TierConfig(ARENA, FlashConfig((d,), limit_bytes=4096)), ConfigError, "flash.limit_bytes"),
        (lambda d: TierConfig(ARENA, policy=PolicyConfig(eviction="oracle")), ConfigError, "policy.eviction"),
        (lambda d: TierConfig(ARENA, policy=PolicyConfig(admission="oracle")), ConfigError, "policy.admission"),
        (lambda d: TierConfig(ARENA, FlashConfig((d / "nowhere",))), StorageError, "nowhere does not exist"),
    ],
    ids=["one slot", "more than memory", "flash of a page", "no such eviction", "no such admission", "no directory"],
)
def test_what_is_wrong_is_named(
    start: Start, tmp_path: Path, change: Callable[[Path], TierConfig], kind: type[HifcError], named: str
) -> None:
    assert named in refusal(start(change(tmp_path)), kind)


def test_foreign_files_are_left_alone(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "flash"
    directory.mkdir()
    (directory / "thesis.tex").write_text("ten years")
    assert "thesis.tex" in refusal(start(TierConfig(ARENA, FlashConfig((directory,)))), ForeignFiles)
    assert [path.name for path in directory.iterdir()] == ["thesis.tex"]


def test_it_serves_when_what_was_in_the_way_is_gone(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "nvme"
    actor = start(TierConfig(ARENA, FlashConfig((directory,), 4 << 20)))
    refusal(actor, StorageError)
    assert not directory.exists()
    directory.mkdir()
    eventually(lambda: actor._cache is not None)
    assert actor.arena_path() == str(tmp_path / "arena")
    actor.check()


def test_a_node_has_a_directory_of_its_own(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv("HIFC_FLASH_DIR", str(own))
    start(TierConfig(ARENA, FlashConfig((tmp_path / "of-others",), 4 << 20))).check()
    assert (own / LOCK_NAME).exists()


def test_without_a_flash_tier_the_node_s_directory_is_not_used(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIFC_FLASH_DIR", str(tmp_path / "own"))
    assert start(TierConfig(ARENA)).summary()["flash"] is None


def test_closed_before_it_ever_opened(start: Start, tmp_path: Path) -> None:
    actor = start(TierConfig(ARENA, FlashConfig((tmp_path / "nvme",))))
    actor.close()
    (tmp_path / "nvme").mkdir()
    assert "was closed" in refusal(actor, TierUnavailable)
    assert not actor._open()


def left(directory: Path) -> Path:
    path = directory / "hifc-of-a-killed-ray"
    arena.create(path, 4 * SLOT_BYTES, SLOT_BYTES).close()
    return path


def test_what_the_dead_have_left_makes_room(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = left(tmp_path)
    check = arena._check_room

    def short_of_room(at: Path, size: int) -> None:
        if path.exists():
            raise NoRoom("host.arena_bytes needs more")
        check(at, size)

    monkeypatch.setattr(arena, "_check_room", short_of_room)
    start(TierConfig(ARENA)).check()
    assert not path.exists()


def test_what_the_dead_have_left_goes_after_a_while(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left(tmp_path)
    monkeypatch.setattr(cache_tier, "LEFTOVER_S", 0.2)
    actor = start(TierConfig(ARENA, policy=PolicyConfig(report_interval_s=0.01)))
    assert path.exists()  # it may be about to be re-attached
    eventually(lambda: not path.exists())
    actor.check()


def test_what_is_not_ours_to_explain_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(arena, "create", fail)
    with pytest.raises(ZeroDivisionError):
        CacheTierActor(TierConfig(ARENA), SLOT_BYTES, str(tmp_path / "arena"), "n" * 40, "test")


class Post:
    """A policy actor that answers with `weights`, or fails."""

    def __init__(self) -> None:
        self.report = SimpleNamespace(remote=self._take)
        self.weights = Weights()
        self.failures: list[Exception] = []
        self.sequences: list[int] = []

    def _take(self, batch: pa.RecordBatch) -> Weights:
        self.sequences += [report.sequence for report in reports_from_arrow(batch)]
        if self.failures:
            raise self.failures.pop()
        return self.weights


def test_mail_goes_on_whatever_happens_to_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    post = Post()
    post.failures = [TierUnavailable("dead"), RuntimeError("a bug"), ConfigError("reports have the schema")]
    actor = start(TierConfig(ARENA, policy=PolicyConfig("retention", report_interval_s=0.01)))
    monkeypatch.setattr(cache_tier, "ask", lambda answer, deadline_s: answer)
    monkeypatch.setattr(names, "find", lambda name, namespace: post)
    eventually(lambda: len(post.sequences) > 4)
    assert not post.failures
    assert post.sequences == sorted(set(post.sequences))
    assert actor.summary()["weights_version"] == 0
    post.weights = Weights(0.5, 0.2, 0.3, version=7)
    eventually(lambda: actor.summary()["weights_version"] == 7)
    cache: Any = actor._tier()
    assert cache._eviction.weights == post.weights
    post.weights = Weights(version=3)  # older: not taken
    known = len(post.sequences)
    eventually(lambda: len(post.sequences) > known + 2)
    assert actor.summary()["weights_version"] == 7

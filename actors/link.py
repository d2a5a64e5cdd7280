"""The link from an engine's process to its node's tier: found in the background, and again whenever it is lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hifc_ray.actors.calls import ask
from hifc_ray.config import format_bytes
from hifc_ray.errors import ConfigError, HifcError, StorageError, TierUnavailable
from hifc_ray.host import Arena, arena
from hifc_ray.locks import FileLock
from hifc_ray.messages import PROTOCOL_VERSION, TierInfo
from hifc_ray.tiering.holders import lock_holder_file
from hifc_ray.tiering.ledger import LeaseLedger

CONNECT_DEADLINE_S = 5.0  # one try to reach a tier, in the background
RECONNECT_PAUSE_S = 0.25  # between tries

log = logging.getLogger(__name__)


class _Misfit(ConfigError):
    """This engine and the tier that was found cannot work together."""


@dataclass
class Mapped:
    """An arena that this process maps, and what it has leased in it."""

    arena: Arena
    inode: int
    ledger: LeaseLedger


@dataclass(frozen=True)
class Link:
    """A tier that answered, as one incarnation of it."""

    handle: Any
    info: TierInfo
    mapped: Mapped


class Linker:
    """Connects on a thread of its own and hands each link to `adopt`, which may say: not yet.

    `find` gives the handle of the node's tier, or None; `misfit` says why the tier that is there is of no use.
    """

    def __init__(self, find: Callable[[], Any], adopt: Callable[[Link], bool]) -> None:
        self.misfit: str | None = None
        self._find = find
        self._adopt = adopt
        self._need_bytes = 0
        self._mapped: Mapped | None = None
        self._lock_file: FileLock | None = None
        self._said = ""
        self._closed = threading.Event()
        self._wanted = threading.Event()
        self._wanted.set()
        self._thread = threading.Thread(target=self._run, name="hifc-reconnect", daemon=True)
        self._thread.start()

    def require(self, slot_bytes: int) -> None:
        """From the next connection on, a tier whose slots are smaller is a misfit."""
        self._need_bytes = slot_bytes

    def reconnect(self) -> None:
        """The link is lost: look for another."""
        self._wanted.set()

    def close(self) -> None:
        """End the thread; `let_go` is for later, when nothing is held any more."""
        self._closed.set()
        self._wanted.set()
        self._thread.join(CONNECT_DEADLINE_S)

    def let_go(self) -> None:
        """Be dead to the tier: it takes back what this process held."""
        if self._lock_file is not None:
            self._lock_file.release(unlink=True)

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            if self._closed.is_set():
                return
            self._wanted.clear()
            if not self._try():
                self._wanted.set()
                self._closed.wait(RECONNECT_PAUSE_S)

    def _try(self) -> bool:
        try:
            link = self._connect()
        except Exception as error:  # whatever it is, an engine that stops looking would never have a tier again
            self.misfit = str(error) if isinstance(error, _Misfit) else None
            self._say(error)
            return False
        self.misfit, self._said = None, ""
        return not self._closed.is_set() and self._adopt(link)

    def _say(self, error: Exception) -> None:
        """Once for each reason, not four times a second."""
        if self._said == str(error):
            return
        self._said = str(error)
        expected = isinstance(error, HifcError | OSError)
        log.warning("computing without a cache tier: %s", error, exc_info=None if expected else error)

    def _connect(self) -> Link:
        handle = self._find()
        if handle is None:
            raise TierUnavailable("this node has none")
        path = Path(ask(handle.arena_path.remote(), CONNECT_DEADLINE_S))
        info = self._attach(handle, path)
        if info.protocol != PROTOCOL_VERSION:
            raise _Misfit(f"the cache tier speaks protocol {info.protocol}; allowed here: {PROTOCOL_VERSION}")
        mapped = self._map(path)
        if mapped.arena.slot_bytes < self._need_bytes:
            raise _Misfit(
                f"the slots of this node's cache tier are {mapped.arena.slot_bytes} bytes; a block of this model is "
                f"{self._need_bytes} ({format_bytes(self._need_bytes)}): start the tier for this model"
            )
        return Link(handle, info, mapped)

    def _attach(self, handle: Any, arena_path: Path) -> TierInfo:
        if self._lock_file is not None and not _beside(self._lock_file.path, arena_path):
            self.let_go()
            self._lock_file = None
        if self._lock_file is None:
            self._lock_file = lock_holder_file(arena_path)
        try:
            info: TierInfo = ask(handle.attach.remote(str(self._lock_file.path)), CONNECT_DEADLINE_S)
        except StorageError:
            # Not known there, and not to be known by this file (a sweep can unlink it in its first moment).
            self.let_go()
            self._lock_file = None
            raise
        return info

    def _map(self, path: Path) -> Mapped:
        inode = path.stat().st_ino
        if self._mapped is None or self._mapped.inode != inode:
            mapped = arena.attach(path)
            self._mapped = Mapped(mapped, inode, LeaseLedger(mapped.num_slots))
        return self._mapped


def _beside(holder_path: Path, arena_path: Path) -> bool:
    return holder_path.parent == arena_path.parent and holder_path.name.startswith(f"{arena_path.name}.holder-")

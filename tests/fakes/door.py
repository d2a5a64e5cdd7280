"""A cache tier behind calls as Ray makes them, without Ray: `ask` runs them, and tests lose and delay them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hifc_ray.actors import client, link, wire
from hifc_ray.actors.client import RayTierClient
from hifc_ray.errors import HifcError
from hifc_ray.tiering import TieredCache

Call = Callable[[], Any]
Fault = Callable[[str, Call], Any]  # method, the call; runs it or not, returns its answer or raises


class Door:
    """What a handle of `CacheTierActor` is to a client: each method has `remote`, which gives something to `ask`."""

    def __init__(self, cache: TieredCache) -> None:
        self.cache = cache
        self.calls: list[str] = []
        self.fault: Fault | None = None

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return _Remote(self, method)

    def run(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """What the actor does in this call."""
        if method == "arena_path":
            return str(self.cache._arena.path)
        if method == "lookup":
            return wire.pack_reply(self.cache.serve_lookup(*wire.unpack_lookup(*arguments)))
        return getattr(self.cache, {"reserve": "serve_reserve", "commit": "serve_commit"}.get(method, method))(
            *arguments
        )


class _Remote:
    def __init__(self, door: Door, method: str) -> None:
        self._door, self._method = door, method

    def remote(self, *arguments: Any) -> Call:
        door, method = self._door, self._method
        door.calls.append(method)
        call: Call = lambda: door.run(method, arguments)  # noqa: E731
        fault = door.fault
        return call if fault is None else lambda: fault(method, call)


def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients ask a `Door`."""

    def ask(call: Call, deadline_s: float) -> Any:
        return call()

    for module in (client, link):
        monkeypatch.setattr(module, "ask", ask)
    monkeypatch.setattr(link, "RECONNECT_PAUSE_S", 0.001)


def ran_but(error: HifcError) -> Fault:
    """The call is executed, its answer is lost."""

    def fault(method: str, call: Call) -> Any:
        call()
        raise error

    return fault


def never_ran(error: HifcError) -> Fault:
    """The call does not get there."""

    def fault(method: str, call: Call) -> Any:
        raise error

    return fault


def die(dying: RayTierClient) -> None:
    """What the tier sees when the process of this client is killed: its lock is free, and nothing was said."""
    dying._linker.close()
    lock = dying._linker._lock_file
    assert lock is not None
    lock.release()


@contextmanager
def connected(find: Callable[[], Any]) -> Iterator[RayTierClient]:
    """A client that has found its tier."""
    client_ = RayTierClient(find)
    try:
        assert client_.connected(5.0)
        yield client_
    finally:
        client_.close()
        assert not [thread for thread in threading.enumerate() if thread is client_._linker._thread]

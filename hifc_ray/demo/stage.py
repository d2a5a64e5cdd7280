"""What the demo stands on: directories, Ray, actors. What it sets up it takes down again, whatever happens."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from hifc_ray import env
from hifc_ray.actors import cluster, connection, names
from hifc_ray.actors.calls import ask
from hifc_ray.config import Config
from hifc_ray.demo.places import RAY_PARENT, parent_on_disk
from hifc_ray.device.pool import check_room
from hifc_ray.engine.preview import preview
from hifc_ray.errors import ConfigError, HifcError, NoRoom, TierUnavailable
from hifc_ray.flash import FlashStore
from hifc_ray.health import readings
from hifc_ray.health.checks import check_memory, check_shared_memory
from hifc_ray.health.verdict import Level
from hifc_ray.stats import Stats

Say = Callable[[str], None]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Stage:
    """What is up."""

    engine: Any
    tier: Any
    about: dict[str, Any]  # the engine, as it says of itself
    scratch: Path  # gone at the end
    places: dict[str, str]


@contextlib.contextmanager
def stage(config: Config, address: str | None, keep: bool, say: Say) -> Iterator[Stage]:
    """One engine and the tiers, ready; with `keep` they stay. Raises `ConfigError`, `StorageError` for bad sizes and
    places.

    Without an address (or RAY_ADDRESS) a Ray of its own is started, and none that runs already is used.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(_heed_signals, {number: signal.getsignal(number) for number in _SIGNALS})
        try:
            yield from _set_up(stack, config, address, keep, say)
        finally:
            _heed_signals(dict.fromkeys(_SIGNALS, signal.SIG_IGN))  # an impatient second Ctrl-C must not leave things


def _set_up(stack: contextlib.ExitStack, config: Config, address: str | None, keep: bool, say: Say) -> Iterator[Stage]:
    given = config.tier.flash.directories
    scratch = _directory(stack, parent_on_disk() / f"hifc-demo-{secrets.token_hex(4)}", keep)
    config = _with_flash(config, scratch)
    say(f"model {config.engine.model}")
    layout = preview(config.engine, say)
    check_room(layout, config.engine.gpu_bytes)
    own = not (address or env.ray_address())
    if own:
        _check_places(config, layout.block_bytes)
    namespace = names.NAMESPACE if own else f"{names.NAMESPACE}-demo-{secrets.token_hex(3)}"
    joined = _start(stack, namespace, keep, say) if own else _join(stack, address, namespace)
    _heed_signals({signal.SIGTERM: _end})  # Ray has put a handler of its own there, which aborts
    stack.push(_at_end(lambda: _take_down(namespace, bool(given), say), only_on_failure=keep))
    say(f"Ray {joined}; starting policy, manager and cache tier")
    cluster.up(config.tier, layout.block_bytes, namespace)
    node = ray.get_runtime_context().get_node_id()
    tier = names.find(names.tier(node), namespace)
    if tier is None:
        raise ConfigError("this node has no tier role in its Ray cluster; run the demo on one that has")
    say("starting the engine")
    engine, about = cluster.start_engine(config.engine, 0, namespace, node_id=node, detached=keep)
    places = {
        "Ray": str(joined),
        "arena": str(ask(tier.arena_path.remote(), cluster.ANSWER_DEADLINE_S)),
        "flash": ", ".join(map(str, config.tier.flash.directories)) + ("" if keep or given else ", removed at the end"),
    }
    yield Stage(engine, tier, about, scratch, places)
    if keep:
        for path in scratch.glob("*.npy"):
            path.unlink()
        _tell_what_stays(joined, namespace, scratch, say)


def _with_flash(config: Config, scratch: Path) -> Config:
    """With absolute flash directories: actors run elsewhere. The given ones, or an empty one of the demo's own."""
    flash = config.tier.flash
    directories = tuple(directory.absolute() for directory in flash.directories)
    if not directories:
        directories = (scratch / "flash",)
        directories[0].mkdir(mode=0o700)
    return replace(config, tier=replace(config.tier, flash=replace(flash, directories=directories)))


def _check_places(config: Config, slot_bytes: int) -> None:
    """Raise at once what the tier would raise in its actor, where starting a Ray for it would only take time."""
    FlashStore(config.tier.flash, slot_bytes, Stats()).close()
    reading, arena_bytes = readings.memory(env.shm_dir()), config.tier.host.arena_bytes
    for check in (check_shared_memory, check_memory):
        verdict = check(reading, arena_bytes)
        if verdict.level is Level.FAIL:
            raise NoRoom(f"host.arena_bytes is {arena_bytes}: {verdict.what}; {verdict.advice}")


def _join(stack: contextlib.ExitStack, address: str | None, namespace: str) -> connection.Connection:
    stack.callback(connection.leave)
    try:
        return connection.join(address, namespace)
    except TierUnavailable as error:
        raise ConfigError(str(error)) from error


def _start(stack: contextlib.ExitStack, namespace: str, keep: bool, say: Say) -> connection.Connection:
    say("starting Ray on this machine")
    temp_dir = _directory(stack, RAY_PARENT / f"hifc-ray-{secrets.token_hex(4)}", keep)
    if keep:
        stack.push(_at_end(lambda: connection.stop_lasting(temp_dir), only_on_failure=True))
        stack.callback(connection.leave)
        return connection.start_lasting(namespace, temp_dir)
    stack.callback(connection.leave)
    joined = connection.start_local(namespace, temp_dir)
    # Should taking down fail, Ray's processes end with Ray, and only then is nothing in shared memory in use.
    stack.callback(cluster.sweep, cluster.arena_here(namespace))
    stack.callback(connection.leave)
    return joined


def _at_end(do: Callable[[], None], *, only_on_failure: bool) -> Callable[..., None]:
    """An exit callback of an `ExitStack`, for all ends or for those by an exception (Ctrl-C is one)."""

    def at_end(kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None or not only_on_failure:
            do()

    return at_end


def _take_down(namespace: str, flush: bool, say: Say) -> None:
    say("stopping")
    try:
        cluster.down(namespace, flush=flush)
    except (HifcError, RayError) as error:
        say(f"the actors did not stop as they should: {error}")


def _tell_what_stays(joined: connection.Connection, namespace: str, scratch: Path, say: Say) -> None:
    where = f"--address {joined.address} --namespace {namespace}"
    say(f"still running: hifc status {where}")
    say(f"to stop it: hifc down {where}" + ("; ray stop" if joined.started else "") + f"; rm -r {scratch}")


def _directory(stack: contextlib.ExitStack, path: Path, keep: bool) -> Path:
    """Make a directory that goes at the end; that it goes is settled first, since Ctrl-C can come in between."""
    stack.push(_at_end(lambda: shutil.rmtree(path, ignore_errors=True), only_on_failure=keep))
    path.mkdir(mode=0o700)
    return path


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _heed_signals(handlers: dict[signal.Signals, Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)

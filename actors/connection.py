"""To which Ray this process belongs: one that runs, named by its address, or one of its own on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import ray

from hifc_ray import env
from hifc_ray.errors import ConfigError, TierUnavailable

OBJECT_STORE_BYTES = 256 << 20  # bytes of KV never travel through it; results with logits do
START_DEADLINE_S = 120.0  # of `ray start`
KNOCK_DEADLINE_S = 5.0  # for a port to answer
STOP_DEADLINE_S = 5.0  # from asking Ray's processes to end until they are killed


@dataclass(frozen=True)
class Connection:
    """The Ray of this process. `started`: it was started here, for this process."""

    address: str
    started: bool

    def __str__(self) -> str:
        return f"{'started here' if self.started else 'running already'}, {self.address}"


def join(address: str | None, namespace: str) -> Connection:
    """Connect to a Ray that runs: at `address`, at RAY_ADDRESS, or on this machine.

    Raises `ConfigError` for an address of another form, `TierUnavailable` if there is none.
    """
    where = address or env.ray_address() or "auto"
    if "://" in where or (where != "auto" and ":" not in where):
        raise ConfigError(f"address is {where!r}; allowed: auto, or host:port of a Ray cluster")
    place = "on this machine" if where == "auto" else f"at {where}"
    try:
        if where != "auto":
            _knock(where)
        context = ray.init(address=where, namespace=namespace, logging_level="error", log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise TierUnavailable(f"no Ray cluster {place}: start one with `ray start --head` or `ray up`") from error
    return Connection(context.address_info["gcs_address"], started=False)


def start_local(namespace: str, temp_dir: Path) -> Connection:
    """Start a Ray of this process's own, which ends with it; never one that runs already.

    Unix sockets lie in `temp_dir`, so its path must be short.
    """
    env.disable_ray_auth()
    context = ray.init(
        address="local",
        num_cpus=_num_cpus(),
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        namespace=namespace,
        logging_level="error",
        log_to_driver=False,
        _temp_dir=str(temp_dir),
    )
    return Connection(context.address_info["gcs_address"], started=True)


def start_lasting(namespace: str, temp_dir: Path) -> Connection:
    """Start a Ray that outlives this process, and join it. Raises `TierUnavailable` if it does not come up."""
    env.disable_ray_auth()
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--port=0", "--disable-usage-stats"]
    command += ["--include-dashboard=false", f"--num-cpus={_num_cpus()}", f"--ray-client-server-port={_free_port()}"]
    command += [f"--object-store-memory={OBJECT_STORE_BYTES}", f"--temp-dir={temp_dir}"]
    # Into files: the daemons inherit these descriptors, and a pipe would not end before they do.
    with tempfile.TemporaryFile() as output:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=START_DEADLINE_S, check=False
        )
        output.seek(0)
        last = output.read().decode(errors="replace").strip().splitlines()[-1:]
    address = temp_dir / "ray_current_cluster"
    if ended.returncode or not address.is_file():
        raise TierUnavailable(f"ray start ended with {ended.returncode}: {' '.join(last)}")
    joined = join(address.read_text().strip(), namespace)
    return Connection(joined.address, started=True)


def stop_lasting(temp_dir: Path) -> None:
    """End a Ray that `start_lasting` started, by its processes: those whose command line names its directory."""
    end = time.monotonic() + STOP_DEADLINE_S
    while pids := _processes_of(temp_dir):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < end else signal.SIGKILL)
        time.sleep(0.2)


def leave() -> None:
    """Disconnect; a Ray that `start_local` started ends. Safe to repeat."""
    ray.shutdown()


def _knock(address: str) -> None:
    """Raise OSError or ValueError at once where Ray would try for half a minute."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=KNOCK_DEADLINE_S).close()


def _processes_of(temp_dir: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if os.fsencode(temp_dir) in words and int(process.name) != os.getpid():
                found.append(int(process.name))
    return found


def _free_port() -> int:
    """Ray's own choice is one fixed number, taken where another Ray runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _num_cpus() -> int:
    return max(2, os.cpu_count() or 1)

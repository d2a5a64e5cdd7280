"""`hifc purge`: what is selected, what is refused in one line, what is printed."""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from hifc_ray.actors import connection, purging
from hifc_ray.cli import main
from hifc_ray.config import FlashConfig, HostConfig, TierConfig
from hifc_ray.keys import session_tag, tenant_tag
from hifc_ray.messages import Purge
from hifc_ray.policies import registry
from hifc_ray.tiering import TieredCache
from hifc_ray.types import Owner
from tests.fakes.blocks import OURS, SLOT_BYTES, store
from tests.fakes.tier import push_out, serve

HEX = OURS.hex()
ALICE, BOB = Owner(tenant_tag("pepper"), 10), Owner(2, 20)
REPORT: dict[str, Any] = {
    "ok": True,
    "host_blocks": 3,
    "flash_blocks": 2,
    "flash_bytes": 8192,
    "gpu_blocks": 4,
    "nodes": [{"node": "a" * 40, "host_blocks": 3, "flash_blocks": 2, "flash_bytes": 8192}],
    "engines": [{"engine": "hifc-engine-tiny-0", "gpu_blocks": 4}],
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Purge]:
    """A cluster that answers with REPORT, and what it was asked to purge."""
    seen: list[Purge] = []

    def purge(what: Purge, namespace: str) -> dict[str, Any]:
        assert namespace == "hifc"
        seen.append(what)
        return REPORT

    monkeypatch.setattr(connection, "join", lambda address, namespace: connection.Connection("head:1", started=False))
    monkeypatch.setattr(connection, "leave", lambda: None)
    monkeypatch.setattr(purging, "purge", purge)
    return seen


def test_each_option_names_what_is_purged(
    asked: list[Purge], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    file = tmp_path / "salt"
    file.write_text("pepper\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("pepper\n"))
    for arguments in (
        ("--tenant-salt", "pepper"),
        ("--tenant-salt", "-"),
        ("--tenant-salt-file", str(file)),
        ("--conversation", "chat 7"),
        ("--model-namespace", HEX),
    ):
        assert main.run(["purge", *arguments]) == 0
    tenant = Purge(tenant=tenant_tag("pepper"))
    assert asked == [tenant, tenant, tenant, Purge(session=session_tag("chat 7")), Purge(namespace=OURS)]
    out = capfd.readouterr().out
    for words in ("a" * 40, "8.2 KB", "hifc-engine-tiny-0"):
        assert words in out


def test_json_is_one_object(asked: list[Purge], capfd: Any) -> None:
    assert main.run(["purge", "--conversation", "chat", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == REPORT
    assert len(asked) == 1


def test_something_silent_is_said_and_is_exit_code_1(
    asked: list[Purge], monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    silent = {**REPORT, "ok": False, "nodes": [{"node": "b" * 40, "problem": "no answer within 120 s"}]}
    monkeypatch.setattr(purging, "purge", lambda what, namespace: silent)
    assert main.run(["purge", "--conversation", "chat"]) == 1
    assert "not purged: no answer within 120 s" in capfd.readouterr().out
    nothing = {**REPORT, "ok": False, "nodes": [], "engines": []}
    monkeypatch.setattr(purging, "purge", lambda what, namespace: nothing)
    assert main.run(["purge", "--conversation", "chat"]) == 1
    assert "nothing is up in namespace hifc" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to purge; allowed: exactly one of --tenant-salt"),
        (
            ("--tenant-salt", "a", "--conversation", "b"),
            "--tenant-salt and --conversation to purge; allowed",
        ),
        (("--tenant-salt", ""), "--tenant-salt is empty"),
        (("--conversation", ""), "--conversation is empty"),
        (("--model-namespace", HEX[1:]), f"'{HEX[1:]}'; allowed: 64 hexadecimal digits"),
        (("--model-namespace", "x" * 64), "allowed: 64 hexadecimal digits"),
        (("--model-namespace", HEX[:-2] + "  "), "allowed: 64 hexadecimal digits"),
        (("--tenant-salt-file", "/none"), "--tenant-salt-file is '/none': No such file"),
        (("--conversation", "a", "--flash-dir", "/none", "--address", "h:1"), "--address is 'h:1' and --flash-dir"),
        (("--conversation", "a", "--flash-dir", "/none"), "flash directory /none does not exist"),
    ],
)
def test_bad_input_is_one_line(asked: list[Purge], arguments: tuple[str, ...], words: str, capfd: Any) -> None:
    assert main.run(["purge", *arguments]) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert [words in line for line in said.err.splitlines()] == [True]
    assert asked == []


def test_an_empty_salt_from_a_file_or_stdin_purges_nothing(
    asked: list[Purge], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    file = tmp_path / "salt"
    file.write_text("\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main.run(["purge", "--tenant-salt-file", str(file)]) == 2
    assert main.run(["purge", "--tenant-salt", "-"]) == 2
    file.write_bytes(b"\xff\xfe")
    assert main.run(["purge", "--tenant-salt-file", str(file)]) == 2
    assert "not UTF-8" in capfd.readouterr().err
    assert asked == []


def test_no_cluster_is_exit_code_1(capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert main.run(["purge", "--conversation", "chat", "--address", address]) == 1
    assert f"no Ray cluster at {address}" in capfd.readouterr().err


def open_here(directory: Path, **options: Any) -> TieredCache:
    config = TierConfig(HostConfig(arena_bytes=16 * SLOT_BYTES), FlashConfig((directory,), 4 << 20, **options))
    return TieredCache(config, SLOT_BYTES, registry.eviction("lru"), registry.admission("always"), background=False)


def test_directories_of_nobody_are_purged_with_what_a_killed_process_left(tmp_path: Path, capfd: Any) -> None:
    cache = open_here(tmp_path)
    store(cache, range(3), owner=ALICE)
    store(cache, range(3, 5), owner=BOB)
    push_out(cache, [0, 3])
    command = ["purge", "--tenant-salt", "pepper", "--flash-dir", str(tmp_path)]
    assert main.run(command) == 2
    assert "live process" in capfd.readouterr().err
    cache.close(flush=False, keep_arena=True)  # as a kill would leave it

    assert main.run([*command, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["ok"], report["host_blocks"], report["flash_blocks"], report["gpu_blocks"]) == (True, 2, 1, 0)
    assert report["nodes"][0]["node"] == str(tmp_path)
    assert main.run([*command, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["host_blocks"] == 0

    cache = open_here(tmp_path)
    assert serve(cache, range(3, 5)) == [3, 4]
    assert serve(cache, range(1)) == serve(cache, [1, 2]) == []
    cache.close()


def test_an_empty_directory_has_nothing_to_purge(tmp_path: Path, capfd: Any) -> None:
    assert main.run(["purge", "--conversation", "chat", "--flash-dir", str(tmp_path)]) == 0
    assert str(tmp_path) in capfd.readouterr().out

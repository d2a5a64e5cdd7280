"""`hifc purge`: forget the blocks of one tenant, one conversation or one model, on every tier."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from hifc_ray import keys
from hifc_ray.cli.options import Address, FlashDirs, Namespace
from hifc_ray.cli.output import Json, print_table, results_on_stdout, say, to_json
from hifc_ray.config import format_bytes
from hifc_ray.errors import ConfigError
from hifc_ray.messages import Purge
from hifc_ray.types import KEY_BYTES
from hifc_ray.types import Namespace as ModelNamespace

Salt = Annotated[str | None, typer.Option("--tenant-salt", help="All of this tenant; - reads the salt from stdin.")]
SaltFile = Annotated[Path | None, typer.Option("--tenant-salt-file", help="The same, from a file.")]
Conversation = Annotated[str | None, typer.Option("--conversation", help="All of this conversation (`session`).")]
ModelNames = Annotated[
    str | None, typer.Option("--model-namespace", help="All of this namespace, in hex as `hifc status --json` has it.")
]


def purge(
    tenant_salt: Salt = None,
    tenant_salt_file: SaltFile = None,
    conversation: Conversation = None,
    model_namespace: ModelNames = None,
    address: Address = None,
    namespace: Namespace = "hifc",
    flash_dir: FlashDirs = None,
    as_json: Json = False,
) -> None:
    """Forget blocks on all engines and tiers of a running cluster, or with --flash-dir in directories that none uses.

    Exit code 1 if nothing is up or something does not answer: what that has is not purged.
    """
    what = selection(tenant_salt, tenant_salt_file, conversation, model_namespace)
    if flash_dir and address is not None:
        raise ConfigError(f"--address is {address!r} and --flash-dir is given; allowed: one of them")
    with results_on_stdout(as_json) as results:
        report = _offline(what, flash_dir) if flash_dir else _cluster(what, address, namespace)
        if as_json:
            print(to_json(report), file=results)
        else:
            _print(report)
    raise typer.Exit(0 if report["ok"] else 1)


def selection(
    tenant_salt: str | None, tenant_salt_file: Path | None, conversation: str | None, model_namespace: str | None
) -> Purge:
    """What these options name. Raises `ConfigError` unless they name exactly one thing."""
    given = {
        "--tenant-salt": tenant_salt,
        "--tenant-salt-file": tenant_salt_file,
        "--conversation": conversation,
        "--model-namespace": model_namespace,
    }
    named = [option for option, value in given.items() if value is not None]
    if len(named) != 1:
        raise ConfigError(f"{' and '.join(named) or 'nothing'} to purge; allowed: exactly one of {', '.join(given)}")
    if conversation is not None:
        return Purge(session=keys.session_tag(_some(conversation, "--conversation", "the name of a conversation")))
    if model_namespace is not None:
        return Purge(namespace=_namespace(model_namespace))
    salt = _read(tenant_salt_file) if tenant_salt_file else sys.stdin.read() if tenant_salt == "-" else tenant_salt
    # What has no salt is every tenant's that gives none: an option left empty by a script must not purge that.
    salt = _some((salt or "").rstrip("\r\n"), named[0], "a salt; blocks without one are purged by --model-namespace")
    return Purge(tenant=keys.tenant_tag(salt))


def _some(value: str, option: str, allowed: str) -> str:
    if not value:
        raise ConfigError(f"{option} is empty; allowed: {allowed}")
    return value


def _namespace(text: str) -> ModelNamespace:
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != KEY_BYTES or len(text) != 2 * KEY_BYTES:
        raise ConfigError(f"--model-namespace is {text!r}; allowed: {2 * KEY_BYTES} hexadecimal digits")
    return ModelNamespace(digest)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"--tenant-salt-file is {str(path)!r}: {reason}; allowed: a file with a salt") from error


def _offline(what: Purge, directories: list[Path]) -> dict[str, Any]:
    from hifc_ray.tiering.offline import purge_directories

    went = asdict(purge_directories(directories, what))
    place = ", ".join(map(str, directories))
    return {"ok": True, **went, "gpu_blocks": 0, "nodes": [{"node": place, **went}], "engines": []}


def _cluster(what: Purge, address: str | None, namespace: str) -> dict[str, Any]:
    from hifc_ray.actors import connection, purging

    try:
        joined = connection.join(address, namespace)
        report = purging.purge(what, namespace)
    finally:
        connection.leave()
    if not report["nodes"] and not report["engines"]:
        say(f"hifc: nothing is up in namespace {namespace} on {joined.address}")
    return report


def _print(report: dict[str, Any]) -> None:
    rows = [
        (row.get("node", row.get("engine")), *_cells(row, ("gpu_blocks", "host_blocks", "flash_blocks", "flash_bytes")))
        for row in (*report["nodes"], *report["engines"])
    ]
    print_table("purged", ("of", "GPU blocks", "host blocks", "flash blocks", "on flash"), rows)


def _cells(row: dict[str, Any], names: tuple[str, ...]) -> tuple[object, ...]:
    if "problem" in row:
        return (f"not purged: {row['problem']}", "", "", "")
    values = [row.get(name, "") for name in names]
    return (*values[:3], format_bytes(values[3]) if values[3] != "" else "")

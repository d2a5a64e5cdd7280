"""How commands end: codes, one line on stderr, and nothing but JSON on stdout where JSON was asked for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from hifc_ray import errors
from hifc_ray.cli import main

HEAVY = ("ray", "torch", "transformers", "pyarrow")


def hifc(*arguments: str, code: str = "from hifc_ray.cli.main import main; main()") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts one command, `try`, in the place of all others; its body is what the test gives."""

    def put(body: Any) -> None:
        app = typer.Typer(pretty_exceptions_enable=False)
        app.command("try")(lambda: body())
        app.command("other")(lambda: None)
        monkeypatch.setattr(main, "app", app)

    return put


def raiser(error: BaseException) -> Any:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("host.arena_bytes is 7;\n  allowed: more"), 2),
        (errors.ModelRefused("model has a sliding window"), 2),
        (errors.RequestRefused("prompt of 9000 tokens"), 2),
        (errors.NoRoom("/dev/shm has 1 MB"), 2),
        (errors.DirectoryLocked("flash directory is owned"), 2),
        (errors.TierUnavailable("no cache tier on this node"), 1),
    ],
)
def test_what_a_person_can_put_right_is_one_line(command: Any, capfd: Any, error: Exception, code: int) -> None:
    command(raiser(error))
    assert main.run(["try"]) == code
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == f"hifc: {' '.join(str(error).split())}\n"


@pytest.mark.parametrize(
    "error", [errors.ConservationBroken("9 + 1 != 11"), errors.InvalidTransition("COMMIT"), KeyError("x")]
)
def test_a_bug_keeps_its_traceback(command: Any, error: Exception) -> None:
    command(raiser(error))
    with pytest.raises(type(error)):
        main.run(["try"])


@pytest.mark.parametrize(("body", "code"), [(lambda: None, 0), (raiser(typer.Exit(1)), 1), (raiser(typer.Exit(0)), 0)])
def test_the_answer_is_the_code(command: Any, body: Any, code: int) -> None:
    command(body)
    assert main.run(["try"]) == code


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_an_interrupt_is_quiet(command: Any, capfd: Any, error: BaseException) -> None:
    command(raiser(error))
    assert main.run(["try"]) == 130
    assert capfd.readouterr().err.strip() == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fly"], ["fly", "hifc --help"]),
        (["doctor", "--wings"], ["--wings", "hifc doctor --help"]),
        (["doctor", "--host-bytes"], ["--host-bytes"]),
        (["doctor", "extra"], ["extra"]),
        (["doctor", "--host-bytes", "lots"], ["tier.host.arena_bytes", "'lots'", "GiB"]),
        (["doctor", "--device", "tpu"], ["engine.device", "'tpu'", "cuda:N"]),
        (["doctor", "--config", "/none.yaml"], ["/none.yaml", "No such file"]),
    ],
)
def test_bad_input_is_one_line_that_names_it(capfd: Any, arguments: list[str], words: list[str]) -> None:
    assert main.run(arguments) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hifc: ")
    assert captured.err.count("\n") == 1
    assert [word for word in words if word not in captured.err] == []


def test_help_loads_nothing_heavy() -> None:
    loaded = f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    result = hifc("--help", code=f"import sys; from hifc_ray.cli import main; main.run(['--help']); {loaded}")
    assert "doctor" in result.stdout
    assert result.stderr == "[]\n"


def test_no_arguments_is_help() -> None:
    result = hifc()
    assert (result.returncode, result.stderr) == (0, "")
    assert "Usage: hifc" in result.stdout


@pytest.mark.timeout(60)
def test_ctrl_c_ends_a_running_command_with_130() -> None:
    body = "print('up', flush=True); time.sleep(50)"
    code = (
        "import sys, time, typer; from hifc_ray.cli import main\n"
        f"def wait(): {body}\n"
        "main.app = typer.Typer(pretty_exceptions_enable=False); main.app.command()(wait)\n"
        "sys.argv = ['hifc', 'wait']; main.app.command('other')(wait); main.main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        os.kill(running.pid, signal.SIGINT)
        _, stderr = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "Traceback" not in stderr


def test_doctor_of_a_machine_that_cannot(tmp_path: Path, capfd: Any) -> None:
    flash = str(tmp_path / "none")
    assert main.run(["doctor", "--json", "--flash-dir", flash, "--host-bytes", "900TiB"]) == 1
    answer = json.loads(capfd.readouterr().out)
    assert answer["ok"] is False
    advice = {verdict["name"]: verdict["advice"] for verdict in answer["verdicts"] if verdict["level"] == "fail"}
    assert advice["flash"] == f"mkdir -p -m 700 {flash}"
    assert "tier.host.arena_bytes" in advice["shared memory"]


def test_doctor_of_a_machine_that_can(tmp_path: Path, capfd: Any) -> None:
    arguments = ["doctor", "--flash-dir", str(tmp_path), "--host-bytes", "1MiB", "--flash-bytes", "1MiB"]
    assert main.run([*arguments, "--json"]) == 0
    captured = capfd.readouterr()
    assert captured.out.count("\n") == 1
    assert json.loads(captured.out)["ok"] is True
    assert main.run([*arguments, "--device", "cpu"]) == 0
    assert "shared memory" in capfd.readouterr().out

"""What holds for every test: no Ray in unit tests, arenas in a directory of the session's own, nothing left behind."""

from __future__ import annotations

import builtins
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

# Ray reads this when it is first imported, and would otherwise want a token for a cluster of one machine.
os.environ["RAY_AUTH_MODE"] = "disabled"

_MAY_START_RAY = Path(__file__).parent / "ray"


def _refuse_ray(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError("ray.init in a unit test: tests that start Ray live in tests/ray")


@pytest.fixture(autouse=True)
def no_ray(request: pytest.FixtureRequest) -> Iterator[None]:
    """`ray.init` raises, whether Ray is imported already or only while the test runs; Ray itself is not imported."""
    if request.path.is_relative_to(_MAY_START_RAY):
        yield
        return
    plain_import = builtins.__import__
    guarded: list[tuple[Any, Any]] = []  # module, its own init

    def guard() -> None:
        ray: Any = sys.modules.get("ray")
        # While Ray is being imported its `init` is not there yet.
        if ray is not None and getattr(ray, "init", _refuse_ray) is not _refuse_ray:
            guarded.append((ray, ray.init))
            ray.init = _refuse_ray

    def guarded_import(*args: Any, **kwargs: Any) -> Any:
        module = plain_import(*args, **kwargs)
        guard()
        return module

    guard()
    builtins.__import__ = guarded_import
    yield
    builtins.__import__ = plain_import
    for ray, init in guarded:
        ray.init = init


@pytest.fixture(scope="session", autouse=True)
def shm_dir_of_the_session() -> Iterator[Path]:
    """Arenas of this session lie apart, so that those of other processes cannot be taken for its leaks."""
    directory = Path(tempfile.mkdtemp(prefix="hifc-tests-", dir="/dev/shm"))
    before = os.environ.get("HIFC_SHM_DIR")
    os.environ["HIFC_SHM_DIR"] = str(directory)
    yield directory
    if before is None:
        del os.environ["HIFC_SHM_DIR"]
    else:
        os.environ["HIFC_SHM_DIR"] = before
    left = sorted(path.name for path in directory.rglob("*"))
    shutil.rmtree(directory)
    assert not left, f"tests left shared memory behind: {', '.join(left)}"


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """An empty directory with a short path: Unix sockets allow 107 bytes, which `tmp_path` can exceed."""
    directory = Path(tempfile.mkdtemp(prefix="h", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)

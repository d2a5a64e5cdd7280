"""The guards of conftest.py work: each is tried where it could be got round."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hifc_ray import env

pytest_plugins = ["pytester"]

FAKE_RAY = "def init(**options):\n    raise SystemExit('Ray would have started')\n"
CONFTEST = Path(__file__).parents[1] / "conftest.py"

UNIT_TESTS = """
import importlib, sys
import pytest

@pytest.mark.parametrize("code", [
    "import ray; ray.init()",
    "from ray import init; init()",
    "importlib.import_module('ray'); import ray; ray.init(num_cpus=1)",
])
def test_imported_late(code):
    sys.modules.pop("ray", None)
    with pytest.raises(RuntimeError, match="tests/ray"):
        exec(code)

def test_imported_before():
    with pytest.raises(RuntimeError, match="tests/ray"):
        sys.modules["ray"].init()
"""

RAY_TESTS = """
import pytest, ray

def test_may_start():
    with pytest.raises(SystemExit):
        ray.init()
"""

LEAKING_TEST = """
import os, pathlib

def test_leaks():
    pathlib.Path(os.environ["HIFC_SHM_DIR"], "hifc-x").touch()
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A small project with this project's conftest.py and a module `ray` whose `init` ends the process."""
    (pytester.mkdir("tests") / "conftest.py").write_text(CONFTEST.read_text())
    pytester.makepyfile(ray=FAKE_RAY)
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester


def run(project: pytest.Pytester) -> pytest.RunResult:
    return project.runpytest_subprocess("--import-mode=importlib", "-p", "no:cacheprovider", "tests")


def test_only_tests_of_the_ray_room_may_start_ray(project: pytest.Pytester) -> None:
    project.mkdir("tests/ray")
    project.makepyfile(**{"tests/test_unit": UNIT_TESTS, "tests/ray/test_actors": RAY_TESTS})
    run(project).assert_outcomes(passed=5)


def test_a_leaked_arena_fails_the_session(project: pytest.Pytester) -> None:
    project.makepyfile(**{"tests/test_unit": LEAKING_TEST})
    result = run(project)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*left shared memory behind: hifc-x*"])


def test_arenas_of_tests_lie_apart(shm_dir_of_the_session: Path) -> None:
    assert env.shm_dir() == shm_dir_of_the_session
    assert env.shm_dir() != Path("/dev/shm")


def test_the_ground_floor_needs_neither_ray_nor_torch() -> None:
    code = "import sys, hifc_ray.client, hifc_ray.config; sys.exit('ray' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

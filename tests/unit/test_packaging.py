"""What is installed is what lies here: the two links, the packages behind them, the pins."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("actors", "policies")
NEEDED = ("pyproject.toml", "LICENSE", "README.md")
BUILD = "from setuptools import build_meta as b; print(b.build_sdist('out')); print(b.build_wheel('out'))"


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_at_the_top_are_linked_into_the_package(room: str) -> None:
    link = ROOT / "hifc_ray" / room
    assert link.is_symlink(), f"{link} is not a link: whatever unpacked this project has lost it; check it out with git"
    assert link.readlink() == Path("..") / room
    assert (link / "__init__.py").samefile(ROOT / room / "__init__.py")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist and a wheel, built from a copy so that nothing is left in the checkout."""
    copy = tmp_path_factory.mktemp("project")
    for room in ("hifc_ray", *ROOMS):
        shutil.copytree(ROOT / room, copy / room, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in NEEDED:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy)
    (copy / "out").mkdir()
    subprocess.run([sys.executable, "-c", BUILD], cwd=copy, check=True, capture_output=True, timeout=120)
    return copy / "out"


def sources() -> set[str]:
    """Every module of the package, by its path as it is imported."""
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "hifc_ray").rglob("*.py")}
    for room in ROOMS:
        found |= {f"hifc_ray/{path.relative_to(ROOT)}" for path in (ROOT / room).rglob("*.py")}
    return found


def test_the_wheel_has_every_module_once(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name for name in names if name.endswith(".py")} == sources()
    assert "hifc_ray/py.typed" in names
    assert not [name for name in names if name.startswith((*ROOMS, "tests", "build"))]


def test_the_sdist_has_every_module_as_a_file(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {member.name.split("/", 1)[1] for member in archive if member.isfile()}
    assert sources() <= files


def test_data_of_the_package_is_in_the_wheel(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if "/data/" in name}
    assert packed == {str(p.relative_to(ROOT)) for p in (ROOT / "hifc_ray").glob("*/data/*") if p.is_file()}


def requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    return [re.split(r"[\[<>=]", line)[0] for line in (*project["dependencies"], *(r for e in extras for r in e))]


def test_every_requirement_is_pinned_and_nothing_names_a_place() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin)] == []
    pinned = {pin.split("==")[0].lower() for pin in pins}
    assert [name for name in requirements() if name.lower() not in pinned] == []
    assert "torch==2.13.0" in pins
    assert [pin for pin in pins if pin.startswith("nvidia-") and not pin.startswith("nvidia-ml-py")] == []

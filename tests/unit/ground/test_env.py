from __future__ import annotations

from pathlib import Path

import pytest

from hifc_ray import env


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HIFC_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert env.cache_home() == Path.home() / ".cache" / "hifc_ray"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert env.cache_home() == Path("/xdg/hifc_ray")
    monkeypatch.setenv("HIFC_CACHE_DIR", "~/own")
    assert env.cache_home() == Path.home() / "own"


@pytest.mark.parametrize(("value", "directory"), [("", "/dev/shm"), ("/mnt/shm", "/mnt/shm")])
def test_the_directory_of_arenas(monkeypatch: pytest.MonkeyPatch, value: str, directory: str) -> None:
    monkeypatch.setenv("HIFC_SHM_DIR", value)
    assert env.shm_dir() == Path(directory)


def test_the_address_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert env.ray_address() is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert env.ray_address() == "10.0.0.1:6379"

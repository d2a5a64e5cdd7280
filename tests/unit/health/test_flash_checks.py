"""Verdicts on a flash directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hifc_ray.health import flash_checks
from hifc_ray.health.directory import DirectoryReading
from hifc_ray.health.verdict import Level, Verdict

GB = 10**9
DIRECTORY = DirectoryReading(
    Path("/flash"), True, True, True, free_bytes=9 * GB, used_bytes=GB, direct=True, readable=True, mode=0o700, device=1
)


def check(
    reading: DirectoryReading | None, wanted: int = 10 * GB, room: int = 10 * GB, read_only: bool = False
) -> Verdict:
    return flash_checks.check_flash(reading, wanted, room, read_only)


def test_room_for_its_share() -> None:
    assert check(DIRECTORY).level == Level.OK
    assert "10.0 GB" in check(DIRECTORY).what
    tight = check(DIRECTORY, room=10 * GB - 1)
    assert tight.level == Level.WARN
    assert "limit_bytes" in tight.advice


def test_no_directory_is_a_warning() -> None:
    assert check(None).level == Level.WARN


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (DirectoryReading(Path("/flash"), exists=False), "mkdir -p -m 700 /flash"),
        (DirectoryReading(Path("/flash"), exists=True), "not a directory"),
        (replace(DIRECTORY, writable=False), "cannot be written to"),
        (replace(DIRECTORY, writable=False), "tier.flash.read_only serves"),
    ],
)
def test_directories_that_cannot_be_used(reading: DirectoryReading, words: str) -> None:
    verdict = check(reading)
    assert verdict.level == Level.FAIL
    assert words in f"{verdict.what} {verdict.advice}"


def test_read_only_use_needs_no_right_to_write() -> None:
    assert check(replace(DIRECTORY, writable=False), room=0, read_only=True).level == Level.OK
    unreadable = check(replace(DIRECTORY, writable=False, readable=False), read_only=True)
    assert unreadable.level == Level.FAIL
    assert "cannot be read" in unreadable.what


def test_direct_io() -> None:
    assert flash_checks.check_direct_io(DIRECTORY).level == Level.OK
    refused = flash_checks.check_direct_io(replace(DIRECTORY, direct=False))
    assert refused.level == Level.WARN
    assert "ext4 or xfs" in refused.advice


@pytest.mark.parametrize(
    ("mode", "advice"),
    [
        (0o700, ""),
        (0o500, ""),
        (0o750, "chmod 700 /flash"),
        (0o701, "chmod 700 /flash"),
        (0o1777, "mkdir -m 700 /flash/hifc"),
    ],
)
def test_permissions(mode: int, advice: str) -> None:
    verdict = flash_checks.check_permissions(replace(DIRECTORY, mode=mode))
    assert verdict.level == (Level.WARN if advice else Level.OK)
    assert advice in verdict.advice


def test_directories_on_one_file_system_share_its_room() -> None:
    other, elsewhere = replace(DIRECTORY, used_bytes=0), replace(DIRECTORY, device=2)
    assert flash_checks.room_for(DIRECTORY, [DIRECTORY]) == 10 * GB
    assert flash_checks.room_for(DIRECTORY, [DIRECTORY, other, elsewhere]) == 5_500_000_000

"""Which measures are run, and what is said when they cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hifc_ray.bench.sections import SECTIONS, chosen
from hifc_ray.cli import main
from hifc_ray.errors import ConfigError


def test_all_sections_or_the_named_ones_in_their_usual_order() -> None:
    assert chosen(None) == SECTIONS
    assert chosen("flash, lookup") == ("lookup", "flash")


@pytest.mark.parametrize("only", ["wings", "flash,", "", "flash;host"])
def test_an_unknown_section_is_refused_with_those_there_are(only: str) -> None:
    with pytest.raises(ConfigError, match=r"--only is .*; allowed: some of lookup,host,flash,ttft,engine"):
        chosen(only)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "wings"], ["--only", "'wings'", "ttft"]),
        (["--only", "flash", "--flash-dir", "/nowhere"], ["--flash-dir", "/nowhere", "O_DIRECT"]),
        (["--only", "host", "--model", "/nowhere"], ["/nowhere"]),
        (["--wings"], ["--wings", "hifc bench tiers --help"]),
    ],
)
def test_bad_input_is_one_line_that_names_it(capfd: Any, arguments: list[str], words: list[str]) -> None:
    assert main.run(["bench", "tiers", *arguments]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last.startswith("hifc: ")
    assert [word for word in words if word not in last] == []


def test_what_is_made_for_it_goes_with_it(tmp_path: Path) -> None:
    assert main.run(["bench", "tiers", "--only", "flash", "--flash-dir", str(tmp_path), "--model", "/nowhere"]) == 2
    assert list(tmp_path.iterdir()) == []

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from hifc_ray.cli.output import print_table, results_on_stdout, say, to_json


def test_json_of_what_commands_have() -> None:
    value = {
        "path": Path("/a"),
        "count": np.int64(7),
        "share": np.float32(0.5),
        "row": np.array([1, 2]),
        "pair": (1, None),
        "worst": float("nan"),
        3: [float("inf")],
    }
    assert json.loads(to_json(value)) == {
        "path": "/a",
        "count": 7,
        "share": 0.5,
        "row": [1, 2],
        "pair": [1, None],
        "worst": None,
        "3": [None],
    }
    assert "\n" not in to_json(value)


def test_reserved_stdout_carries_results_only(capfd: Any) -> None:
    with results_on_stdout(reserved=True) as results:
        print("library")
        os.write(1, b"C library\n")
        subprocess.run(["echo", "child"], check=True)
        say("progress")
        print("result", file=results)
    print("after")
    captured = capfd.readouterr()
    assert captured.out == "result\nafter\n"
    assert sorted(captured.err.split("\n")) == ["", "C library", "child", "library", "progress"]


def test_stdout_is_given_back_after_a_failure(capfd: Any) -> None:
    try:
        with results_on_stdout(reserved=True):
            raise ValueError
    except ValueError:
        print("after")
    assert capfd.readouterr().out == "after\n"


def test_stdout_that_is_not_reserved_is_stdout(capfd: Any) -> None:
    with results_on_stdout(reserved=False) as results:
        print("table", file=results)
    assert capfd.readouterr().out == "table\n"


def test_a_table_shows_every_cell_as_it_is(capfd: Any) -> None:
    print_table("Tiers", ("tier", "hits", "seconds"), [("gpu [on cpu]", 12, 0.12345), ("flash", 3, 1234.5)])
    out = capfd.readouterr().out
    assert [cell for cell in ("Tiers", "gpu [on cpu]", "12", "0.123", "1,234") if cell not in out] == []

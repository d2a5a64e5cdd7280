"""Purging a cluster: who is asked in which order, what is added up, and what is said of those that do not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hifc_ray.actors import cluster, purging
from hifc_ray.actors.calls import CallTimedOut
from hifc_ray.actors.cluster import Found
from hifc_ray.messages import Purge, PurgeReport

WHAT = Purge(session=5)


class Actor:
    """A handle whose `purge` gives one answer after the other; an error is raised when it is asked for."""

    def __init__(self, name: str, log: list[str], *answers: Any) -> None:
        self._name, self._log, self._answers = name, log, list(answers)

    @property
    def purge(self) -> Any:
        return self

    def remote(self, what: Purge) -> Callable[[], Any]:
        assert what == WHAT
        self._log.append(self._name)
        answer = self._answers.pop(0)

        def give() -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        return give


def purge(monkeypatch: pytest.MonkeyPatch, tiers: dict[str, Actor], engines: dict[str, Actor]) -> dict[str, Any]:
    monkeypatch.setattr(cluster, "find", lambda namespace: Found(None, None, tiers, engines))
    monkeypatch.setattr(purging, "ask", lambda give, deadline_s: give())
    return purging.purge(WHAT, "hifc")


def test_engines_are_asked_before_and_after_the_tiers_and_all_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    tiers = {"n1": Actor("n1", log, PurgeReport(1, 2, 300)), "n2": Actor("n2", log, PurgeReport(10, 0, 0))}
    engines = {"e1": Actor("e1", log, 4, 1), "e2": Actor("e2", log, 0, 0)}
    report = purge(monkeypatch, tiers, engines)
    assert log == ["e1", "e2", "n1", "n2", "e1", "e2"]
    assert report == {
        "ok": True,
        "host_blocks": 11,
        "flash_blocks": 2,
        "flash_bytes": 300,
        "gpu_blocks": 5,
        "nodes": [
            {"node": "n1", "host_blocks": 1, "flash_blocks": 2, "flash_bytes": 300},
            {"node": "n2", "host_blocks": 10, "flash_blocks": 0, "flash_bytes": 0},
        ],
        "engines": [{"engine": "e1", "gpu_blocks": 5}, {"engine": "e2", "gpu_blocks": 0}],
    }


def test_what_does_not_answer_is_named_and_the_others_are_purged(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    late = CallTimedOut("no answer within 120 s")
    tiers = {"n1": Actor("n1", log, late), "n2": Actor("n2", log, PurgeReport(1, 0, 0))}
    engines = {"e1": Actor("e1", log, 3, late), "e2": Actor("e2", log, late, 2)}
    report = purge(monkeypatch, tiers, engines)
    assert not report["ok"]
    assert report["nodes"][0] == {"node": "n1", "problem": "no answer within 120 s"}
    assert (report["host_blocks"], report["gpu_blocks"]) == (1, 5)
    assert [row["problem"] for row in report["engines"]] == ["no answer within 120 s"] * 2
    assert [row["gpu_blocks"] for row in report["engines"]] == [3, 2]


def test_what_is_not_finished_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    report = purge(monkeypatch, {"n1": Actor("n1", [], PurgeReport(4, unfinished=True))}, {})
    assert (report["ok"], report["host_blocks"]) == (False, 4)
    assert "a write to flash hangs" in report["nodes"][0]["problem"]


def test_nothing_up_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    report = purge(monkeypatch, {}, {})
    assert (report["ok"], report["nodes"], report["engines"], report["host_blocks"]) == (False, [], [], 0)

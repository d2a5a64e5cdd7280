"""Calls of a real cache-tier actor, measured idle and beside an engine that computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.model_folder import save_model


@pytest.mark.timeout(180)
def test_calls_of_the_actor(tmp_path: Path) -> None:
    from hifc_ray.bench import calls

    said: list[str] = []
    figures = calls.measure(save_model(tmp_path), said.append, 20, 0.5)
    assert [figure.name for figure in figures] == ["lookup_call_ratio.idle", "lookup_call_ratio.busy"]
    for figure in figures:
        assert len(figure.samples) == calls.NUM_ROUNDS
        assert figure.parts["calls"] >= 20
        assert 0 < figure.parts["empty_p50_s"] < figure.parts["empty_p99_s"]
        assert all(sample > 0 for sample in figure.samples)
    assert len(said) == 3

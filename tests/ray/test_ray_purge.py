"""`hifc purge` on a cluster: the next turn finds nothing on any tier, others find everything, silence is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hifc_ray.actors import purging
from hifc_ray.actors.calls import ask
from hifc_ray.engine.sequence import Result
from hifc_ray.keys import session_tag
from hifc_ray.messages import Purge
from tests.fakes.stage import WAIT_S, Stage, eventually, generate, inside, same

pytestmark = pytest.mark.timeout(150)
SECRET, OTHER = (np.random.default_rng(seed).integers(1, 200, 8 * 16 + 9).tolist() for seed in range(2))


def push_out_all(tier_actor: Any) -> bool:
    return bool(tier_actor._cache.demote_all(WAIT_S))


def forget_pool(engine_actor: Any) -> int:
    return int(engine_actor._engine.forget_pool())


def found(result: Result) -> dict[str, int]:
    return {tier: count for tier, count in result.blocks.items() if count}


def test_a_conversation_is_purged_from_engine_host_and_flash(stage: Stage) -> None:
    tier = stage.tier(64)
    engine = stage.engine("only")
    assert len(ask(engine.ready.remote(), WAIT_S)["namespace"]) == 64
    for prompt, session in ((SECRET, "secret"), (OTHER, "other")):
        assert found(generate(engine, prompt, session=session)) == {"computed": 8}
    assert ask(engine.drain.remote(), WAIT_S)
    eventually(lambda: stage.slots()["resident"] == 16)
    assert inside(tier, push_out_all)
    assert inside(engine, forget_pool) == 16
    assert found(generate(engine, SECRET[: 4 * 16 + 1], session="secret")) == {"flash": 4}

    report = purging.purge(Purge(session=session_tag("secret")), stage.namespace)
    assert report["ok"]
    assert [report[tier + "_blocks"] for tier in ("gpu", "host", "flash")] == [4, 4, 8]
    assert [row["node"] for row in report["nodes"]] == [stage.node]

    without = generate(engine, SECRET, cache="off")
    again = generate(engine, SECRET, session="secret")
    assert found(again) == {"computed": 8}
    assert same(again, without)
    assert found(generate(engine, OTHER, session="other")) == {"flash": 8}
    stage.check()

    ask(tier.close.remote(flush=False), WAIT_S)
    report = purging.purge(Purge(session=session_tag("other")), stage.namespace)
    assert not report["ok"]
    assert report["nodes"] == [{"node": stage.node, "problem": "the cache tier was closed"}]
    assert report["gpu_blocks"] == 8

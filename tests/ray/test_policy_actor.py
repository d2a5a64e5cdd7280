"""Reports and weights over the real wire: versions rise, tiers take them, and nobody needs the actor to live."""

from __future__ import annotations

from typing import Any

import pytest

from hifc_ray.actors.calls import ask
from hifc_ray.errors import ConfigError
from hifc_ray.messages import Report
from hifc_ray.reports import reports_to_arrow
from tests.fakes.blocks import SOON, query, store
from tests.fakes.driven import eviction_version
from tests.fakes.stage import WAIT_S, Stage, eventually, inside, kill_process, pid
from tests.fakes.tier import serve

pytestmark = pytest.mark.timeout(90)


def report(sequence: int, *, node: str = "another", incarnation: int = 1, version: int = 0) -> Any:
    return reports_to_arrow([Report(node, incarnation, sequence, 10 * sequence, sequence, 0, version)])


def weights_version(stage: Stage) -> int:
    return int(stage.summary()["weights_version"])


def test_reports_that_say_something_new_raise_the_version(stage: Stage) -> None:
    policy = stage.policy()
    assert ask(policy.weights.remote(), WAIT_S).version == 0
    versions = [ask(policy.report.remote(report(sequence)), WAIT_S).version for sequence in (1, 2, 2, 1, 3)]
    assert versions == [1, 2, 2, 2, 3]
    assert ask(policy.report.remote(report(1, node="third", version=40)), WAIT_S).version == 41
    nodes = ask(policy.nodes.remote(), WAIT_S)
    assert {node: newest.sequence for node, newest in nodes.items()} == {"another": 3, "third": 1}
    with pytest.raises(ConfigError, match="reports have the schema"):
        ask(policy.report.remote(report(9).drop_columns(["hits"])), WAIT_S)
    assert ask(policy.weights.remote(), WAIT_S).version == 41


def test_the_policy_actor_is_killed_and_tiers_go_on(stage: Stage) -> None:
    policy = stage.policy()
    tier = stage.small_tier()
    client = stage.client()
    before = eventually(lambda: weights_version(stage))
    newest = eventually(lambda: ask(policy.nodes.remote(), WAIT_S))
    assert set(newest) == {stage.node}

    seen = [before]
    killed = kill_process(policy)
    store(client, range(4))
    while pid_of(policy) == killed:
        assert serve(client, range(4)) == [0, 1, 2, 3]
        seen.append(weights_version(stage))
    later = eventually(lambda: (now := weights_version(stage)) > seen[-1] and now)
    seen.append(later)
    assert seen == sorted(seen)
    assert inside(tier, eviction_version) >= later
    assert ask(policy.weights.remote(), WAIT_S).version >= later
    client.lookup(query([9]), SOON)
    asked = int(stage.summary()["counters"]["lookup_keys"])
    eventually(lambda: ask(policy.nodes.remote(), WAIT_S)[stage.node].accesses >= asked)

    killed = kill_process(tier)
    eventually(lambda: pid(tier) != killed)
    assert eventually(lambda: weights_version(stage) > later)  # a tier started again takes those of the moment
    assert set(ask(policy.nodes.remote(), WAIT_S)) == {stage.node}


def pid_of(actor: Any) -> int:
    return int(eventually(lambda: pid(actor)))

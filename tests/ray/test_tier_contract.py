"""The contract of a tier client, over Ray: a cache-tier actor, its client here, a second engine in another process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from hifc_ray.actors.calls import ask
from hifc_ray.client import TierClient
from hifc_ray.messages import Purge, PurgeReport
from tests.contracts.tier_client import Rig, TierClientContract
from tests.fakes.driven import open_anew, push_out_of
from tests.fakes.remote_client import remote_client
from tests.fakes.stage import WAIT_S, Stage, eventually, inside

pytestmark = pytest.mark.timeout(60)


class TestOverRay(TierClientContract):
    @pytest.fixture
    def rig(self, shared_stage: Stage) -> Iterator[Rig]:
        tier = shared_stage.find_tier()
        if tier is None:
            tier = shared_stage.small_tier()
        else:
            inside(tier, open_anew)
        client = shared_stage.client()
        others: list[Any] = []

        def push_out(numbers: Iterable[int]) -> None:
            client.flush()
            inside(tier, push_out_of, list(numbers))

        def purge(what: Purge) -> PurgeReport:
            client.flush()
            report: PurgeReport = ask(tier.purge.remote(what), WAIT_S)
            return report

        def second() -> TierClient:
            others.append(remote_client(shared_stage))
            return others[-1]

        def kill_second() -> None:
            others[-1].kill()
            eventually(lambda: shared_stage.summary()["counters"].get("holders_lost") == 1)

        yield Rig(client, push_out, shared_stage.check, purge, second, kill_second)
        client.close()
        for other in others:
            other.close()
        slots = eventually(lambda: (found := shared_stage.slots())["leased"] == found["reserved"] == 0 and found)
        assert slots["quarantined"] == slots["doomed"] == 0
        shared_stage.check()

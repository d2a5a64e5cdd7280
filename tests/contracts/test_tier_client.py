"""The contract of a tier client, in one process: `TieredCache` and its twin in a dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from hifc_ray.flash import MemoryDevice
from hifc_ray.memory_tier import MemoryTier
from tests.contracts.tier_client import NUM_SLOTS, WINDOW, Rig, TierClientContract
from tests.fakes.blocks import OURS, SLOT_BYTES, key
from tests.fakes.tier import open_tier, push_out

pytestmark = pytest.mark.timeout(60)


class TestTieredCache(TierClientContract):
    @pytest.fixture(params=["quiet", "background"])
    def rig(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
        tier = open_tier(
            tmp_path,
            slots=NUM_SLOTS,
            flash=MemoryDevice(),
            background=request.param == "background",
            window_share=WINDOW / NUM_SLOTS,
        )
        yield Rig(tier, lambda numbers: push_out(tier, numbers), tier.check, tier.purge)
        tier.check()
        tier.close(flush=False)


class TestMemoryTier(TierClientContract):
    @pytest.fixture
    def rig(self) -> Iterator[Rig]:
        tier = MemoryTier(SLOT_BYTES, NUM_SLOTS, WINDOW, keep_evicted=True)

        def evict(numbers: Iterable[int]) -> None:
            assert all(tier.evict((OURS, key(number))) for number in numbers)

        yield Rig(tier, evict, tier.check, tier.purge)
        tier.close()

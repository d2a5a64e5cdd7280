"""The quota of a tenant on flash: never exceeded, whatever is under way, and nobody else's affair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hifc_ray.flash import FlashStore
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.messages import Purge
from hifc_ray.tiering import TieredCache
from hifc_ray.types import Fate, Owner, Tier
from tests.contracts.tier_client import ALICE, BOB
from tests.fakes.blocks import OURS, SLOT_BYTES, SOON, keys, query, store
from tests.fakes.flash import FaultyDevice
from tests.fakes.tier import WAIT_S, Held, faulty, in_host, on_flash, open_tier, push_out

RECORD_BYTES = SLOT_BYTES + PAGE_BYTES  # with its header
QUOTA_BYTES = 5 * RECORD_BYTES - 1  # room for four
pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def device() -> FaultyDevice:
    return faulty()


@pytest.fixture
def tier(tmp_path: Path, device: FaultyDevice) -> Iterator[TieredCache]:
    made = open_tier(tmp_path, slots=24, flash=device, flash_options={"tenant_quota_bytes": QUOTA_BYTES})
    yield made
    assert made.idle(WAIT_S)
    made.check()
    made.close(flush=False)


def flash_of(tier: TieredCache) -> FlashStore:
    flash = tier._shared.flash
    assert flash is not None
    return flash


def begin_demotion(tier: TieredCache, numbers: range) -> None:
    slots = tier._books.find(keys(numbers))
    tier._demoter._evict(slots, tier._books.table.generation[slots].astype("int64"))


def test_a_tenant_stays_within_its_quota_and_the_others_have_theirs(tier: TieredCache) -> None:
    store(tier, range(7), owner=ALICE)
    store(tier, range(7, 10), owner=Owner(ALICE.tenant, 99))  # another conversation, the same tenant
    store(tier, range(10, 14), owner=BOB)
    push_out(tier, range(14))
    assert on_flash(tier, range(14)) == [0, 1, 2, 3, 10, 11, 12, 13]
    for tenant in (ALICE.tenant, BOB.tenant):
        assert flash_of(tier)._index.tenant_bytes(tenant) == 4 * RECORD_BYTES
    assert tier.stats.get("refused_bytes", tier=Tier.FLASH, reason="quota") == 6 * SLOT_BYTES
    reply = tier.lookup(query([5]), SOON)
    assert reply.missed is not None
    assert reply.missed.fate == Fate.NOT_ADMITTED


def test_what_is_under_way_counts(tier: TieredCache, device: FaultyDevice) -> None:
    store(tier, range(12), owner=ALICE)
    device.on_write = held = Held()
    begin_demotion(tier, range(3))
    held.wait_entered()
    begin_demotion(tier, range(3, 12))  # all of it before the first is written
    device.on_write = lambda: None
    held.let_go()
    assert tier.idle(WAIT_S)
    assert on_flash(tier, range(12)) == [0, 1, 2, 3]
    assert in_host(tier, range(12)) == []
    assert flash_of(tier)._index.tenant_bytes(ALICE.tenant) <= QUOTA_BYTES


def test_the_last_bytes_of_a_quota_are_counted_with_headers(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, slots=8, flash=faulty(), flash_options={"tenant_quota_bytes": 2 * SLOT_BYTES})
    store(tier, range(2), owner=ALICE)
    push_out(tier, range(2))
    assert flash_of(tier)._index.tenant_bytes(ALICE.tenant) <= 2 * SLOT_BYTES
    assert on_flash(tier, range(2)) == [0]
    tier.close(flush=False)


def test_a_purge_makes_room_in_the_quota(tier: TieredCache) -> None:
    store(tier, range(8), owner=ALICE)
    push_out(tier, range(8))
    assert tier.purge(Purge(tenant=ALICE.tenant)).flash_blocks == 4
    store(tier, range(4, 8), owner=ALICE)
    push_out(tier, range(4, 8))
    assert on_flash(tier, range(8)) == [4, 5, 6, 7]


def test_the_quota_holds_after_a_restart(tmp_path: Path, device: FaultyDevice) -> None:
    for run in range(2):
        tier = open_tier(tmp_path, flash=device, flash_options={"tenant_quota_bytes": QUOTA_BYTES})
        numbers = range(4 * run, 4 * run + 4)
        store(tier, numbers, OURS, ALICE)
        push_out(tier, numbers)
        tier.close(flush=False)
    tier = open_tier(tmp_path, flash=device)
    assert on_flash(tier, range(8)) == [0, 1, 2, 3]
    tier.close(flush=False)

"""The simulator against simpler programs that must agree with it, and what its parts promise."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from hifc_ray.errors import ConfigError
from hifc_ray.policies import registry
from hifc_ray.sim.flash import LogFlash, LruFlash
from hifc_ray.sim.sizes import flash_size
from hifc_ray.sim.tiers import Budget, Host, TwoTiers, fingerprints
from hifc_ray.sim.traces import Request, Trace, make
from tests.fakes.traces import conversation_trace

TRACE = conversation_trace(1, 600)


def plain_lru_hits(trace: Trace, capacity: int) -> int:
    """One LRU store in front of everything, chains touched from the end."""
    order: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for request in range(len(trace)):
        chain = trace.chain(request).tolist()
        hits += next((depth for depth, block in enumerate(chain) if block not in order), len(chain))
        for block in reversed(chain):
            order[block] = None
            order.move_to_end(block)
        while len(order) > capacity:
            order.popitem(last=False)
    return hits


def host(capacity: int, trace: Trace = TRACE, eviction: str = "lru") -> Host:
    return Host(capacity, trace.num_blocks, registry.eviction(eviction))


def log_flash(num_blocks: int, trace: Trace = TRACE, carry_share: float = 0.1) -> LogFlash:
    size = flash_size(num_blocks, 1 << 20)
    return LogFlash(size, registry.eviction("lru"), fingerprints(trace.num_blocks), carry_share)


def test_with_room_for_all_only_first_accesses_miss() -> None:
    flash = log_flash(20 * TRACE.num_blocks)
    counts = TwoTiers(host(64), flash, registry.admission("always")).replay(TRACE)
    assert counts.accesses - counts.host_hits - counts.flash_hits == TRACE.num_blocks == counts.computed
    assert flash.written.carried == flash.written.dropped == 0
    assert TRACE.num_blocks - 64 <= flash.written.admitted <= TRACE.num_blocks


@pytest.mark.parametrize("capacity", [200, 400])
def test_the_ideal_with_hardly_any_host_is_a_plain_lru_store(capacity: int) -> None:
    counts = TwoTiers(host(20), LruFlash(capacity, TRACE.num_blocks), registry.admission("always")).replay(TRACE)
    plain = plain_lru_hits(TRACE, capacity)
    assert counts.host_hits + counts.flash_hits == pytest.approx(plain, rel=0.02)


def test_a_hole_ends_the_hits_and_the_blocks_behind_it_are_kept() -> None:
    trace = make("hole", [Request(0, [1, 2, 3])])
    tiers = host(20, trace)
    tiers.add(trace.chain(0)[[0, 2]], np.array([0, 2]), turn=0)
    counts = TwoTiers(tiers, LruFlash(10, 3), registry.admission("always")).replay(trace)
    assert (counts.host_hits, counts.flash_hits, counts.computed) == (1, 0, 2)
    assert tiers.here.all()


def test_a_block_that_flash_has_is_dropped_from_host_memory_unwritten() -> None:
    asked = [Request(float(time), [time % 3 * 100 + depth for depth in range(30)]) for time in range(12)]
    trace = make("rounds", asked)
    flash = log_flash(400, trace)
    counts = TwoTiers(host(40, trace), flash, registry.admission("always")).replay(trace)
    assert flash.written.admitted == trace.num_blocks
    assert counts.computed == trace.num_blocks
    assert counts.flash_hits > 0


def test_nothing_refused_is_on_flash() -> None:
    admission = registry.admission("second-sight", num_blocks=2000)
    flash = log_flash(2000)
    counts = TwoTiers(host(45), flash, admission).replay(TRACE)
    assert counts.refused["policy"] > 0
    assert flash.written.admitted == flash.holds(np.arange(TRACE.num_blocks)).sum()
    assert counts.useful_writes <= flash.written.admitted


def test_a_budget_is_kept_and_used() -> None:
    size = flash_size(300, 1 << 20)
    total_blocks = 500
    budget = Budget(total_blocks * size.record_bytes, TRACE.num_accesses)
    flash = log_flash(300, carry_share=0.0)
    admission = registry.admission("always")
    counts = TwoTiers(host(45), flash, admission, budget, size.record_bytes).replay(TRACE)
    assert counts.refused["budget"] > 0
    assert 0.95 * total_blocks <= flash.written.admitted <= 1.02 * total_blocks


@pytest.mark.parametrize("carry_share", [0.0, 0.05, 0.1, 0.3])
def test_what_is_carried_is_bounded_by_its_share(carry_share: float) -> None:
    flash = log_flash(300, carry_share=carry_share)
    TwoTiers(host(45), flash, registry.admission("always")).replay(TRACE)
    assert flash.written.carried <= carry_share * flash.written.admitted
    assert (flash.written.carried > 0) == (carry_share > 0)


def test_no_more_is_on_flash_than_its_segments_hold_but_one() -> None:
    flash = log_flash(300)
    TwoTiers(host(45), flash, registry.admission("always")).replay(TRACE)
    on_flash = int(flash.holds(np.arange(TRACE.num_blocks)).sum())
    size, written = flash.size, flash.written
    assert on_flash <= (size.num_segments - 1) * size.segment_blocks
    assert on_flash == written.admitted - written.dropped


def test_a_chain_longer_than_host_memory_passes_through_it() -> None:
    trace = make("long", [Request(float(time), list(range(300))) for time in range(3)])
    flash = log_flash(2000, trace)
    counts = TwoTiers(host(16, trace), flash, registry.admission("always")).replay(trace)
    assert counts.computed == 300
    assert counts.host_hits + counts.flash_hits == 600


def test_too_small_a_flash_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"flash has 60 blocks of 1048576 bytes; allowed: at least 5 segments"):
        flash_size(60, 1 << 20)

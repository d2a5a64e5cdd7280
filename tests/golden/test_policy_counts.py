"""Exact counts of each policy on seeded conversations. A change of these numbers is a change of behaviour."""

from __future__ import annotations

import pytest

from hifc_ray.policies import registry
from tests.fakes.traces import Counts, TinyCache, conversations

SEED, NUM_REQUESTS = 1, 600

GOLDEN = {
    ("lru", 60): Counts(accesses=9775, hits=4975, evictions=4674),
    ("lru", 240): Counts(accesses=9775, hits=8087, evictions=1446),
    ("retention", 60): Counts(accesses=9775, hits=5274, evictions=4441),
    ("retention", 240): Counts(accesses=9775, hits=7597, evictions=1938),
}


@pytest.mark.parametrize(("name", "capacity"), sorted(GOLDEN))
def test_counts(name: str, capacity: int) -> None:
    cache = TinyCache(registry.eviction(name), capacity)
    assert cache.replay(conversations(SEED, NUM_REQUESTS)) == GOLDEN[name, capacity]


def test_every_policy_has_golden_counts() -> None:
    assert {name for name, _ in GOLDEN} == set(registry.EVICTION)

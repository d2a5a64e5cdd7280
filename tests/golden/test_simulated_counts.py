"""Exact counts of small simulations, one for each pair of policies. A change of these numbers is one of behaviour."""

from __future__ import annotations

import pytest

from hifc_ray.policies import registry
from hifc_ray.sim import run
from tests.fakes.traces import conversation_trace

GOLDEN = {  # hits of 9,775 accesses, blocks admitted to flash, carried over, refused, read from flash after a write
    ("lru", "always"): (7786, 1676, 167, 0, 1092),
    ("lru", "budgeted"): (5230, 461, 41, 3382, 195),
    ("lru", "second-sight"): (7261, 1190, 116, 1083, 815),
    ("lru", "tinylfu"): (6853, 921, 91, 1822, 592),
    ("retention", "always"): (7530, 1891, 187, 0, 971),
    ("retention", "budgeted"): (5095, 519, 51, 3310, 231),
    ("retention", "second-sight"): (7001, 1264, 125, 1265, 737),
    ("retention", "tinylfu"): (6727, 1012, 100, 1869, 609),
}


@pytest.mark.parametrize("eviction", sorted(registry.EVICTION))
@pytest.mark.parametrize("admission", sorted(registry.ADMISSION))
def test_counts(eviction: str, admission: str) -> None:
    block_bytes = 1 << 20
    settings = run.Settings((0.2,), 0.03, (eviction,), (admission,), block_bytes)
    (row,) = run.simulate([conversation_trace(1, 600)], settings, lambda _: None)
    admitted = row.admitted_bytes // block_bytes
    counts = (
        round(row.hit_ratio * row.accesses),
        admitted,
        row.carried_bytes // block_bytes,
        sum(row.refused_blocks.values()),
        round(row.useful_share * admitted),
    )
    assert counts == GOLDEN[eviction, admission]


def test_every_pair_has_golden_counts() -> None:
    assert set(GOLDEN) == {(e, a) for e in registry.EVICTION for a in registry.ADMISSION}

"""Exact counts of small simulations, one for each pair of policies. A change of these numbers is one of behaviour."""

from __future__ import annotations

import pytest

from hifc_ray.policies import registry
from hifc_ray.sim import run
from tests.fakes.traces import conversation_trace

GOLDEN = {  # hits of 9,775 accesses, blocks admitted to flash, carried over, refused, read from flash after a write
    ("lru", "always"): (7559, 1913, 188, 0, 1246),
    ("lru", "budgeted"): (5319, 524, 48, 3231, 228),
    ("lru", "second-sight"): (7109, 1291, 123, 1100, 881),
    ("lru", "tinylfu"): (6511, 735, 70, 2404, 511),
    ("retention", "always"): (7510, 2082, 204, 0, 1095),
    ("retention", "budgeted"): (5037, 570, 54, 3293, 258),
    ("retention", "second-sight"): (6933, 1276, 123, 1271, 791),
    ("retention", "tinylfu"): (6435, 783, 75, 2326, 497),
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

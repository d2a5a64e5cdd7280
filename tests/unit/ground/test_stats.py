from __future__ import annotations

import threading

from hifc_ray.stats import Stats
from hifc_ray.types import Tier


def test_counters_are_kept_by_tier_and_reason() -> None:
    stats = Stats()
    stats.add("misses_total", tier=Tier.HOST, reason="late")
    stats.add("misses_total", 2, tier=Tier.FLASH, reason="late")
    stats.add("misses_total", 4, tier=Tier.FLASH, reason="corrupt")
    stats.add("stores_total")
    assert stats.get("misses_total") == 7
    assert stats.get("misses_total", tier=Tier.FLASH) == 6
    assert stats.get("misses_total", reason="late") == 3
    assert stats.get("misses_total", tier=Tier.FLASH, reason="late") == 2
    assert stats.get("never") == 0
    assert stats.snapshot() == {
        "misses_total{flash,corrupt}": 4,
        "misses_total{flash,late}": 2,
        "misses_total{host,late}": 1,
        "stores_total": 1,
    }


def test_no_count_is_lost_between_threads() -> None:
    stats = Stats()

    def count() -> None:
        for _ in range(2000):
            stats.add("n")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stats.get("n") == 8000


def test_a_snapshot_stays_as_it_was() -> None:
    stats = Stats()
    stats.add("n")
    before = stats.snapshot()
    stats.add("n")
    assert before == {"n": 1}

"""What `hifc status` is told of a tier."""

from __future__ import annotations

from hifc_ray.actors.state import _tier
from hifc_ray.stats import Stats
from hifc_ray.types import Tier


def test_every_counter_of_a_tier_is_shown_and_no_bytes_of_its_filter() -> None:
    stats = Stats()
    stats.add("lookup_keys", 7)
    stats.add("corrupt", 2, tier=Tier.FLASH, reason="stripe")
    stats.add("refused_bytes", 4096, tier=Tier.FLASH, reason="budget")
    flash = {"blocks": 3, "filter": {"data": b"\x00", "version": 2}}
    summary = {"incarnation": 1, "host": {}, "flash": flash, "weights_version": 4, "counters": stats.snapshot()}
    shown = _tier(summary)
    assert shown["counters"] == stats.snapshot()
    assert (shown["lookup_keys"], shown["served_blocks"], shown["checksum_faults"]) == (7, 0, 2)
    assert shown["flash"] == {"blocks": 3, "filter": {"version": 2}}

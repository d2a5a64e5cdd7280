"""Counters: each event is counted once, at one place, under a name and its tags.

Names follow `<what>_<unit>`; `snapshot` gives plain numbers for messages, metrics and tables.
"""

from __future__ import annotations

import threading
from collections import defaultdict

from hifc_ray.types import Tier

_TAGS: dict[Tier | None, str] = {None: "", **{tier: tier.name.lower() for tier in Tier}}


class Stats:
    """Monotonic counters by (name, tier, reason). Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str, str], float] = defaultdict(float)

    def add(self, name: str, amount: float = 1, *, tier: Tier | None = None, reason: str = "") -> None:
        """Add `amount` to one counter."""
        tag = _TAGS[tier]
        with self._lock:
            self._counts[name, tag, reason] += amount

    def get(self, name: str, *, tier: Tier | None = None, reason: str | None = None) -> float:
        """Sum of a counter over all reasons, or of one; over all tiers, or of one."""
        with self._lock:
            return sum(
                count
                for (counter, tag, why), count in self._counts.items()
                if counter == name and (tier is None or tag == tier.name.lower()) and (reason is None or why == reason)
            )

    def snapshot(self) -> dict[str, float]:
        """All counters as `name{tier,reason}`, parts that are empty left out."""
        with self._lock:
            items = list(self._counts.items())
        return {_label(*key): count for key, count in sorted(items)}


def _label(name: str, tier: str, reason: str) -> str:
    tags = ",".join(tag for tag in (tier, reason) if tag)
    return f"{name}{{{tags}}}" if tags else name

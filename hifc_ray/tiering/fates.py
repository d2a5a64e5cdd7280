"""Why a key is not here any more: a bounded memory of last fates."""

from __future__ import annotations

from collections.abc import Iterable

from hifc_ray.types import Fate, Key

MAX_FATES = 1 << 16  # about 8 MB


class Fates:
    """Last fate of the keys that left, the oldest forgotten first. The caller holds the lock."""

    def __init__(self, limit: int = MAX_FATES) -> None:
        self._limit = limit
        self._fates: dict[Key, Fate] = {}

    def note(self, keys: Iterable[Key], fate: Fate) -> None:
        for key in keys:
            self._fates.pop(key, None)
            self._fates[key] = fate
        while len(self._fates) > self._limit:
            del self._fates[next(iter(self._fates))]

    def forget(self, keys: Iterable[Key]) -> None:
        """As if these keys had never been here."""
        for key in keys:
            self._fates.pop(key, None)

    def get(self, key: Key) -> Fate:
        return self._fates.get(key, Fate.UNKNOWN)

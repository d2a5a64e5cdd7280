"""The index: key to address in memory, and which keys leave with which segment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from hifc_ray.flash.address import Address, segment_of
from hifc_ray.types import Fate, Key, Namespace

MAX_FATES = 1 << 16


class Entry(NamedTuple):
    """One indexed block."""

    key: Key
    namespace: Namespace
    address: Address


class Index:
    """At most 200 bytes a block, its key included. The caller holds the lock, except for `locate` and `in`.

    Those two are single dictionary reads, whole under the interpreter lock whatever other threads do.
    """

    def __init__(self) -> None:
        self._addresses: dict[Key, Address] = {}
        self._keys: dict[int, dict[Namespace, list[Key]]] = {}  # by segment
        self._fates: dict[Key, Fate] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, key: Key) -> bool:
        return key in self._addresses

    def locate(self, keys: Sequence[Key]) -> list[Address | None]:
        """The address of each key, or None."""
        return list(map(self._addresses.get, keys))

    def get(self, key: Key) -> Address | None:
        return self._addresses.get(key)

    def add(self, entries: Iterable[Entry]) -> None:
        """Index these blocks; a key that is there already moves to its new address."""
        for key, namespace, address in entries:
            old = self._addresses.get(key)
            if old is not None:
                self.remove(key, old)
            self._keys.setdefault(segment_of(address), {}).setdefault(namespace, []).append(key)
            self._addresses[key] = address
            self._fates.pop(key, None)

    def remove(self, key: Key, address: Address, fate: Fate | None = None) -> bool:
        """Forget a block if it still has this address; True if it had."""
        if self._addresses.get(key) != address:
            return False
        del self._addresses[key]
        for keys in self._keys[segment_of(address)].values():
            if key in keys:
                keys.remove(key)
                break
        if fate is not None:
            self._note(key, fate)
        return True

    def drop_segment(self, segment: int) -> int:
        """Forget every block of a segment; returns how many there were."""
        count = 0
        for keys in self._keys.pop(segment, {}).values():
            for key in keys:
                del self._addresses[key]
                self._note(key, Fate.DROPPED)
            count += len(keys)
        return count

    def entries(self, segment: int) -> list[Entry]:
        """The blocks of a segment, in the order of their addresses."""
        groups = self._keys.get(segment, {})
        found = [Entry(key, namespace, self._addresses[key]) for namespace, keys in groups.items() for key in keys]
        return sorted(found, key=lambda entry: entry.address)

    def all_foreign(self, segment: int, live: Set[Namespace]) -> bool:
        """Has this segment no block of a live namespace?"""
        return not any(keys for namespace, keys in self._keys.get(segment, {}).items() if namespace in live)

    def namespaces(self) -> dict[Namespace, int]:
        """Blocks of each namespace."""
        counts: Counter[Namespace] = Counter()
        for groups in self._keys.values():
            counts.update({namespace: len(keys) for namespace, keys in groups.items() if keys})
        return dict(counts)

    def fate(self, key: Key) -> Fate | None:
        """Why a key left, for the last `MAX_FATES` that did."""
        return self._fates.get(key)

    def _note(self, key: Key, fate: Fate) -> None:
        self._fates.pop(key, None)
        self._fates[key] = fate
        if len(self._fates) > MAX_FATES:
            del self._fates[next(iter(self._fates))]

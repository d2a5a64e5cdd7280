"""What was purged must not come back at a restart: one small file names it until the segments of that time are gone.

A purge covers every record in segments up to the one that was open then, whatever the index, a hint or a scan says of
it: also copies that the index had given up. What is stored later under the same tags is new.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np

from hifc_ray.flash.device import FilePlace
from hifc_ray.flash.entries import EntryArray
from hifc_ray.flash.format import PURGES_NAME
from hifc_ray.types import BoolArray, Namespace


@dataclass(frozen=True)
class Selector:
    """Which blocks: those that have everything that is given. Nothing given selects nothing."""

    tenant: int | None = None
    session: int | None = None
    namespace: Namespace | None = None

    def of(self, entries: EntryArray) -> BoolArray:
        """[n], True for those that are meant."""
        given = (self.tenant, self.session, self.namespace) != (None, None, None)
        meant: BoolArray = np.full(len(entries), given, np.bool_)
        if self.tenant is not None:
            meant &= entries["tenant"] == np.uint64(self.tenant)
        if self.session is not None:
            meant &= entries["session"] == np.uint64(self.session)
        if self.namespace is not None:
            meant &= (entries["namespace"] == np.frombuffer(self.namespace, "<u8")).all(axis=1)
        return meant


@dataclass(frozen=True)
class Purge:
    """A selector, and the last segment of the volume that it speaks of."""

    selector: Selector
    last_sequence: int


class Purges:
    """The purges of one volume, as its file says. One thread at a time."""

    def __init__(self, device: FilePlace) -> None:
        self._device = device
        self._purges: list[Purge] = []

    def load(self) -> None:
        """Raises OSError or ValueError if there is a file that cannot be read: then nothing here may be served."""
        try:
            data = self._device.get(PURGES_NAME)
        except FileNotFoundError:
            return
        self._purges = [_parse(item) for item in json.loads(data)]

    def add(self, selector: Selector, last_sequence: int, oldest_sequence: int) -> bytes:
        """Keep a purge, and forget those whose segments are all gone; what the file must say then."""
        kept = [p for p in self._purges if p.last_sequence >= oldest_sequence and p.selector != selector]
        self._purges = [*kept, Purge(selector, last_sequence)]
        return json.dumps([_plain(purge) for purge in self._purges]).encode()

    def kept(self, entries: EntryArray, sequence: int) -> EntryArray:
        """Those blocks of a segment that no purge speaks of."""
        gone: BoolArray = np.zeros(len(entries), np.bool_)
        for purge in self._purges:
            if sequence <= purge.last_sequence:
                gone |= purge.selector.of(entries)
        return entries[~gone]


def _plain(purge: Purge) -> dict[str, object]:
    values = asdict(purge.selector)
    namespace = purge.selector.namespace
    return {**values, "namespace": None if namespace is None else namespace.hex(), "last": purge.last_sequence}


def _parse(item: dict[str, object]) -> Purge:
    tenant, session, namespace, last = item["tenant"], item["session"], item["namespace"], item["last"]
    if not isinstance(last, int) or not isinstance(tenant, int | None) or not isinstance(session, int | None):
        raise ValueError(f"a purge of {tenant!r}, {session!r} up to segment {last!r}")
    name = None if namespace is None else Namespace(bytes.fromhex(str(namespace)))
    return Purge(Selector(tenant, session, name), last)

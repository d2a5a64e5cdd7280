"""What was purged must not come back at a restart: one small file names it until the segments of that time are gone.

A purge covers every record in segments up to the one that was open then, whatever the index, a hint or a scan says of
it: also copies that the index had given up. What is stored later under the same tags is new.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hifc_ray.flash.address import MAX_SEQUENCE
from hifc_ray.flash.device import FilePlace
from hifc_ray.flash.entries import EntryArray
from hifc_ray.flash.format import PURGES_NAME, checksum
from hifc_ray.types import BoolArray, Namespace, Owner


@dataclass(frozen=True)
class Selector:
    """Which blocks: those that have everything that is given. Nothing given selects nothing."""

    tenant: int | None = None
    session: int | None = None
    namespace: Namespace | None = None

    def covers(self, owner: Owner, namespace: Namespace) -> bool:
        """Is a block of this owner and namespace meant?"""
        asked = (self.tenant, self.session, self.namespace)
        wrong = any(a is not None and a != b for a, b in zip(asked, (*owner, namespace), strict=True))
        return asked != (None, None, None) and not wrong

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
    """A selector (None: everything), and the last segment of the volume that it speaks of."""

    selector: Selector | None
    last_sequence: int

    def of(self, entries: EntryArray) -> BoolArray:
        """[n], True for those that are meant."""
        return np.ones(len(entries), np.bool_) if self.selector is None else self.selector.of(entries)


class Purges:
    """The purges of one volume, as its file says. One thread at a time."""

    def __init__(self, device: FilePlace) -> None:
        self._device = device
        self._purges: list[Purge] = []

    def load(self) -> bool:
        """False if the file is damaged: then everything counts as purged, until `add_all` says up to where."""
        try:
            self._purges = _decode(self._device.get(PURGES_NAME))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            self._purges = [Purge(None, MAX_SEQUENCE)]
            return False
        return True

    @property
    def last_sequence(self) -> int:
        """The newest segment that a purge speaks of; those of later blocks must have higher numbers."""
        return max((purge.last_sequence for purge in self._purges), default=0)

    def add(self, selector: Selector, last_sequence: int, oldest_sequence: int) -> bytes:
        """Keep a purge, and forget those whose segments are all gone; what the file must say then."""
        kept = [p for p in self._purges if p.last_sequence >= oldest_sequence and p.selector != selector]
        self._purges = [*kept, Purge(selector, last_sequence)]
        return _encode(self._purges)

    def add_all(self, last_sequence: int) -> bytes:
        """Everything up to here is purged; what the file must say then."""
        self._purges = [Purge(None, last_sequence)]
        return _encode(self._purges)

    def kept(self, entries: EntryArray, sequence: int) -> EntryArray:
        """Those blocks of a segment that no purge speaks of."""
        gone: BoolArray = np.zeros(len(entries), np.bool_)
        for purge in self._purges:
            if sequence <= purge.last_sequence:
                gone |= purge.of(entries)
        return entries[~gone]


def _encode(purges: list[Purge]) -> bytes:
    """JSON, with the XXH3-64 of its text."""
    text = json.dumps([_plain(purge) for purge in purges])
    return json.dumps({"purges": text, "checksum": checksum(text.encode())}).encode()


def _decode(data: bytes) -> list[Purge]:
    """Raises ValueError, TypeError or KeyError if it is damaged."""
    found = json.loads(data)
    if checksum(str(found["purges"]).encode()) != found["checksum"]:
        raise ValueError("checksum does not match")
    return [_parse(item) for item in json.loads(found["purges"])]


def _plain(purge: Purge) -> dict[str, object]:
    selector = purge.selector
    if selector is None:
        return {"last": purge.last_sequence}
    namespace = selector.namespace
    return {
        "last": purge.last_sequence,
        "of": {**asdict(selector), "namespace": None if namespace is None else namespace.hex()},
    }


def _parse(item: dict[str, Any]) -> Purge:
    of = item.get("of")
    if of is None:
        return Purge(None, item["last"])
    namespace = of["namespace"]
    name = None if namespace is None else Namespace(bytes.fromhex(namespace))
    return Purge(Selector(of["tenant"], of["session"], name), item["last"])

"""The index: what is on flash, a row a block, as arrays; and how much of each segment is alive.

At most 200 bytes a block, its key and access history included (measured in its test). Everything is done in batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np

from hifc_ray.flash import entries as columns
from hifc_ray.flash.address import OFFSET_BITS, Address, join, unpack
from hifc_ray.flash.entries import ENTRY, EntryArray, keys_as_words
from hifc_ray.flash.key_table import NO_ROW, KeyArray, KeyTable
from hifc_ray.flash.node_filter import NodeFilter
from hifc_ray.hotness import Hotness
from hifc_ray.policy import Features
from hifc_ray.types import AnyArray, BoolArray, Fate, IntArray, Key, Namespace, Owner

MAX_FATES = 1 << 16
_LEAST_ROWS = 1024
_GROWTH = 1.25  # growing leaves a fifth of the rows empty at most
_ALONE = 32  # up to so many blocks, adding one after the other is faster than all at once


class Located(NamedTuple):
    """Where keys were found at one moment, a row each, and whose they were. Columns mean nothing where `found` is not.

    Addresses and owners are made of those that are asked for only.
    """

    found: BoolArray  # [n]
    where: AnyArray  # [n] uint64
    extent: AnyArray  # [n] uint32
    tenant: AnyArray  # [n] uint64
    session: AnyArray  # [n] uint64

    def addresses(self, rows: IntArray) -> list[Address]:
        """The addresses of these, which were found."""
        parts = zip(self.where[rows].tolist(), self.extent[rows].tolist(), strict=True)
        return [join(where, extent) for where, extent in parts]

    def owners(self, rows: IntArray) -> list[Owner]:
        """Whose these are, which were found."""
        return list(map(Owner, self.tenant[rows].tolist(), self.session[rows].tolist()))


class Index:
    """Rows of blocks. The caller holds the lock around every method.

    `hotness` has the same rows. A row keeps its block until the block is removed; its address may change meanwhile.
    """

    def __init__(self, rows: int = _LEAST_ROWS) -> None:
        self._table = KeyTable(rows)
        self._where = np.zeros(rows, np.uint64)
        self._extent = np.zeros(rows, np.uint32)  # 0: a row without a block
        self._namespace = np.zeros(rows, np.uint32)  # place in `_namespaces`
        self._tenant = np.zeros(rows, np.uint64)
        self._session = np.zeros(rows, np.uint64)
        self.hotness = Hotness(rows)
        self._free = np.arange(rows - 1, -1, -1, dtype=np.int32)  # the first `_num_free` of them, taken from their end
        self._num_free = rows
        self._namespaces: list[Namespace] = []
        self._live: dict[int, tuple[int, int]] = {}  # by segment: blocks and bytes
        self._tenants: Counter[int] = Counter()  # bytes
        self._fates: dict[Key, Fate] = {}  # oldest first
        self.filter: NodeFilter | None = None  # told what comes and how much goes, once it is set

    def __len__(self) -> int:
        return len(self._extent) - self._num_free

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        hot = sum(column.nbytes for column in vars(self.hotness).values() if isinstance(column, np.ndarray))
        own = (self._where, self._extent, self._namespace, self._tenant, self._session, self._free)
        return self._table.nbytes + hot + sum(column.nbytes for column in own)

    def find(self, keys: Sequence[Key]) -> IntArray:
        """[keys] row of each key, NO_ROW where it is not here."""
        return self._table.find(keys_as_words(keys))

    def find_words(self, words: KeyArray) -> IntArray:
        """`find` for keys as numbers."""
        return self._table.find(words)

    def where(self, rows: IntArray) -> Located:
        """Where the blocks of these rows are now."""
        return Located(rows != NO_ROW, self._where[rows], self._extent[rows], self._tenant[rows], self._session[rows])

    def locate(self, rows: IntArray) -> list[Address | None]:
        """The address of each row; None for NO_ROW."""
        parts = zip(self._where[rows].tolist(), self._extent[rows].tolist(), rows.tolist(), strict=True)
        return [join(where, extent) if row >= 0 else None for where, extent, row in parts]

    def at(self, key: Key, address: Address) -> int:
        """The row of a key that still has this address, else NO_ROW."""
        rows = self.find([key])
        return int(rows[0]) if self.locate(rows)[0] == address else NO_ROW

    def add(self, entries: EntryArray) -> None:
        """Index these blocks. One that is here already keeps its row and history and moves; of two, the last counts."""
        if len(entries) <= _ALONE:
            for row in range(len(entries)):
                self._add_one(entries[row : row + 1])
            return
        entries = _last_of_each(entries)
        rows = self._table.find(entries["key"])
        known = rows != NO_ROW
        if known.any():
            self._count(rows[known], -1)
        fresh = np.flatnonzero(~known)
        if len(fresh):
            rows[fresh] = self._take_rows(len(fresh))
            self._table.keys[rows[fresh]] = entries["key"][fresh]
            self._table.insert(rows[fresh])
            self.hotness.born(rows[fresh], entries["position"][fresh].astype(np.int64), 0)
            if self.filter is not None:
                self.filter.add(entries["key"][fresh])
        self._where[rows] = entries["where"]
        self._extent[rows] = entries["extent"]
        self._namespace[rows] = self._codes(entries["namespace"])
        self._tenant[rows], self._session[rows] = entries["tenant"], entries["session"]
        self._count(rows, 1)
        if self._fates:
            for words in entries["key"][fresh]:
                self._fates.pop(columns.key_of(words), None)

    def _add_one(self, entry: EntryArray) -> None:
        """`add` of one, with few calls of numpy: each of them costs as much for one row as for many."""
        words, tenant, session, where, extent, position = columns.numbers(entry)
        row = self._table.find_one(words)
        if row == NO_ROW:
            row = self._take_row()
            self._table.keys[row] = words
            self._table.insert_one(row)
            self.hotness.born_one(row, position, 0)
            if self._fates:
                self._fates.pop(columns.key_of(entry["key"]), None)
        else:
            self._count_one(row, -1)
        self._where[row], self._extent[row] = where, extent
        self._namespace[row] = self._code(Namespace(entry["namespace"].tobytes()))
        self._tenant[row], self._session[row] = tenant, session
        self._count_one(row, 1)

    def remove(self, rows: IntArray, fate: Fate | None = None) -> None:
        """Forget these blocks, and note why if they may be asked for again."""
        if not len(rows):
            return
        self._table.remove(rows)
        self._count(rows, -1)
        if fate is not None:
            for words in self._table.keys[rows[-MAX_FATES:]]:
                self._note(columns.key_of(words), fate)
        self._extent[rows] = 0
        self._where[rows] = 0
        self._free[self._num_free : self._num_free + len(rows)] = rows
        self._num_free += len(rows)
        if self.filter is not None:
            self.filter.remove(len(rows))

    def entries(self, rows: IntArray) -> EntryArray:
        """What is known of these rows, in their order."""
        found = np.zeros(len(rows), ENTRY)
        found["key"], found["where"], found["extent"] = self._table.keys[rows], self._where[rows], self._extent[rows]
        names = np.frombuffer(b"".join(self._namespaces), np.uint64).reshape(-1, 4)
        found["namespace"] = names[self._namespace[rows]] if len(rows) else 0
        found["tenant"], found["session"] = self._tenant[rows], self._session[rows]
        found["position"] = self.hotness.position[rows]
        return found

    def rows(self) -> IntArray:
        """All rows that have a block."""
        found: IntArray = np.flatnonzero(self._extent)
        return found

    def used(self, rows: IntArray) -> BoolArray:
        """[rows] Which of them have a block."""
        found: BoolArray = self._extent[rows] != 0
        return found

    def rows_of(self, segment: int) -> IntArray:
        """Rows of the blocks of a segment, in the order in which they lie there."""
        found = np.flatnonzero((self._where >> np.uint64(OFFSET_BITS) == np.uint64(segment)) & (self._extent != 0))
        ordered: IntArray = found[np.argsort(self._where[found])]
        return ordered

    def select(self, tenant: int | None, session: int | None, namespace: Namespace | None) -> IntArray:
        """Rows of the blocks that have everything that is given; given nothing, none."""
        if (tenant, session, namespace) == (None, None, None):
            return np.zeros(0, np.int64)
        wanted = self._extent != 0
        if tenant is not None:
            wanted &= self._tenant == np.uint64(tenant)
        if session is not None:
            wanted &= self._session == np.uint64(session)
        if namespace is not None:
            code = self._namespaces.index(namespace) if namespace in self._namespaces else len(self._namespaces)
            wanted &= self._namespace == np.uint32(code)
        rows: IntArray = np.flatnonzero(wanted)
        return rows

    def on_volume(self, volume: int) -> IntArray:
        """Rows of the blocks of a volume."""
        rows = self.rows()
        found: IntArray = rows[columns.volumes(self._where[rows]) == volume]
        return found

    def segments(self, rows: IntArray) -> IntArray:
        """[rows] number of the segment of each."""
        return columns.segments(self._where[rows])

    def places(self, rows: IntArray) -> AnyArray:
        """[rows] uint64 that rises with segment and offset."""
        where: AnyArray = self._where[rows]
        return where

    def record_bytes(self, rows: IntArray) -> IntArray:
        """[rows] bytes of header and payload."""
        return columns.record_bytes(self._extent[rows])

    def live(self, segment: int) -> tuple[int, int]:
        """Blocks of a segment that are indexed there, and the bytes of their records."""
        return self._live.get(segment, (0, 0))

    def features(self, rows: IntArray) -> Features:
        """A copy of the history of these rows, safe to score outside the lock."""
        return self.hotness.features(rows, self.fingerprints(rows))

    def tenant_bytes(self, tenant: int) -> int:
        """What one tenant has here."""
        return self._tenants[tenant]

    def owners(self, rows: IntArray) -> list[Owner]:
        """Whose each block is."""
        return list(map(Owner, self._tenant[rows].tolist(), self._session[rows].tolist()))

    def mark_foreign(self, live: Set[Namespace]) -> None:
        """Blocks of namespaces that are not `live` are the first to leave."""
        foreign: BoolArray = np.array([namespace not in live for namespace in self._namespaces] or [False], np.bool_)
        self.hotness.foreign[:] = foreign[self._namespace]

    def namespaces(self) -> dict[Namespace, int]:
        """Blocks of each namespace."""
        counts = np.bincount(self._namespace[self._extent != 0], minlength=len(self._namespaces)).tolist()
        return {name: count for name, count in zip(self._namespaces, counts, strict=True) if count}

    def fate(self, key: Key) -> Fate | None:
        """Why a key left, for the last `MAX_FATES` that did."""
        return self._fates.get(key)

    def fingerprints(self, rows: IntArray) -> AnyArray:
        """[rows] uint64, the first 8 bytes of each key."""
        words: AnyArray = self._table.keys[rows, 0]
        return words

    def key_words(self, rows: IntArray) -> AnyArray:
        """[rows, 4] uint64."""
        words: AnyArray = self._table.keys[rows]
        return words

    def _count(self, rows: IntArray, sign: int) -> None:
        sizes = self.record_bytes(rows)
        for column, keep in ((self.segments(rows), self._count_segment), (self._tenant[rows], self._count_tenant)):
            numbers, group = np.unique(column, return_inverse=True)
            blocks = np.bincount(group).tolist()
            totals = np.bincount(group, weights=sizes).tolist()
            for number, count, size in zip(numbers.tolist(), blocks, totals, strict=True):
                keep(number, sign * count, sign * int(size))

    def _count_one(self, row: int, sign: int) -> None:
        place = unpack(join(self._where.item(row), self._extent.item(row)))
        size = sign * (place.header_bytes + place.payload_bytes)
        self._count_segment(place.segment, sign, size)
        self._count_tenant(self._tenant.item(row), sign, size)

    def _count_segment(self, segment: int, blocks: int, size_bytes: int) -> None:
        before = self._live.get(segment, (0, 0))
        after = before[0] + blocks, before[1] + size_bytes
        if after[0]:
            self._live[segment] = after
        else:
            self._live.pop(segment, None)

    def _count_tenant(self, tenant: int, _blocks: int, size_bytes: int) -> None:
        self._tenants[tenant] += size_bytes
        if not self._tenants[tenant]:
            del self._tenants[tenant]

    def _take_rows(self, count: int) -> IntArray:
        self.reserve(count)
        rows = self._free[self._num_free - count : self._num_free][::-1].astype(np.int64)
        self._num_free -= count
        return rows

    def _take_row(self) -> int:
        if not self._num_free:
            self._grow(1)
        self._num_free -= 1
        return self._free.item(self._num_free)

    def reserve(self, blocks: int) -> None:
        """Room for so many more blocks, so that it is not made bit by bit."""
        if blocks > self._num_free:
            self._grow(blocks - self._num_free)

    def _grow(self, missing: int) -> None:
        before = len(self._extent)
        after = max(before + missing, int(before * _GROWTH))
        self._table.resize(after)
        for name in ("_where", "_extent", "_namespace", "_tenant", "_session"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate((column, np.zeros(after - before, column.dtype))))
        self.hotness.grow(after)
        self._free = np.concatenate((np.arange(after - 1, before - 1, -1, dtype=np.int32), self._free))
        self._free[after - before + self._num_free :] = 0
        self._num_free += after - before

    def _codes(self, namespaces: AnyArray) -> AnyArray:
        """[n] uint32, places of these [n, 4] namespaces in `_namespaces`, which takes up new ones."""
        codes = np.zeros(len(namespaces), np.uint32)
        todo: IntArray = np.arange(len(namespaces))
        while len(todo):
            first = namespaces[todo[0]]
            same = (namespaces[todo] == first).all(axis=1)
            codes[todo[same]] = self._code(Namespace(first.tobytes()))
            todo = todo[~same]
        return codes

    def _code(self, namespace: Namespace) -> int:
        if namespace not in self._namespaces:
            self._namespaces.append(namespace)
        return self._namespaces.index(namespace)

    def _note(self, key: Key, fate: Fate) -> None:
        self._fates.pop(key, None)
        self._fates[key] = fate
        if len(self._fates) > MAX_FATES:
            del self._fates[next(iter(self._fates))]


def _last_of_each(entries: EntryArray) -> EntryArray:
    """Without those whose key comes again later."""
    if len(entries) == 1:
        return entries
    ordered = np.sort(entries["key"][:, 0])
    if (ordered[1:] != ordered[:-1]).all():
        return entries
    last = {words.tobytes(): row for row, words in enumerate(entries["key"])}
    return entries[sorted(last.values())]

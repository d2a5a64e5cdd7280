"""Who may hold slots: the processes that keep an flock on a file of their own beside the arena.

The file is made and locked by the holder and carries its number, so that a tier that starts again finds out who lives.
Alive means locked: nothing else, and no silence however long, makes a holder dead.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from os import getpid
from pathlib import Path

from hifc_ray.errors import StorageError
from hifc_ray.host.table import MAX_HOLDERS
from hifc_ray.locks import FileLock, is_locked
from hifc_ray.messages import CallHeader
from hifc_ray.types import Namespace


@dataclass
class Holder:
    """One attached process. Calls are numbered apart for lookups and for stores, since two threads make them.

    `number` is its bit in the slot table and is used again after its death; `name` is what its calls carry, and is not:
    a call that was sent before a death must not count as one of the heir's.
    """

    number: int
    name: int
    path: Path
    last_lookup: int = 0
    last_store: int = 0
    namespaces: set[Namespace] = field(default_factory=set)


def lock_holder_file(arena_path: Path) -> FileLock:
    """Make and lock a holder file for this process; hold it for life."""
    path = arena_path.with_name(f"{arena_path.name}.holder-{getpid()}-{secrets.token_hex(4)}")
    lock = FileLock(path)
    if not lock.acquire():
        raise StorageError(f"holder file {path} is locked by another process")
    return lock


class Holders:
    """All holders of one arena. The caller holds the lock."""

    def __init__(self, arena_path: Path, incarnation: int) -> None:
        self._arena_path = arena_path
        self._incarnation = incarnation
        self._by_number: dict[int, Holder] = {}
        self._num_attached = 0
        for path in sorted(arena_path.parent.glob(f"{arena_path.name}.holder-*")):
            number = _number_in(path)
            if number is not None and is_locked(path):
                self._add(number, path)
            elif not is_locked(path):
                path.unlink(missing_ok=True)

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def number_of(self, path: Path) -> int | None:
        """The number of the process behind this file, if it has attached."""
        return next((number for number, holder in self._by_number.items() if holder.path == path), None)

    def attach(self, path: Path) -> Holder:
        """Give a number to the process that holds the lock on `path`; the same one if it has attached before."""
        known = self.number_of(path)
        if known is not None:
            return self._by_number[known]
        if not self._is_ours(path):
            raise StorageError(f"holder file {path} does not lie beside arena {self._arena_path} under its name")
        if not is_locked(path):
            raise StorageError(f"holder file {path} is not locked by the process that attaches")
        free = set(range(MAX_HOLDERS)) - set(self._by_number)
        if not free:
            raise StorageError(f"{MAX_HOLDERS} processes are attached to this tier; no more are allowed")
        path.write_text(str(min(free)), encoding="ascii")
        return self._add(min(free), path)

    def named(self, name: int) -> Holder | None:
        """The holder whose calls carry this name, if it is still attached."""
        holder = self._by_number.get(name % MAX_HOLDERS)
        return holder if holder is not None and holder.name == name else None

    def detach(self, number: int) -> None:
        """Forget a holder; its slots must have been taken back."""
        holder = self._by_number.pop(number, None)
        if holder is not None:
            holder.path.unlink(missing_ok=True)

    def dead(self) -> list[int]:
        """Numbers of holders whose process is gone."""
        return [number for number, holder in self._by_number.items() if not is_locked(holder.path)]

    def accept_lookup(self, header: CallHeader) -> Holder | None:
        """The caller, if this lookup may run: it is known, of this incarnation, and not overtaken by a later call."""
        holder = self._known(header)
        if holder is None or header.sequence <= holder.last_lookup:
            return None
        holder.last_lookup = header.sequence
        return holder

    def accept_store(self, header: CallHeader) -> Holder | None:
        """The same for reserve and commit."""
        holder = self._known(header)
        if holder is None or header.sequence <= holder.last_store:
            return None
        holder.last_store = header.sequence
        return holder

    def note_namespace(self, number: int, namespace: Namespace) -> bool:
        """This holder uses a namespace; True if no live holder had used it before."""
        known = namespace in self._by_number[number].namespaces
        new = not known and namespace not in self.namespaces()
        self._by_number[number].namespaces.add(namespace)
        return new

    def namespaces(self) -> set[Namespace]:
        """Namespaces that a live holder has used."""
        return set().union(*(holder.namespaces for holder in self._by_number.values()))

    def _known(self, header: CallHeader) -> Holder | None:
        return self.named(header.holder) if header.incarnation == self._incarnation else None

    def _add(self, number: int, path: Path) -> Holder:
        self._num_attached += 1
        holder = Holder(number, number + MAX_HOLDERS * self._num_attached, path)
        self._by_number[number] = holder
        return holder

    def _is_ours(self, path: Path) -> bool:
        # A tier that starts again looks for its holders there, and nowhere else.
        return path.parent == self._arena_path.parent and path.name.startswith(f"{self._arena_path.name}.holder-")


def _number_in(path: Path) -> int | None:
    try:
        number = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return number if 0 <= number < MAX_HOLDERS else None

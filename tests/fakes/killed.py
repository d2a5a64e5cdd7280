"""A process that stores, reads and purges blocks in several threads until it is killed, and what it has told till then.

It is forked from a process that has everything loaded, so that a kill costs some 50 ms.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hifc_ray import points
from hifc_ray.errors import CorruptRecord, FlashFull, StaleAddress
from hifc_ray.flash import Extent, FileDevice, FlashStore, keys_as_words, traffic
from hifc_ray.flash.address import Address, segment_of, sequence_of, volume_of
from hifc_ray.flash.format import segment_of as sequence_in
from hifc_ray.policy import Features
from hifc_ray.stats import Stats
from hifc_ray.types import Owner
from tests.fakes.flash import BLOCK_BYTES, block, config, key, load, payload

NUM_TENANTS = 5
CARRY_SHARE = 0.25
NUM_THREADS = 3
MOST_APPENDS = 60  # of each thread: then it gives up waiting for its death
PIECE_BYTES = 8192  # of a write, so that a kill may come between the stripes of a block


def owner(number: int) -> Owner:
    return Owner(1 + number % NUM_TENANTS, 1 + number % 7)


class Favoured:
    """Blocks asked for in turn 7 are worth most; of the others the later the better."""

    def values(self, features: Features) -> np.ndarray:
        return features.last_access + 1e9 * (features.turn == 7)


@dataclass
class Told:
    """What a directory must hold, may hold and must not hold, by what was told before each death."""

    where: dict[int, tuple[int, int]] = field(default_factory=dict)  # number -> volume and segment: must be there
    tried: set[int] = field(default_factory=set)
    dropped: set[tuple[int, int]] = field(default_factory=set)
    purged: set[int] = field(default_factory=set)  # must not be there
    unsure: set[int] = field(default_factory=set)  # being stored during a purge of their tenant: may be there
    in_purge: dict[int, set[int]] = field(default_factory=dict)  # tenant -> what had been stored when it began

    def hear(self, line: str) -> None:
        what, *rest = line.split()
        if what == "wrong":
            raise AssertionError(bytes.fromhex(rest[0]).decode())
        numbers = list(map(int, rest))
        getattr(self, f"_{what}")(*numbers)

    def _storing(self, *numbers: int) -> None:
        """About to be stored."""
        self.tried.update(numbers)
        self.unsure.update(number for number in numbers if owner(number).tenant in self.in_purge)

    def _stored(self, number: int, volume: int, segment: int) -> None:
        """Stored, or seen at another place."""
        if (volume, segment) not in self.dropped and number not in self.unsure | self.purged:
            self.where[number] = volume, segment

    def _deleting(self, volume: int, segment: int) -> None:
        """This segment is about to be deleted."""
        self.dropped.add((volume, segment))
        self.where = {number: place for number, place in self.where.items() if place != (volume, segment)}

    def _purging(self, tenant: int) -> None:
        """A purge begins."""
        its = {number for number in self.tried if owner(number).tenant == tenant}
        self.in_purge[tenant] = its & set(self.where)
        self.unsure |= its
        self.where = {number: place for number, place in self.where.items() if number not in its}

    def _purged(self, tenant: int) -> None:
        """It has returned: what had been stored when it began must not come back."""
        self.purged |= self.in_purge.pop(tenant)

    def died(self) -> None:
        """What was under way then has happened or has not."""
        self.in_purge.clear()


class TellingDevice(FileDevice):
    """A directory that tells which segments it is asked to delete, or to blank for another to take over."""

    def __init__(self, directory: Path, volume: int, tell: Callable[[str], None]) -> None:
        super().__init__(directory)
        self._volume, self._tell = volume, tell

    def delete(self, name: str) -> None:
        sequence = sequence_in(name)
        if sequence is not None:
            self.gone(sequence)
        super().delete(name)

    def open(self, name: str) -> Extent:
        return self._telling(name, super().open(name))

    def reuse(self, old: str, new: str, size_bytes: int) -> Extent:
        return self._telling(new, super().reuse(old, new, size_bytes))

    def gone(self, sequence: int) -> None:
        self._tell(f"deleting {self._volume} {sequence}")

    def _telling(self, name: str, extent: Extent) -> Extent:
        sequence = sequence_in(name)
        return extent if sequence is None else TellingExtent(extent, self, sequence)


class TellingExtent:
    """A segment's file that tells when its header is about to be blanked."""

    def __init__(self, inner: Extent, device: TellingDevice, sequence: int) -> None:
        self._inner = inner
        self._device = device
        self._sequence = sequence
        self.preadv, self.truncate, self.sync, self.close = inner.preadv, inner.truncate, inner.sync, inner.close

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def pwritev(self, buffers: Sequence[memoryview], offset: int) -> int:
        if offset == 0 and not any(buffers[0]):
            self._device.gone(self._sequence)
        return self._inner.pwritev(buffers, offset)


def open_telling(directories: Sequence[Path], tell: Callable[[str], None]) -> FlashStore:
    devices = [TellingDevice(directory, volume, tell) for volume, directory in enumerate(directories)]
    settings = config(num_volumes=len(devices), carry_share=CARRY_SHARE)
    return FlashStore(settings, BLOCK_BYTES, Stats(), devices=devices, policy=Favoured())


def run_until_killed(
    directories: Sequence[Path], told: Told, first: int, seed: int, point: str, visits: int, after_s: float = 0.0
) -> int:
    """Fork a process that dies at the so-manieth visit of a point (or after a time); how it ended, as `waitpid` says.

    It stores blocks numbered from `first` on. What it tells goes into `told`.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.close(read_end)
        _live(directories, write_end, first, random.Random(seed), point, visits)
    os.close(write_end)
    timer = threading.Timer(after_s, os.kill, (child, signal.SIGKILL)) if after_s else None
    if timer is not None:
        timer.start()
    with os.fdopen(read_end) as lines:
        for line in lines:
            told.hear(line)
    if timer is not None:
        timer.join()
    told.died()
    return os.waitpid(child, 0)[1]


def _live(directories: Sequence[Path], out: int, first: int, dice: random.Random, point: str, visits: int) -> None:
    def tell(line: str) -> None:
        os.write(out, f"{line}\n".encode())

    left = visits
    lock = threading.Lock()

    def die() -> None:
        nonlocal left
        with lock:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    traffic.FREE_PIECE_BYTES = PIECE_BYTES
    try:
        with ExitStack() as hooks:
            life = Life(directories, tell, first, dice.random())
            hooks.enter_context(points.at(point, die if point != "flash.reclaim.carried" else life.look_then(die)))
            if point != "flash.reclaim.carried":
                hooks.enter_context(points.at("flash.reclaim.carried", life.look))
            life.live()
        os._exit(0)
    except BaseException:
        tell(f"wrong {traceback.format_exc().encode().hex()}")
        os._exit(1)


class Life:
    """Threads that store, read and purge."""

    def __init__(self, directories: Sequence[Path], tell: Callable[[str], None], first: int, seed: float) -> None:
        self._directories = directories
        self._tell = tell
        self._next = first
        self._seed = seed
        self._lock = threading.Lock()
        self._store: FlashStore | None = None
        self._known: dict[int, Address] = {}
        self._wrong: list[str] = []
        self._in_purge = 0  # tenant

    def live(self) -> None:
        self._store = open_telling(self._directories, self._tell)
        threads = [threading.Thread(target=self._work, args=(row,)) for row in range(NUM_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._wrong:
            raise AssertionError("; ".join(self._wrong))
        self._store.close()

    def look(self) -> None:
        """Tell where the blocks are now that some have been carried over."""
        assert self._store is not None
        with self._lock:
            known = dict(self._known)
        found = self._store.locate([key(number) for number in known])
        for (number, before), after in zip(known.items(), found, strict=True):
            if after is not None and after != before:
                self._note(number, after)

    def look_then(self, then: Callable[[], None]) -> Callable[[], None]:
        def both() -> None:
            self.look()
            then()

        return both

    def _note(self, number: int, address: Address) -> None:
        with self._lock:
            self._known[number] = address
        self._tell(f"stored {number} {volume_of(address)} {sequence_of(segment_of(address))}")

    def _work(self, row: int) -> None:
        dice = random.Random(f"{self._seed} {row}")
        try:
            for step in range(MOST_APPENDS):
                self._append(dice.randint(1, 4))
                self._read(dice)
                if row == 0 and step % 25 == 12:
                    self._purge(1 + dice.randrange(NUM_TENANTS))
        except BaseException:
            self._wrong.append(traceback.format_exc())

    def _append(self, count: int) -> None:
        assert self._store is not None
        with self._lock:
            numbers = list(range(self._next, self._next + count))
            self._next += count
        self._tell("storing " + " ".join(map(str, numbers)))
        try:
            addresses = self._store.append([block(number, owner=owner(number)) for number in numbers])
        except FlashFull:  # all others are being read or written just now
            return
        for number, address in zip(numbers, addresses, strict=True):
            self._note(number, address)

    def _read(self, dice: random.Random) -> None:
        assert self._store is not None
        with self._lock:
            number = dice.choice(list(self._known)) if self._known else 0
        self._store.look_up(keys_as_words([key(number)]), 7 if number % 6 == 0 else 1)
        try:
            data = load(self._store, number)
        except (StaleAddress, CorruptRecord) as error:  # reclaimed or purged since it was located
            if isinstance(error, CorruptRecord) and not self._is_in_purge(number):
                raise
            return
        if data is not None and data != payload(number):
            raise AssertionError(f"block {number} has other bytes than were stored")

    def _is_in_purge(self, number: int) -> bool:
        return owner(number).tenant == self._in_purge

    def _purge(self, tenant: int) -> None:
        assert self._store is not None
        self._in_purge = tenant
        self._tell(f"purging {tenant}")
        self._store.purge(tenant=tenant)
        self._tell(f"purged {tenant}")
        self._in_purge = 0

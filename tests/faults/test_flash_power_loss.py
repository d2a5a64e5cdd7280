"""Power loss, by replay: every write, sync and rename of a run is recorded, the record is cut at each point, and of
what was not synced before the cut all, nothing or some is kept. What was sealed is there, what was purged is not, and
nothing is served wrong. Blocks that reclaim has carried over count as stored anew."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

import pytest

from hifc_ray import points
from hifc_ray.flash import Extent, FlashStore, MemoryDevice, hint, keys_as_words
from hifc_ray.flash import segment as segments
from hifc_ray.flash.device import pages
from hifc_ray.flash.entries import key_of
from hifc_ray.flash.format import PURGES_NAME, hint_of, segment_name
from hifc_ray.flash.memory_device import MemoryExtent
from hifc_ray.stats import Stats
from hifc_ray.types import Key, Owner, Tier
from tests.fakes import flash as fakes
from tests.fakes.flash import BLOCK_BYTES, OURS, block, open_store

pytestmark = pytest.mark.timeout(120)

ANNA, BERT = Owner(1, 1), Owner(2, 2)
NUM_BLOCKS, NUM_THREADS = 160, 3
OUT = pages(BLOCK_BYTES)
key, payload = cache(fakes.key), cache(fakes.payload)


@dataclass(frozen=True)
class Op:
    """One call to the device."""

    kind: str  # create, reuse, write, truncate, sync, put, delete; purged: no call, but the return of a purge
    name: str
    data: bytes = b""
    number: int = 0  # offset of a write, size of create, reuse and truncate, blocks stored when a purge began
    old: str = ""  # name before reuse


class RecordingDevice(MemoryDevice):
    """A device in memory that writes down what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []

    def create(self, name: str, size_bytes: int) -> Extent:
        super().create(name, size_bytes)
        self.ops.append(Op("create", name, number=size_bytes))
        return self.open(name)

    def reuse(self, old: str, new: str, size_bytes: int) -> Extent:
        super().reuse(old, new, size_bytes)
        self.ops.append(Op("reuse", new, number=size_bytes, old=old))
        return self.open(new)

    def open(self, name: str) -> Extent:
        return RecordingExtent(name, self)

    def delete(self, name: str) -> None:
        super().delete(name)
        self.ops.append(Op("delete", name))

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        self.ops.append(Op("put", name, data))


class RecordingExtent(MemoryExtent):
    def __init__(self, name: str, device: RecordingDevice) -> None:
        super().__init__(device.files[name])
        self._name, self._ops = name, device.ops

    def pwritev(self, buffers: Sequence[memoryview], offset: int) -> int:
        self._ops.append(Op("write", self._name, b"".join(buffers), offset))
        return super().pwritev(buffers, offset)

    def truncate(self, size_bytes: int) -> None:
        self._ops.append(Op("truncate", self._name, number=size_bytes))
        super().truncate(size_bytes)

    def sync(self) -> None:
        self._ops.append(Op("sync", self._name))


@dataclass
class Disk:
    """What a drive holds: what was synced, and what it may have besides.

    What was written to a file under its new name is in it under its old one if only the rename is lost.
    """

    files: dict[str, bytearray] = field(default_factory=dict)
    pending: list[Op] = field(default_factory=list)
    old_names: dict[str, str] = field(default_factory=dict)

    def take(self, op: Op) -> None:
        if op.kind == "put":  # the file and all names are durable
            self._settle(lambda other: other.kind in ("create", "reuse", "delete"))
            self.files[op.name] = bytearray(op.data)
        elif op.kind == "sync":
            self._settle(lambda other: other.name == op.name)
        elif op.kind != "purged":
            self.pending.append(op)
            if op.kind == "reuse":
                self.old_names[op.name] = op.old

    def after_power_loss(self, keeps: Callable[[], bool]) -> MemoryDevice:
        """What is found then, if of what was not synced that is kept of which `keeps` says so."""
        device = MemoryDevice()
        device.files = {name: bytearray(data) for name, data in self.files.items()}
        for op in self.pending:
            if keeps():
                _apply(op, device.files, self.old_names)
        return device

    def _settle(self, durable: Callable[[Op], bool]) -> None:
        for op in [op for op in self.pending if durable(op)]:
            _apply(op, self.files, self.old_names)
            self.pending.remove(op)


def _apply(op: Op, files: dict[str, bytearray], old_names: Mapping[str, str] = MappingProxyType({})) -> None:
    if op.kind == "create":
        files[op.name] = bytearray(op.number)
    elif op.kind == "delete":
        files.pop(op.name, None)
    elif op.kind == "reuse":
        data = files.pop(op.old, bytearray())[: op.number]
        files[op.name] = data + bytes(op.number - len(data))
    else:
        name = op.name
        while name not in files and name in old_names:
            name = old_names[name]
        data = files.get(name, bytearray())
        if op.kind == "truncate":
            del data[op.number :]
        else:
            data[op.number : op.number + len(op.data)] = op.data


def owner(number: int) -> Owner:
    return ANNA if number % 4 == 0 else BERT


def append_in_turns(store: FlashStore, numbers: Sequence[int]) -> None:
    """Several threads store at once; each waits a little, its room reserved, until another has reserved some too."""
    here = threading.Semaphore(0)

    def meet() -> None:
        here.release()
        here.acquire(timeout=0.005)

    def work(row: int) -> None:
        for first in range(row * 3, len(numbers), 3 * NUM_THREADS):
            store.append([block(number, owner=owner(number)) for number in numbers[first : first + 3]])

    threads = [threading.Thread(target=work, args=(row,)) for row in range(NUM_THREADS)]
    with points.at("flash.append.header", meet):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def recorded(stats: Stats) -> list[Op]:
    """A run of several threads that fills and seals segments, reclaims, carries blocks over, and purges twice."""
    device = RecordingDevice()
    store = open_store(device, stats, carry_share=0.25)
    append_in_turns(store, range(100))
    store.look_up(keys_as_words([key(number) for number in range(1, 40, 3)]), 1)
    store.purge(tenant=ANNA.tenant)
    device.ops.append(Op("purged", "", number=100))
    append_in_turns(store, range(100, NUM_BLOCKS))
    store.purge(tenant=ANNA.tenant)
    device.ops.append(Op("purged", "", number=NUM_BLOCKS))
    store.append([block(number, owner=owner(number)) for number in range(NUM_BLOCKS, NUM_BLOCKS + 25)])
    store.close()
    return device.ops


@dataclass
class Promise:
    """What must be there and what must not, by the calls so far."""

    files: dict[str, bytearray] = field(default_factory=dict)  # as they would be without a power loss
    sealed: dict[int, set[Key]] = field(default_factory=dict)  # by segment: keys that its hint names
    gone: set[int] = field(default_factory=set)

    def take(self, op: Op) -> None:
        sequence = hint_of(op.name)
        if op.kind == "purged":
            self.gone |= {number for number in range(op.number) if owner(number) == ANNA}
        elif op.name == PURGES_NAME:  # a purge is under way
            self.sealed = {s: {k for k in names if owner(NUMBERS[k]) != ANNA} for s, names in self.sealed.items()}
        elif sequence is not None and op.kind == "put":
            self.sealed[sequence] = set(self._named(sequence, op.data))
        elif sequence is not None:
            self.sealed.pop(sequence, None)
        elif op.kind not in ("sync", "put"):
            _apply(op, self.files)

    @property
    def kept(self) -> set[int]:
        return {NUMBERS[name] for names in self.sealed.values() for name in names} - self.gone

    def _named(self, sequence: int, data: bytes) -> Iterator[Key]:
        segment = segments.load(sequence, MemoryExtent(self.files[segment_name(sequence)]), "")
        assert segment is not None
        yield from map(key_of, hint.decode(data, segment)[1]["key"])


NUMBERS = {key(number): number for number in range(NUM_BLOCKS + 25)}


def served(store: FlashStore) -> set[int]:
    found = {}
    for number, address in zip(NUMBERS.values(), store.locate(list(NUMBERS)), strict=True):
        if address is not None:
            assert store.read(key(number), OURS, address, OUT) == BLOCK_BYTES
            assert payload(number) == OUT
            found[number] = address
    return set(found)


@pytest.mark.parametrize("kept", ["nothing", "some", "all"])
def test_sealed_blocks_survive_a_power_loss_at_any_point_and_purged_ones_never(kept: str) -> None:
    dice, stats = random.Random(7), Stats()
    share = {"nothing": 0.0, "some": 0.5, "all": 1.0}[kept]
    ops = recorded(stats)
    assert {"create", "reuse", "write", "truncate", "sync", "put", "delete", "purged"} == {op.kind for op in ops}
    assert stats.get("carried_blocks", tier=Tier.FLASH) > 5
    disk, promise = Disk(), Promise()
    for cut, op in enumerate([*ops, Op("sync", "none")]):
        try:
            with open_store(disk.after_power_loss(lambda: dice.random() < share)) as store:
                found = served(store)
        except Exception as error:
            raise AssertionError(f"cut at {cut} of {len(ops)}, kept {kept}") from error
        assert promise.kept <= found, f"cut at {cut} of {len(ops)}, kept {kept}"
        assert not promise.gone & found, f"cut at {cut} of {len(ops)}, kept {kept}"
        disk.take(op)
        promise.take(op)

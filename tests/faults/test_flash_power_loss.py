"""Power loss, by replay: every write, sync and rename of a run is recorded, the record is cut at each point, and of
what was not synced before the cut all, nothing or some is kept. What was sealed is there; nothing is served wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from hifc_ray.flash import Extent, FlashStore, MemoryDevice
from hifc_ray.flash.format import hint_of
from hifc_ray.flash.memory_device import MemoryExtent
from tests.fakes.flash import blocks, open_store, stored_numbers

pytestmark = pytest.mark.timeout(120)

NUM_BLOCKS, PER_SEGMENT = 150, 20


@dataclass(frozen=True)
class Op:
    """One call to the device."""

    kind: str  # create, reuse, write, truncate, sync, put, delete
    name: str
    data: bytes = b""
    number: int = 0  # offset of a write, size of create, reuse and truncate
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
    """What a drive holds after a power loss: what was synced, and of the rest what `keeps` says.

    What was written to a file under its new name is in it under its old one if only the rename is lost.
    """

    keeps: Callable[[], bool]
    files: dict[str, bytearray] = field(default_factory=dict)
    pending: list[Op] = field(default_factory=list)
    old_names: dict[str, str] = field(default_factory=dict)

    def take(self, op: Op) -> None:
        if op.kind == "put":  # the file and all names are durable
            self._settle(lambda other: other.kind in ("create", "reuse", "delete"))
            self.files[op.name] = bytearray(op.data)
        elif op.kind == "sync":
            self._settle(lambda other: other.name == op.name)
        else:
            self.pending.append(op)
            if op.kind == "reuse":
                self.old_names[op.name] = op.old

    def lose_power(self) -> MemoryDevice:
        for op in self.pending:
            if self.keeps():
                self._apply(op)
        device = MemoryDevice()
        device.files = self.files
        return device

    def _settle(self, durable: Callable[[Op], bool]) -> None:
        for op in [op for op in self.pending if durable(op)]:
            self._apply(op)
            self.pending.remove(op)

    def _apply(self, op: Op) -> None:
        if op.kind == "create":
            self.files[op.name] = bytearray(op.number)
        elif op.kind == "delete":
            self.files.pop(op.name, None)
        elif op.kind == "reuse":
            data = self.files.pop(op.old, bytearray())[: op.number]
            self.files[op.name] = data + bytes(op.number - len(data))
        else:
            name = op.name
            while name not in self.files and name in self.old_names:
                name = self.old_names[name]
            data = self.files.get(name, bytearray())
            if op.kind == "truncate":
                del data[op.number :]
            else:
                data[op.number : op.number + len(op.data)] = op.data


def recorded() -> list[Op]:
    """A run that fills segments, seals them and drops the oldest two."""
    device = RecordingDevice()
    store = open_store(device)
    for first in range(0, NUM_BLOCKS, 7):
        store.append(blocks(range(first, min(first + 7, NUM_BLOCKS))))
    store.close()
    return device.ops


def sealed_segments(ops: list[Op]) -> set[int]:
    """Segments whose hint was put, and neither it nor they deleted."""
    sealed: set[int] = set()
    for op in ops:
        sequence = hint_of(op.name)
        if sequence is not None:
            (sealed.add if op.kind == "put" else sealed.discard)(sequence)
    return sealed


@pytest.mark.parametrize("kept", ["nothing", "some", "all"])
def test_sealed_blocks_survive_a_power_loss_at_any_point(kept: str) -> None:
    dice = random.Random(7)
    share = {"nothing": 0.0, "some": 0.5, "all": 1.0}[kept]
    ops = recorded()
    assert {"create", "reuse", "write", "truncate", "sync", "put", "delete"} == {op.kind for op in ops}
    for cut in range(len(ops) + 1):
        disk = Disk(lambda: dice.random() < share)
        for op in ops[:cut]:
            disk.take(op)
        with opened(disk, cut, kept) as store:
            found = stored_numbers(store, range(NUM_BLOCKS))
            promised = {n for n in range(NUM_BLOCKS) if 1 + n // PER_SEGMENT in sealed_segments(ops[:cut])}
            assert promised <= set(found), f"cut at {cut} of {len(ops)}, kept {kept}"


def opened(disk: Disk, cut: int, kept: str) -> FlashStore:
    try:
        return open_store(disk.lose_power())
    except Exception as error:
        raise AssertionError(f"cut at {cut}, kept {kept}") from error

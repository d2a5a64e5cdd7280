"""Files torn, flipped, cut, zeroed, swapped and repeated, thousands of times: what was hit is lost at most."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hifc_ray import points
from hifc_ray.errors import CorruptRecord
from hifc_ray.flash import FlashStore, MemoryDevice, checkpoint, keys_as_words
from hifc_ray.flash import segment as segments
from hifc_ray.flash.device import pages
from hifc_ray.flash.entries import key_of, offsets, record_bytes
from hifc_ray.flash.format import CHECKPOINT_NAME, FAULTS_NAME, PURGES_NAME, hint_of, segment_name, segment_of
from hifc_ray.flash.scan import scan
from hifc_ray.stats import Stats
from hifc_ray.types import Owner
from tests.fakes import flash as fakes
from tests.fakes.flash import BLOCK_BYTES, OURS, abandon, block, blocks, load, open_store

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

ANNA, BERT = Owner(1, 1), Owner(2, 2)
NUM_BLOCKS, NUM_FAULTS = 140, 2400
ON_FILES_EACH = 12  # rounds, of which one is on real files
SHARE = 0.25
HISTORY = {"age": np.arange(500)}
OUT = pages(BLOCK_BYTES)
key, payload = cache(fakes.key), cache(fakes.payload)

Files = dict[str, bytearray]


class Killed(BaseException):
    """Ends a store at a named point."""


@dataclass
class Damage:
    """Which bytes of which files were changed."""

    hit: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, name: str, begin: int, end: int) -> None:
        self.hit.setdefault(name, []).append((begin, end))

    def touches(self, name: str, begin: int, end: int) -> bool:
        return any(first < end and begin < last for first, last in self.hit.get(name, []))


@dataclass(frozen=True)
class Base:
    """What a process left behind: its files, where each block lies, and what was purged."""

    files: Files
    places: dict[int, list[tuple[str, int, int]]]  # of each number: file, begin, end
    purged: set[int]

    def may_lose(self, number: int, damage: Damage) -> bool:
        if damage.touches(PURGES_NAME, 0, 1 << 40):
            return True
        places = self.places[number]
        return any(damage.touches(name, *span) for name, begin, end in places for span in ((begin, end), (0, 4096)))


def base(num_blocks: int, *, purge: bool, die_at: str | None) -> Base:
    """Sealed segments and an open one, hints, a checkpoint, a fault, purges, and blocks at two places."""
    device = MemoryDevice()
    store = open_store(device, carry_share=SHARE)
    store.append([block(number, owner=(ANNA, BERT)[number % 2]) for number in range(20)])
    device.files[segment_name(1)][9000] ^= 1
    with pytest.raises(CorruptRecord):
        load(store, 0)
    if purge:
        store.purge(tenant=ANNA.tenant)
    checkpoint.save(store.volumes[0].files, HISTORY, {"note": 1}, 1000.0)
    store.append(blocks(range(20, num_blocks - 1), owner=BERT))
    store.look_up(keys_as_words([key(number) for number in range(21, 60, 4)]), 1)

    def die() -> None:
        raise Killed

    try:
        with points.at(die_at or "nowhere", die):
            store.append(blocks(range(num_blocks - 1, num_blocks + 20), owner=BERT))
    except Killed:
        pass
    abandon(store)
    places: dict[int, list[tuple[str, int, int]]] = {}
    numbers = {key(number): number for number in range(num_blocks + 20)}
    for name in device.files:
        sequence = segment_of(name)
        segment = segments.load(sequence, device.open(name), name) if sequence is not None else None
        if segment is not None:
            rows = scan(segment).entries
            ends = offsets(rows["where"]) + record_bytes(rows["extent"])
            for words, begin, end in zip(rows["key"], offsets(rows["where"]), ends, strict=True):
                places.setdefault(numbers[key_of(words)], []).append((name, int(begin), int(end)))
    return Base(device.files, places, set(range(0, 20, 2)) if purge else set())


def region(dice: random.Random, data: bytearray) -> tuple[int, int]:
    """Some bytes: a few, or pages."""
    size = dice.choice([1, 7, 64, 4096, 4096 * dice.randint(1, 8)])
    begin = dice.randrange(max(1, len(data)))
    if dice.random() < 0.5:
        begin = begin // 4096 * 4096
    return begin, min(len(data), begin + size)


def flip(files: Files, name: str, dice: random.Random, damage: Damage) -> None:
    at = dice.randrange(len(files[name]))
    files[name][at] ^= 1 << dice.randrange(8)
    damage.add(name, at, at + 1)


def zero(files: Files, name: str, dice: random.Random, damage: Damage) -> None:
    begin, end = region(dice, files[name])
    files[name][begin:end] = bytes(end - begin)
    damage.add(name, begin, end)


def garbage(files: Files, name: str, dice: random.Random, damage: Damage) -> None:
    begin, end = region(dice, files[name])
    files[name][begin:end] = dice.randbytes(end - begin)
    damage.add(name, begin, end)


def tear(files: Files, name: str, dice: random.Random, damage: Damage) -> None:
    """A write that came only in part: zeros from somewhere in a page to its end."""
    begin, _ = region(dice, files[name])
    end = min(len(files[name]), (begin // 4096 + 1) * 4096)
    files[name][begin:end] = bytes(end - begin)
    damage.add(name, begin, end)


def cut(files: Files, name: str, dice: random.Random, damage: Damage) -> None:
    begin, _ = region(dice, files[name])
    damage.add(name, begin, len(files[name]))
    del files[name][begin:]


def lengthen(files: Files, name: str, dice: random.Random, damage: Damage) -> None:
    before = len(files[name])
    files[name] += dice.randbytes(dice.choice([3, 4096, 20000]))
    damage.add(name, before, len(files[name]))


def swap(files: Files, name: str, dice: random.Random, damage: Damage) -> None:
    """Two regions, perhaps of two files, change places."""
    other = dice.choice([name, dice.choice(sorted(files))])
    begin, end = region(dice, files[name])
    size = min(end - begin, len(files[other]))
    at = dice.randrange(len(files[other]) - size + 1) // 512 * 512
    first, second = files[name][begin : begin + size], files[other][at : at + size]
    files[name][begin : begin + size] = second
    files[other][at : at + size] = first
    damage.add(name, begin, begin + size)
    damage.add(other, at, at + size)


def repeat(files: Files, name: str, dice: random.Random, damage: Damage) -> None:
    """What lies at one place of some file lies here too."""
    begin, end = region(dice, files[name])
    source = files[dice.choice(sorted(files))]
    at = dice.randrange(max(1, len(source) - (end - begin) + 1)) // 4096 * 4096
    copy = source[at : at + end - begin]
    files[name][begin : begin + len(copy)] = copy
    damage.add(name, begin, begin + len(copy))


def lose(files: Files, name: str, dice: random.Random, damage: Damage) -> None:
    damage.add(name, 0, 1 << 40)
    del files[name]


def duplicate(files: Files, name: str, dice: random.Random, damage: Damage) -> None:
    """A whole file under the name of another of its kind."""
    kind = segment_of if segment_of(name) is not None else hint_of if hint_of(name) is not None else None
    others = [other for other in files if kind is not None and kind(other) is not None and other != name]
    if others:
        other = dice.choice(sorted(others))
        files[other] = bytearray(files[name])
        damage.add(other, 0, 1 << 40)


KINDS = (flip, zero, garbage, tear, cut, lengthen, swap, repeat, lose, duplicate)


def served(store: FlashStore, numbers: range) -> set[int]:
    """Those that are served, exactly; what is found corrupt is not here any more."""
    found = set()
    for number, address in zip(numbers, store.locate([key(number) for number in numbers]), strict=True):
        if address is None:
            continue
        try:
            store.read(key(number), OURS, address, OUT)
        except CorruptRecord:
            assert store.locate([key(number)]) == [None]
        else:
            assert payload(number) == OUT, f"block {number} has other bytes than were stored"
            found.add(number)
    return found


def check(before: Base, damage: Damage, open_again: Callable[[], FlashStore]) -> int:
    """Open it twice, storing something in between; how many blocks were lost."""
    everything = range(NUM_BLOCKS + 20)
    store = open_again()
    assert store.used_bytes <= store.limit_bytes
    first = served(store, everything)
    assert not first & before.purged
    lost = set(before.places) - first
    too_many = {number for number in lost if not before.may_lose(number, damage)}
    assert not too_many, f"{sorted(too_many)} were not hit and are gone"
    history = checkpoint.load(store.volumes[0].files, 100.0, 1000.0, Stats())
    assert history is None or (history.notes == {"note": 1} and np.array_equal(history.arrays["age"], HISTORY["age"]))
    if not damage.touches(CHECKPOINT_NAME, 0, 1 << 40):
        assert history is not None
    assert len(store.volumes[0].quarantine.all()) >= (not damage.touches(FAULTS_NAME, 0, 1 << 40))
    fresh = range(1000, 1003)
    store.append(blocks(fresh))
    kept = served(store, everything)
    store.close()
    store = open_again()
    assert kept <= served(store, everything) <= set(before.places) - before.purged
    assert served(store, fresh) == set(fresh)
    store.close()
    return len(lost)


def test_whatever_is_damaged_only_what_was_hit_is_lost(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    dice = random.Random(23)
    bases = [
        base(50, purge=False, die_at=None),
        base(50, purge=True, die_at="flash.append.part"),
        base(NUM_BLOCKS, purge=True, die_at="flash.reclaim.carried"),
        base(NUM_BLOCKS, purge=False, die_at="flash.drop.hint"),
    ]
    kinds: Counter[str] = Counter()
    files_hit: Counter[str] = Counter()
    lost = rounds = 0
    while sum(kinds.values()) < NUM_FAULTS:
        before, damage = dice.choice(bases), Damage()
        files = {name: bytearray(data) for name, data in before.files.items()}
        for _ in range(dice.randint(1, 4)):
            name = dice.choice(sorted(files))
            kind = dice.choice(KINDS)
            if files[name]:
                kind(files, name, dice, damage)
                kinds[kind.__name__] += 1
                files_hit[name.rpartition(".")[2]] += 1
        opener = opener_of(files, tmp_path / str(rounds) if rounds % ON_FILES_EACH == 0 else None)
        try:
            lost += check(before, damage, opener)
        except Exception as error:
            raise AssertionError(f"round {rounds}: {damage.hit}") from error
        rounds += 1
    record_property("faults", dict(kinds))
    num_faults = sum(kinds.values())
    sys.stdout.write(f"{num_faults} faults in {rounds} rounds, {lost} blocks lost: {dict(kinds + files_hit)}\n")
    assert set(kinds) == {kind.__name__ for kind in KINDS}
    assert {"segment", "hint", "json", "checkpoint"} <= set(files_hit)


def opener_of(files: Files, directory: Path | None) -> Callable[[], FlashStore]:
    if directory is None:
        device = MemoryDevice()
        device.files = files
        return lambda: open_store(device, carry_share=SHARE)
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return lambda: open_store(directory, carry_share=SHARE)

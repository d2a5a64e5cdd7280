from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from hifc_ray import points
from hifc_ray.flash import FaultyDevice, FlashStore, MemoryDevice, keys_as_words
from hifc_ray.flash.format import segment_name
from hifc_ray.flash.purges import Selector
from hifc_ray.flash.segment import Segment
from hifc_ray.layout import PAGE_BYTES
from hifc_ray.policy import Features
from hifc_ray.stats import Stats
from hifc_ray.types import Fate, Tier
from tests.fakes.flash import (
    OURS,
    RECORD_BYTES,
    SEGMENT_BYTES,
    THEIRS,
    abandon,
    block,
    blocks,
    key,
    load,
    open_store,
    payload,
    segment_log,
    stored_numbers,
)

pytestmark = pytest.mark.timeout(120)

SHARE = 0.25


class Favoured:
    """Blocks asked for in turn 7 are worth most; of the others the later the better."""

    def values(self, features: Features) -> np.ndarray:
        return features.last_access + 1e9 * (features.turn == 7)


def full(device: MemoryDevice | FaultyDevice, favoured: range, stats: Stats | None = None) -> FlashStore:
    """Six segments full of the blocks 0 to 119, of which some are favoured; the next append reclaims."""
    store = open_store(device, stats, policy=Favoured(), carry_share=SHARE)
    store.append(blocks(range(120)))
    store.look_up(keys_as_words([key(number) for number in favoured]), 7)
    return store


def test_blocks_that_are_worth_it_are_served_from_their_new_place_with_exact_bytes() -> None:
    device, stats = MemoryDevice(), Stats()
    store = full(device, range(5), stats)
    before = store.locate([key(number) for number in range(5)])
    store.append([block(120)])
    after = store.locate([key(number) for number in range(5)])
    assert stored_numbers(store, range(121)) == [*range(5), *range(20, 121)]
    assert not set(before) & set(after)
    assert store.fate(key(2)) is None
    assert store.fate(key(7)) is Fate.DROPPED
    assert stats.get("carried_blocks", tier=Tier.FLASH) == 5
    assert stats.get("carried_bytes", tier=Tier.FLASH) == 5 * RECORD_BYTES
    assert stats.get("device_written_bytes", tier=Tier.FLASH, reason="carried") == 5 * RECORD_BYTES
    assert stats.get("blocks_stored", tier=Tier.FLASH) == 121
    abandon(store)
    with open_store(device) as again:
        assert stored_numbers(again, range(121)) == [*range(5), *range(20, 121)]


def test_carried_blocks_keep_their_history() -> None:
    store = full(MemoryDevice(), range(5))
    store.append([block(120)])
    store.append(blocks(range(121, 141)))
    store.append(blocks(range(141, 300)))
    assert stored_numbers(store, range(5)) == list(range(5))
    store.close()


def test_the_old_place_goes_only_when_the_new_one_is_published() -> None:
    device = MemoryDevice()
    store = full(device, range(5))
    seen: list[tuple[bool, bool]] = []

    def look() -> None:
        found = store.locate([key(0)])[0]
        seen.append((found is not None, segment_name(1) in device.files))

    with points.at("flash.reclaim.carried", look):
        store.append([block(120)])
    assert seen == [(True, True)]
    assert not any(device.files[segment_name(1)][:PAGE_BYTES])  # blank, kept for the next segment
    assert load(store, 0) == payload(0)
    store.close()


def test_what_nobody_uses_is_not_carried() -> None:
    store = open_store(MemoryDevice(), policy=Favoured(), carry_share=SHARE)
    store.append(blocks(range(20), THEIRS))
    store.append(blocks(range(100)))
    store.look_up(keys_as_words([key(number, THEIRS) for number in range(20)]), 7)
    store.set_live_namespaces([OURS])
    store.append([block(100)])
    assert store.namespaces() == {OURS: 101}
    store.close()


def test_a_record_that_does_not_hold_is_not_carried_and_never_served() -> None:
    device, stats = MemoryDevice(), Stats()
    store = full(device, range(5), stats)
    device.files[segment_name(1)][4096 + 2 * RECORD_BYTES + 6000] ^= 1
    device.files[segment_name(1)][4096 + 4 * RECORD_BYTES + 100] ^= 1
    store.append([block(120)])
    assert stored_numbers(store, range(121)) == [0, 1, 3, *range(20, 121)]
    assert stats.get("corrupt", tier=Tier.FLASH, reason="carried") == 2
    store.close()


def test_a_record_that_cannot_be_read_is_lost_and_the_append_goes_on() -> None:
    device = FaultyDevice(MemoryDevice())
    store = full(device, range(5))
    device.fail("read", after=1)
    store.append([block(120)])
    assert stored_numbers(store, range(121)) == [0, 2, 3, 4, *range(20, 121)]
    store.close()


def test_a_segment_that_comes_to_be_read_while_its_blocks_are_carried_stays() -> None:
    """Its bytes could not be given back, and the limit would not hold."""
    store = full(MemoryDevice(), range(5))
    held: list[Segment] = []
    with points.at("flash.reclaim.carried", lambda: held.append(segment_log(store).acquire(1)) if not held else None):
        store.append([block(120)])
    assert 1 in [segment.sequence for segment in segment_log(store).segments]
    assert stored_numbers(store, range(5)) == list(range(5))
    segment_log(store).release(held[0])
    store.append(blocks(range(121, 141)))
    assert 1 not in [segment.sequence for segment in segment_log(store).segments]
    store.close()


def test_what_is_purged_while_it_is_carried_is_gone() -> None:
    device = MemoryDevice()
    store = full(device, range(5))
    gone = []

    def forget() -> None:
        with store._lock:
            gone.append(store._index.select(None, None, OURS))
            store._index.remove(gone[-1])

    with points.at("flash.append.part", forget):
        store.append([block(120)])
    store.purge(namespace=OURS)
    assert store.num_blocks == 0
    assert Selector(namespace=OURS) in [purge.selector for purge in store.volumes[0]._purges._purges]
    abandon(store)
    with open_store(device) as again:
        assert again.num_blocks == 0


def test_nobody_is_about_to_leave_while_there_is_room() -> None:
    with open_store(MemoryDevice()) as store:
        store.append(blocks(range(80)))
        assert len(store.features_of_next(10).last_access) == 0
        store.append(blocks(range(80, 121)))
        assert len(store.features_of_next(10).last_access) == 10


def test_who_is_about_to_leave_is_known_again_when_a_device_takes_blocks_again() -> None:
    with full(MemoryDevice(), range(0)) as store:
        (volume,) = store.volumes
        volume.retire(drain=False)
        assert len(store.features_of_next(10)) == 0
        volume.reinstate()
        assert len(store.features_of_next(10)) == 10


def du(directory: Path) -> int:
    """What the directory occupies on its file system, itself included."""
    return sum(max(s.st_size, s.st_blocks * 512) for s in (p.lstat() for p in [directory, *directory.iterdir()]))


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_a_long_run_writes_little_more_than_it_stores_and_stays_within_the_limit(tmp_path: Path, share: float) -> None:
    """Stores, purges, checkpoints and restarts, with everything in the directory counted at each point."""
    dice, stats = random.Random(5), Stats()
    store = open_store(tmp_path, stats, carry_share=share)
    limit, most = store.limit_bytes, 0

    def measure() -> None:
        nonlocal most
        most = max(most, du(tmp_path))
        assert most <= limit

    names = [f"flash.{name}" for name in ("hint.tmp", "json.tmp", "checkpoint.tmp", "seal.footer", "reclaim.carried")]
    number = 0
    for step in range(180):
        point = dice.choice(names)
        with points.at(point, measure):
            count = dice.randint(1, 12)
            store.append(blocks(range(number, number + count)))
            number += count
            store.look_up(keys_as_words([key(dice.randrange(number)) for _ in range(20)]), step)
            if step % 20 == 7:
                store.volumes[0].files.put("state.checkpoint", dice.randbytes(dice.randint(1, 60_000)))
            if step % 40 == 11:
                (victim,) = [n for n in range(number - 1, 0, -1) if key(n) in store][:1]
                store.append([block(number, THEIRS)])
                store.purge(namespace=THEIRS)
                assert load(store, victim) == payload(victim)
            if step % 50 == 30:
                store.close()
                store = open_store(tmp_path, stats, carry_share=share)
        measure()
        assert store.used_bytes <= limit
    found = [n for n in range(number) if key(n) in store]
    assert stored_numbers(store, found) == found
    assert number - 1 in found
    store.close()
    measure()
    assert most > 0.8 * limit
    written = stats.get("device_written_bytes", tier=Tier.FLASH)
    carried = stats.get("device_written_bytes", tier=Tier.FLASH, reason="carried")
    others = written - carried - stats.get("device_written_bytes", tier=Tier.FLASH, reason="blocks")
    stored = number * RECORD_BYTES
    assert carried <= share * stored + SEGMENT_BYTES
    assert (carried > 0) == (share > 0)
    assert others <= 0.1 * stored

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hifc_ray.config import FlashConfig
from hifc_ray.flash import FileDevice, FlashStore, hint
from hifc_ray.flash.address import pack_extent, pack_where
from hifc_ray.flash.entries import ENTRY, EntryArray, keys_as_words
from hifc_ray.flash.format import hint_name, segment_name
from hifc_ray.flash.segment import begin
from hifc_ray.stats import Stats
from hifc_ray.types import Key
from tests.fakes.flash import OURS

NUM_BLOCKS, PER_SEGMENT, RECORD_BYTES = 1_000_000, 4_000, 8192
LIMIT_S = 5.0


def rows_of(sequence: int, dice: np.random.Generator) -> EntryArray:
    rows = np.zeros(PER_SEGMENT, ENTRY)
    rows["key"] = dice.integers(0, 2**63, (PER_SEGMENT, 4), np.uint64)
    rows["namespace"] = keys_as_words([Key(OURS)])
    rows["tenant"] = dice.integers(0, 5, PER_SEGMENT)
    rows["where"] = [pack_where(sequence, 4096 + RECORD_BYTES * row) for row in range(PER_SEGMENT)]
    rows["extent"] = pack_extent(4096, 4096)
    return rows


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_million_blocks_are_found_again_from_their_hints(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Real hints and headers of segments of blocks of one page; the room of their records is not written (sparse)."""
    device, dice = FileDevice(tmp_path), np.random.default_rng(1)
    some = []
    for sequence in range(1, NUM_BLOCKS // PER_SEGMENT + 1):
        name = segment_name(sequence)
        device.create(name, 4096).close()
        (tmp_path / name).open("r+b").truncate(4096 + PER_SEGMENT * RECORD_BYTES)
        segment = begin(sequence, device.open(name))
        rows = rows_of(sequence, dice)
        segment.end = 4096 + PER_SEGMENT * RECORD_BYTES
        segment.extent.close()
        (tmp_path / hint_name(sequence)).write_bytes(hint.encode(segment, rows))
        some += [Key(words.tobytes()) for words in rows["key"][::997]]
    start = time.perf_counter()
    config = FlashConfig((tmp_path,), limit_bytes=16 << 30, segment_bytes=64 << 20)
    store = FlashStore(config, 4096, Stats())
    taken = time.perf_counter() - start
    try:
        record_property("warm_start_s", round(taken, 2))
        record_property("index_bytes_per_block", round(store._index.nbytes / store.num_blocks, 1))
        sys.stdout.write(
            f"{NUM_BLOCKS} blocks in {taken:.2f} s, {store._index.nbytes / NUM_BLOCKS:.0f} bytes a block\n"
        )
        assert store.num_blocks == NUM_BLOCKS
        assert store.recovered.num_hinted == NUM_BLOCKS // PER_SEGMENT
        assert None not in store.locate(some)
        assert store._index.nbytes <= 200 * NUM_BLOCKS
        assert taken < LIMIT_S
    finally:
        store.close()

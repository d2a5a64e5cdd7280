"""Copies between slots and blocks, and the double that holds them back."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np
import pytest

from hifc_ray.device.copies import ThreadCopies, copies_for
from hifc_ray.device.delayed import DelayedCopies
from hifc_ray.device.pool import BlockPool
from hifc_ray.errors import ConfigError
from hifc_ray.layout import BlockLayout

LAYOUT = BlockLayout(layers=3, kv_heads=2, head_dim=16, block_tokens=16)
SIZE = LAYOUT.block_bytes
pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(LAYOUT, 4 * SIZE)


@pytest.fixture
def copies(pool: BlockPool) -> Iterator[ThreadCopies]:
    made = ThreadCopies(pool)
    yield made
    made.close()


def slot_of(seed: int, size: int = SIZE) -> memoryview:
    slot = memoryview(mmap.mmap(-1, size))
    slot[:] = np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()
    return slot


def test_a_block_goes_out_and_comes_back_whole(pool: BlockPool, copies: ThreadCopies) -> None:
    slot, other = slot_of(1, SIZE + 4096), slot_of(2)
    ticket = copies.copy_in(slot, 2)
    assert ticket.wait(10)
    assert ticket.done()
    assert ticket.elapsed_s > 0
    assert pool.bytes[2].numpy().tobytes() == slot[:SIZE].tobytes()
    assert copies.copy_out(2, other).wait(10)
    assert other.tobytes() == slot[:SIZE].tobytes()
    assert not pool.bytes[[0, 1, 3]].any()


def test_a_slot_that_is_too_small_fails_its_ticket(copies: ThreadCopies) -> None:
    ticket = copies.copy_in(slot_of(1, 4096), 0)
    with pytest.raises(ConfigError, match=f"4096 bytes; a block needs {SIZE}"):
        ticket.wait(10)


def test_the_device_chooses_its_copies(pool: BlockPool) -> None:
    made = copies_for(pool)
    assert isinstance(made, ThreadCopies)
    made.close()


def test_held_copies_begin_when_they_are_let_go(pool: BlockPool, copies: ThreadCopies) -> None:
    delayed = DelayedCopies(copies, hold=("in",))
    slot = slot_of(3)
    held = delayed.copy_in(slot, 0)
    assert not held.wait(0.02)
    assert not held.done()
    assert held.elapsed_s == 0
    assert not pool.bytes[0].any()
    assert delayed.copy_out(1, slot_of(4)).wait(10), "the other direction is not held"
    assert delayed.num_held("in") == 1
    assert delayed.release("in") == 1
    assert held.wait(10)
    assert pool.bytes[0].numpy().tobytes() == slot.tobytes()
    assert delayed.copy_in(slot, 1).wait(10), "later ones pass"

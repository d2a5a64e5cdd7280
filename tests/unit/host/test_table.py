from __future__ import annotations

import numpy as np
import pytest

from hifc_ray.host.table import LINE, LINE_BYTES, MAX_HOLDERS, SlotTable, tag_of
from hifc_ray.layout import DTYPE_BYTES, BlockLayout
from hifc_ray.messages import Purge
from hifc_ray.types import NOBODY, BlockState, Key, Lookup, Namespace, Owner
from tests.fakes.blocks import OURS, THEIRS, keys

SLOTS = len(BlockState)
MOST = Owner(2**64 - 1, 2**64 - 1)


@pytest.fixture
def memory() -> memoryview:
    return memoryview(bytearray(SLOTS * LINE_BYTES))


@pytest.fixture
def table(memory: memoryview) -> SlotTable:
    return SlotTable(memory, SLOTS)


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_a_line_has_its_size_and_a_bit_for_each_holder() -> None:
    assert LINE.itemsize == LINE_BYTES
    assert LINE["holders"].itemsize * 8 == MAX_HOLDERS


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_a_line_says_what_the_block_is(memory: memoryview, table: SlotTable, dtype: str) -> None:
    layout = BlockLayout(61, 8, 128, 256, dtype)
    table.name(rows(4, 1), keys([7, 8]), OURS, layout, Owner(2**64 - 1, 5))
    table.name(rows(2), keys([9], THEIRS), THEIRS, BlockLayout(1, 2, 3, 4, "float16"), NOBODY)
    table.name(rows(3, 0), keys([5, 6]), OURS, layout, [Owner(1, 2), Owner(3, 4)])
    again = SlotTable(memory, SLOTS)  # as a later incarnation of the tier reads it
    assert (again.key(4), again.key(1)) == keys([7, 8])
    assert (again.namespace(4), again.namespace(2)) == (OURS, THEIRS)
    assert again.layout(1) == layout
    assert again.layout(2) == BlockLayout(1, 2, 3, 4, "float16")
    assert [again.owner(slot) for slot in (4, 1, 2, 3, 0)] == [(2**64 - 1, 5)] * 2 + [NOBODY, (1, 2), (3, 4)]
    assert again.tag[rows(4, 2)].tolist() == [tag_of(OURS), tag_of(THEIRS)]


def test_fields_do_not_overlap(table: SlotTable) -> None:
    table.name(rows(3), (Key(b"\xff" * 32),), Namespace(b"\xff" * 32), BlockLayout(1, 1, 1, 1), MOST)
    assert (table.generation[3], table.holders[3], table.position[3], table.state[3], table.writer[3]) == (0,) * 5
    table.generation[3] = table.holders[3] = np.uint64(2**64 - 1)
    table.position[3], table.state[3], table.writer[3] = 2**32 - 1, 5, 255
    assert (table.key(3), table.namespace(3)) == (b"\xff" * 32, b"\xff" * 32)
    assert (table.layout(3), table.owner(3)) == (BlockLayout(1, 1, 1, 1), MOST)
    for other in (2, 4):
        assert not table.generation[other]
        assert (table.key(other), table.owner(other)) == (bytes(32), NOBODY)


def test_answers_by_state_and_generation(table: SlotTable) -> None:
    table.state[:] = list(BlockState)
    table.generation[:] = 5
    everywhere = np.arange(SLOTS)
    answers = table.answers_now(everywhere, np.full(SLOTS, 5, np.uint64))
    assert dict(zip(BlockState, answers.tolist(), strict=True)) == {
        BlockState.ABSENT: Lookup.MISS,
        BlockState.RESERVED: Lookup.PENDING,
        BlockState.RESIDENT: Lookup.HIT,
        BlockState.LEASED: Lookup.HIT,
        BlockState.DEMOTING: Lookup.HIT,
        BlockState.QUARANTINED: Lookup.MISS,
        BlockState.DOOMED: Lookup.MISS,
    }
    assert not table.answers_now(everywhere, np.full(SLOTS, 4, np.uint64)).any()


def test_covered_are_lines_of_that_tenant_conversation_or_namespace(table: SlotTable) -> None:
    layout = BlockLayout(1, 1, 1, 1)
    other = Namespace(OURS[:31] + b"x")  # differs where the tag does not look
    table.name(rows(1, 2), keys([1, 2]), OURS, layout, [Owner(2**64 - 1, 7), Owner(1, 7)])
    table.name(rows(3), keys([3]), other, layout, Owner(1, 2**64 - 1))
    wanted = {
        Purge(tenant=2**64 - 1): [1],
        Purge(tenant=1): [2, 3],
        Purge(session=7): [1, 2],
        Purge(session=2**64 - 1): [3],
        Purge(namespace=OURS): [1, 2],
        Purge(namespace=other): [3],
    }
    assert {what: table.covered(what).nonzero()[0].tolist() for what in wanted} == wanted


def test_a_leased_slot_is_held_until_it_has_another_owner_or_is_withdrawn(table: SlotTable) -> None:
    table.generation[:] = 5
    table.state[:] = list(BlockState)
    everywhere = np.arange(SLOTS)
    held = table.holds(everywhere, np.full(SLOTS, 5, np.uint64))
    assert [BlockState(slot) for slot in everywhere[~held]] == [BlockState.QUARANTINED]
    assert not table.holds(everywhere, np.full(SLOTS, 4, np.uint64)).any()

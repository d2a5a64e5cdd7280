from __future__ import annotations

import numpy as np
import pytest

from hifc_ray.errors import ConservationBroken, InvalidTransition
from hifc_ray.host import HostBooks
from hifc_ray.host.table import LINE_BYTES, TIER_WRITER, SlotTable
from hifc_ray.messages import Purge
from hifc_ray.types import NO_SLOT, NOBODY, BlockState, Event, Namespace, Owner, SlotArray, transition
from tests.fakes.blocks import LAYOUT, OURS, THEIRS, key, keys

SLOTS = 6
NONE = np.empty(0, np.int64)


@pytest.fixture
def memory() -> memoryview:
    return memoryview(bytearray(SLOTS * LINE_BYTES))


@pytest.fixture
def books(memory: memoryview) -> HostBooks:
    return HostBooks(SlotTable(memory, SLOTS))


def reserve(
    books: HostBooks, *numbers: int, writer: int = 1, namespace: Namespace = OURS, owner: Owner = NOBODY
) -> SlotArray:
    return books.reserve(keys(numbers, namespace), namespace, LAYOUT, np.array(numbers), writer, 0, owner)


def publish(books: HostBooks, *numbers: int, namespace: Namespace = OURS, owner: Owner = NOBODY) -> SlotArray:
    slots = reserve(books, *numbers, namespace=namespace, owner=owner)
    books.commit(slots)
    return slots


def in_state(books: HostBooks, state: BlockState, number: int) -> SlotArray:
    """One block, brought to a state."""
    if state == BlockState.DOOMED:
        slots = reserve(books, number)
        books.purge(slots)
        return slots
    slots = reserve(books, number, writer=TIER_WRITER)
    if state == BlockState.RESERVED:
        return slots
    if state == BlockState.QUARANTINED:
        books.reading(slots)
        books.give_up(slots)
        return slots
    books.commit(slots)
    if state == BlockState.LEASED:
        books.lease(slots, 2)
    if state == BlockState.DEMOTING:
        books.demote(slots)
    return slots


def states(books: HostBooks, slots: SlotArray) -> list[BlockState]:
    return [BlockState(state) for state in books.table.state[slots].tolist()]


def test_reserve_gives_distinct_slots_with_new_generations(books: HostBooks) -> None:
    before = books.table.generation.copy()
    slots = reserve(books, 3, 4, 5)
    assert len(set(slots.tolist())) == 3
    assert (books.table.generation[slots] == before[slots] + 1).all()
    assert books.find(keys([5, 9, 3])).tolist() == [slots[2], NO_SLOT, slots[0]]
    assert (books.num_free, books.table.position[slots].tolist()) == (3, [3, 4, 5])
    books.check()


def test_a_slot_used_again_has_another_generation(books: HostBooks) -> None:
    seen: set[tuple[int, int]] = set()
    for round_ in range(4):
        slots = publish(books, *range(round_ * SLOTS, (round_ + 1) * SLOTS))
        named = {(int(slot), int(books.table.generation[slot])) for slot in slots}
        assert not named & seen
        seen |= named
        books.evict(slots)


@pytest.mark.parametrize("numbers", [range(SLOTS + 1), (1, 1), (0, 7)])
def test_what_cannot_be_reserved_changes_nothing(books: HostBooks, numbers: list[int]) -> None:
    publish(books, 7)
    before, free = bytes(books.table._key.tobytes()), books.num_free
    with pytest.raises(ConservationBroken):
        reserve(books, *numbers)
    assert books.num_free == free
    assert books.table._key.tobytes() == before
    books.check()


def test_abort_makes_the_block_unknown_and_the_slot_free(books: HostBooks) -> None:
    slots = reserve(books, 1)
    books.lease(slots, 3)
    books.abort(slots)
    assert books.find(keys([1])).tolist() == [NO_SLOT]
    assert books.num_free == SLOTS
    assert not books.table.holders.any()
    books.release(slots, 3)  # the waiter gives back what is gone already
    books.check()


def test_a_block_that_is_waited_for_is_leased_from_its_first_moment(books: HostBooks) -> None:
    slots = reserve(books, 1, 2)
    books.lease(slots[:1], 3)
    assert states(books, slots) == [BlockState.RESERVED] * 2
    books.commit(slots)
    assert states(books, slots) == [BlockState.LEASED, BlockState.RESIDENT]
    assert books.evictable().tolist() == [slots[1]]
    books.check()


def test_a_lease_lasts_until_the_last_holder_releases(books: HostBooks) -> None:
    slots = publish(books, 1)
    for holder in (0, 63, 5):
        books.lease(slots, holder)
    for holder in (63, 63, 0):
        books.release(slots, holder)
        assert states(books, slots) == [BlockState.LEASED]
        assert not len(books.evictable())
    assert books.held_by(5).tolist() == slots.tolist()
    books.release(slots, 5)
    assert books.evictable().tolist() == slots.tolist()
    books.check()


def test_release_passes_over_what_another_owner_has_now(books: HostBooks) -> None:
    slots = publish(books, 1, 2)
    books.lease(slots, 1)
    books.lease(slots[1:], 2)
    books.release(slots, 2)
    assert states(books, slots) == [BlockState.LEASED] * 2
    assert books.held_by(1).tolist() == slots.tolist()


def test_a_demotion_frees_its_slot_when_it_is_written(books: HostBooks) -> None:
    slots = publish(books, 1)
    books.demote(slots)
    assert (books.num_free, books.num_soon_free) == (SLOTS - 1, SLOTS)
    assert not len(books.evictable())
    assert books.leaving(slots).tolist() == slots.tolist()
    books.written(slots)
    assert books.num_free == SLOTS
    books.check()


def test_a_hit_cancels_a_demotion_and_the_slot_stays_until_the_write_returns(books: HostBooks) -> None:
    slots = publish(books, 1)
    books.demote(slots)
    books.lease(slots, 2)
    books.release(slots, 2)
    assert states(books, slots) == [BlockState.RESIDENT]
    assert not len(books.evictable())  # the write still reads these bytes
    assert not books.still_evictable(slots, books.table.generation[slots].astype(np.int64)).any()
    assert not len(books.leaving(slots))
    books.written(slots)
    assert books.evictable().tolist() == slots.tolist()
    assert books.find(keys([1])).tolist() == slots.tolist()
    books.check()


def test_given_up_slots_are_out_of_use_until_the_io_returns(books: HostBooks) -> None:
    read, write = reserve(books, 1, writer=TIER_WRITER), publish(books, 2)
    books.reading(read)
    books.demote(write)
    for slots in (read, write):
        assert books.give_up(slots).tolist() == slots.tolist()
    assert (books.find(keys([1, 2])) == NO_SLOT).all()
    assert (books.num_free, books.counts()["quarantined"]) == (SLOTS - 2, 2)
    books.check()
    others = reserve(books, *range(10, 10 + books.num_free))
    assert not set(others.tolist()) & {*read.tolist(), *write.tolist()}
    assert not len(books.read_returned(read))
    books.written(write)
    assert books.num_free == 2
    books.check()


def test_a_given_up_slot_waits_for_all_of_its_io(books: HostBooks) -> None:
    slots = reserve(books, 1, writer=TIER_WRITER)
    books.reading(slots)
    books.reading(slots)
    books.give_up(slots)
    books.read_returned(slots)
    assert (books.num_free, books.counts()["quarantined"]) == (SLOTS - 1, 1)
    books.read_returned(slots)
    assert books.num_free == SLOTS
    books.check()


def test_a_block_that_somebody_holds_outlives_a_late_write(books: HostBooks) -> None:
    slots = publish(books, 1)
    books.demote(slots)
    books.lease(slots, 2)
    assert not len(books.give_up(slots))
    books.written(slots)
    assert states(books, slots) == [BlockState.LEASED]
    books.check()


def test_still_evictable_compares_generations(books: HostBooks) -> None:
    slots = publish(books, 1, 2)
    seen = books.table.generation[slots].astype(np.int64)
    books.evict(slots[:1])
    again = publish(books, 3)
    assert again.tolist() == slots[:1].tolist()
    assert books.still_evictable(slots, seen).tolist() == [False, True]


def test_foreign_are_blocks_of_namespaces_that_are_not_live(books: HostBooks) -> None:
    ours, theirs = publish(books, 1), publish(books, 2, namespace=THEIRS)
    books.mark_foreign({OURS})
    assert books.hotness.foreign[[ours[0], theirs[0]]].tolist() == [False, True]
    books.mark_foreign({OURS, THEIRS})
    assert not books.hotness.foreign[[ours[0], theirs[0]]].any()


METHODS = {
    Event.COMMIT: HostBooks.commit,
    Event.ABORT: HostBooks.abort,
    Event.LEASE: lambda books, slots: books.lease(slots, 4),
    Event.DEMOTE: HostBooks.demote,
    Event.EVICT: HostBooks.evict,
    Event.PURGE: HostBooks.purge,
}


@pytest.mark.parametrize("state", list(BlockState)[1:])
@pytest.mark.parametrize("event", METHODS)
def test_each_method_on_each_state_is_the_table_s_edge_or_raises_whole(
    books: HostBooks, event: Event, state: BlockState
) -> None:
    fine = {Event.COMMIT: BlockState.RESERVED, Event.ABORT: BlockState.RESERVED}.get(event, BlockState.RESIDENT)
    slots = np.concatenate((in_state(books, fine, 1), in_state(books, state, 2)))
    before = books.table.state[slots].copy(), books.table.holders.copy(), books.num_free
    try:
        expected = transition(before[0], event)
    except InvalidTransition:
        with pytest.raises(InvalidTransition):
            METHODS[event](books, slots)
        assert (books.table.state[slots] == before[0]).all()
        assert (books.table.holders == before[1]).all()
        assert books.num_free == before[2]
    else:
        METHODS[event](books, slots)
        if event == Event.PURGE:  # what nobody touches is free at once; a read into it counts as I/O, not as a writer
            reading = before[0] == BlockState.RESERVED
            free = (expected == BlockState.QUARANTINED) & (before[1][slots] == 0) & (books.outstanding[slots] == 0)
            expected = np.where(reading, BlockState.QUARANTINED, np.where(free, BlockState.ABSENT, expected))
            books.outstanding[slots[reading]] = 1  # the read that `in_state` leaves out
        assert (books.table.state[slots] == expected).all()
    books.check()


def test_nothing_at_all_is_fine(books: HostBooks) -> None:
    for method in METHODS.values():
        method(books, NONE)
    books.release(NONE, 1)
    books.written(NONE)
    assert not len(books.read_returned(NONE))
    assert not len(reserve(books))
    books.check()


@pytest.mark.parametrize(
    ("damage", "numbers"),
    [
        (lambda books, slot: books._free.append(slot), "6 slots on the free list, 5 absent"),
        (lambda books, slot: books._slot_of.clear(), r"free 5 \+ named 0 \+ quarantined 0 \+ doomed 0 != 6"),
        (lambda books, slot: books.table.state.__setitem__(slot, BlockState.LEASED), "1 leased slots without a holder"),
        (lambda books, slot: books.table.holders.__setitem__(slot, 1), "1 held slots that are not leased"),
        (lambda books, slot: books.outstanding.__setitem__(slot, -1), "more I/O returned"),
        (lambda books, slot: books.table._key.__setitem__(slot, 0), "1 slots whose line names another key"),
        (lambda books, slot: books.table.state.__setitem__(slot, BlockState.DEMOTING), "1 slots wait for I/O"),
    ],
)
def test_the_conservation_law_names_what_is_broken(books: HostBooks, damage: object, numbers: str) -> None:
    (slot,) = publish(books, 1).tolist()
    books.check()
    damage(books, slot)  # type: ignore[operator]
    with pytest.raises(ConservationBroken, match=numbers):
        books.check()


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (BlockState.RESERVED, BlockState.ABSENT),  # by the tier itself: its reads died with it
        (BlockState.RESIDENT, BlockState.RESIDENT),
        (BlockState.LEASED, BlockState.LEASED),  # its holder may live and read
        (BlockState.DEMOTING, BlockState.RESIDENT),
        (BlockState.QUARANTINED, BlockState.ABSENT),
        (BlockState.DOOMED, BlockState.DOOMED),  # its writer may live and write
    ],
)
def test_a_later_incarnation_goes_on_from_the_table(
    memory: memoryview, books: HostBooks, state: BlockState, after: BlockState
) -> None:
    slots = in_state(books, state, 1)
    generation = books.table.generation[slots].tolist()
    heir = HostBooks(SlotTable(memory, SLOTS))
    heir.check()
    assert states(heir, slots) == [after]
    named = after not in (BlockState.ABSENT, BlockState.DOOMED)
    assert heir.find([key(1)]).tolist() == (slots.tolist() if named else [NO_SLOT])
    assert heir.num_free == SLOTS - (after != BlockState.ABSENT)
    assert heir.table.generation[slots].tolist() == generation
    assert not heir.outstanding.any()
    assert (heir.table.layout(int(slots[0])), heir.table.namespace(int(slots[0]))) == (LAYOUT, OURS)


def test_a_slot_that_an_engine_fills_outlives_the_tier(memory: memoryview, books: HostBooks) -> None:
    slots = reserve(books, 1, 2, writer=4)
    books.lease(slots[1:], 9)
    heir = HostBooks(SlotTable(memory, SLOTS))
    heir.check()
    assert states(heir, slots) == [BlockState.RESERVED] * 2
    assert heir.reserved_by(4).tolist() == slots.tolist()
    assert heir.held_by(9).tolist() == slots[1:].tolist()
    assert not set(reserve(heir, *range(10, 14)).tolist()) & set(slots.tolist())


A, B = Owner(1, 10), Owner(2, 20)


@pytest.mark.parametrize(
    ("what", "goes"),
    [
        (Purge(tenant=1), [1, 3]),
        (Purge(session=20), [2]),
        (Purge(session=30), [3]),
        (Purge(namespace=THEIRS), [4]),
        (Purge(tenant=0), [4]),
        (Purge(tenant=9), []),
    ],
)
def test_a_purge_selects_by_tenant_conversation_or_namespace(books: HostBooks, what: Purge, goes: list[int]) -> None:
    for number, owner in ((1, A), (2, B), (3, Owner(1, 30))):
        publish(books, number, owner=owner)
    publish(books, 4, namespace=THEIRS)
    gone = publish(books, 5, owner=A)
    books.evict(gone)  # its line still says whose it was
    books.purge(books.select(what))
    left = [number for number in (1, 2, 3) if number not in goes]
    found = books.find([*keys([1, 2, 3]), key(4, THEIRS)]) != NO_SLOT
    assert found.tolist() == [*(number in left for number in (1, 2, 3)), 4 not in goes]
    assert books.num_free == SLOTS - 4 + len(goes)
    assert not len(books.select(what))
    books.check()


def test_a_purged_block_that_is_held_leaves_its_key_at_once_and_its_slot_with_the_last_release(
    books: HostBooks,
) -> None:
    slots = publish(books, 1, owner=A)
    generations = books.table.generation[slots]
    for holder in (3, 4):
        books.lease(slots, holder)
    assert books.table.holds(slots, generations).all()
    books.purge(books.select(Purge(tenant=1)))
    assert books.find(keys([1])).tolist() == [NO_SLOT]
    assert not books.table.holds(slots, generations).any()  # a copy that is under way is not to be used
    assert not books.table.answers_now(slots, generations).any()
    again = publish(books, 1, owner=A)  # a new store of the same block
    assert again.tolist() != slots.tolist()
    books.release(slots, 3)
    assert (books.num_free, states(books, slots)) == (SLOTS - 2, [BlockState.QUARANTINED])
    books.release(slots, 4)
    assert (books.num_free, states(books, slots)) == (SLOTS - 1, [BlockState.ABSENT])
    assert books.find(keys([1])).tolist() == again.tolist()
    books.check()


def test_a_purged_block_that_is_being_filled_is_never_published(books: HostBooks) -> None:
    slots = reserve(books, 1, 2, writer=4, owner=A)
    kept = reserve(books, 3, writer=4)
    books.lease(slots[:1], 9)  # somebody waits for it
    books.purge(books.select(Purge(session=10)))
    assert states(books, slots) == [BlockState.DOOMED] * 2
    assert not books.table.holders.any()
    assert books.reserved_by(4).tolist() == sorted([*slots.tolist(), *kept.tolist()])
    with pytest.raises(InvalidTransition):
        books.commit(slots)
    again = reserve(books, 1, writer=5, owner=A)
    books.abort(np.concatenate((slots, kept)))
    assert books.find(keys([1, 2, 3])).tolist() == [again[0], NO_SLOT, NO_SLOT]
    assert books.num_free == SLOTS - 1
    books.release(slots[:1], 9)
    books.check()


def test_a_purged_block_waits_for_its_write_and_for_its_read(books: HostBooks) -> None:
    written, cancelled, late = (publish(books, number, owner=A) for number in (1, 2, 3))
    read = reserve(books, 4, writer=TIER_WRITER, owner=A)
    books.reading(read)
    for slots in (written, cancelled, late):
        books.demote(slots)
    books.lease(cancelled, 2)  # a hit: it stays, and so does its write
    books.give_up(late)  # its write is past its deadline
    books.purge(books.select(Purge(tenant=1)))
    assert books.in_flight(Purge(tenant=1)).tolist() == sorted(int(s[0]) for s in (written, cancelled, late, read))
    assert not len(books.in_flight(Purge(tenant=2)))
    assert not len(books.leaving(written))
    for slots in (written, cancelled, late):
        books.written(slots)
    assert not len(books.read_returned(read))
    assert not len(books.in_flight(Purge(tenant=1)))
    assert books.num_free == SLOTS - 1  # the hit is not given back yet
    books.release(cancelled, 2)
    assert books.num_free == SLOTS
    books.check()


def test_what_was_purged_stays_purged_in_the_next_incarnation(memory: memoryview, books: HostBooks) -> None:
    held, idle = publish(books, 1, owner=A), publish(books, 2, owner=A)
    filled = reserve(books, 3, writer=4, owner=A)
    other = publish(books, 5, owner=B)
    books.lease(held, 7)
    books.purge(books.select(Purge(tenant=1)))
    heir = HostBooks(SlotTable(memory, SLOTS))
    heir.check()
    assert heir.find(keys([1, 2, 3, 5])).tolist() == [NO_SLOT] * 3 + other.tolist()
    taken = reserve(heir, *range(10, 10 + heir.num_free))
    assert not {*held.tolist(), *filled.tolist()} & {*taken.tolist()}
    assert idle.tolist()[0] in taken.tolist()
    heir.release(held, 7)
    heir.abort(heir.reserved_by(4))
    assert heir.num_free == 2
    heir.check()

"""Random legal lives of the books, with restarts and kills between any two stores into the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hifc_ray import points
from hifc_ray.host import HostBooks
from hifc_ray.host.table import LINE_BYTES, TIER_WRITER, SlotTable
from hifc_ray.messages import Purge
from hifc_ray.types import NO_SLOT, BlockState, Owner, SlotArray
from tests.fakes.blocks import LAYOUT, OURS, keys

SLOTS = 7
KILLS = (
    "host.reserve.named",
    "host.commit.published",
    "host.lease.marked",
    "host.release.cleared",
    "host.forget.withdrawn",
)
HELD = st.integers(0, 3)
PURGES = st.one_of(
    st.builds(Purge, tenant=st.integers(1, 2)),
    st.builds(Purge, session=st.integers(1, 3)),
    st.just(Purge(namespace=OURS)),
)


class Killed(BaseException):
    """The process ends here: nothing after this line runs."""


class Life(RuleBasedStateMachine):
    """Every rule does one legal thing to some slots; with a kill point, the process may die in its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = memoryview(bytearray(SLOTS * LINE_BYTES))
        self.books = HostBooks(SlotTable(self.memory, SLOTS))
        self.reads: set[int] = set()  # slots with a read of this process outstanding
        self.writes: set[int] = set()
        self.next_key = 0
        self.generations = np.zeros(SLOTS, np.uint64)

    def of(self, *states: BlockState) -> SlotArray:
        return np.flatnonzero(np.isin(self.books.table.state, states))

    def some(self, data: Any, slots: SlotArray) -> SlotArray:
        if not len(slots):
            return slots.astype(np.int64)
        chosen = data.draw(st.lists(st.sampled_from(slots.tolist()), unique=True, min_size=1))
        return np.array(chosen, np.int64)

    def do(self, data: Any, action: Callable[[], Any]) -> Any:
        """Run it, or die in it and start again from what is in the table."""
        point = data.draw(st.sampled_from((None, None, None, *KILLS)))
        if point is None:
            return action()

        def die() -> None:
            raise Killed

        try:
            with points.at(point, die):
                return action()
        except Killed:
            self.restart()
            return None

    @rule(data=st.data(), count=st.integers(1, SLOTS), writer=st.sampled_from([0, 3, TIER_WRITER]))
    def reserve(self, data: Any, count: int, writer: int) -> None:
        count = min(count, self.books.num_free)
        busy = set(np.flatnonzero(self.books.table.state != BlockState.ABSENT).tolist())
        numbers = range(self.next_key, self.next_key + count)
        self.next_key += count

        def take() -> SlotArray:
            positions = np.array(numbers, np.int64)
            owners = [Owner(number % 2 + 1, number % 3 + 1) for number in numbers]
            return self.books.reserve(keys(numbers), OURS, LAYOUT, positions, writer, 0, owners)

        slots = self.do(data, take)
        if slots is None:
            return
        assert not busy & set(slots.tolist())
        assert not (self.reads | self.writes) & set(slots.tolist())  # never while I/O touches it
        assert (self.books.table.generation[slots] > self.generations[slots]).all()
        self.generations[slots] = self.books.table.generation[slots]
        assert self.books.find(keys(numbers)).tolist() == slots.tolist()
        if writer == TIER_WRITER:
            self.books.reading(slots)
            self.reads.update(slots.tolist())

    @rule(data=st.data())
    def commit(self, data: Any) -> None:
        table = self.books.table
        ours = self.of(BlockState.RESERVED)
        slots = self.some(data, ours[table.writer[ours] != TIER_WRITER])
        self.do(data, lambda: self.books.commit(slots))

    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        ours = self.of(BlockState.RESERVED, BlockState.DOOMED)
        slots = self.some(data, ours[self.books.table.writer[ours] != TIER_WRITER])
        self.do(data, lambda: self.books.abort(slots))

    @rule(data=st.data(), holder=HELD)
    def lease(self, data: Any, holder: int) -> None:
        alive = self.of(BlockState.RESERVED, BlockState.RESIDENT, BlockState.LEASED, BlockState.DEMOTING)
        slots = self.some(data, alive)
        self.do(data, lambda: self.books.lease(slots, holder))

    @rule(data=st.data(), holder=HELD)
    def release(self, data: Any, holder: int) -> None:
        slots = self.some(data, np.arange(SLOTS))
        self.do(data, lambda: self.books.release(slots, holder))

    @rule(data=st.data())
    def evict(self, data: Any) -> None:
        slots = self.some(data, self.books.evictable())
        assert not self.books.table.holders[slots].any()
        self.do(data, lambda: self.books.evict(slots))

    @rule(data=st.data(), what=PURGES)
    def purge(self, data: Any, what: Purge) -> None:
        table, books = self.books.table, self.books
        slots = books.select(what)
        found = [table.key(slot) for slot in slots.tolist()]
        published = slots[table.state[slots] != BlockState.RESERVED]
        held, generations = published[table.holders[published] != 0], table.generation.copy()
        self.do(data, lambda: books.purge(slots))
        if self.books is books:  # not killed in its middle
            assert (books.find(found) == NO_SLOT).all()
            assert not len(books.select(what))
            assert not table.answers_now(slots, generations[slots]).any()
            assert (table.state[held] == BlockState.QUARANTINED).all()

    @rule(data=st.data())
    def demote(self, data: Any) -> None:
        slots = self.some(data, self.books.evictable())
        self.books.demote(slots)
        self.writes.update(slots.tolist())

    @rule(data=st.data())
    def give_up(self, data: Any) -> None:
        slots = self.some(data, np.array(sorted(self.reads | self.writes), np.int64))
        self.do(data, lambda: self.books.give_up(slots))

    @rule(data=st.data())
    def write_returns(self, data: Any) -> None:
        slots = self.some(data, np.array(sorted(self.writes), np.int64))
        self.writes -= set(slots.tolist())
        self.do(data, lambda: self.books.written(slots))

    @rule(data=st.data(), fine=st.booleans())
    def read_returns(self, data: Any, fine: bool) -> None:
        slots = self.some(data, np.array(sorted(self.reads), np.int64))
        self.reads -= set(slots.tolist())

        def end() -> None:
            waiting = self.books.read_returned(slots)
            (self.books.commit if fine else self.books.abort)(waiting)

        self.do(data, end)

    @rule()
    def restart(self) -> None:
        """Another incarnation reads the table; what a holder has stays, what this process began is over."""
        old = self.books.table
        state, holders, generation = old.state.copy(), old.holders.copy(), old.generation.copy()
        named = {slot: old.key(slot) for slot in range(SLOTS)}
        self.books = HostBooks(SlotTable(self.memory, SLOTS))
        self.reads, self.writes = set(), set()
        self.generations = np.maximum(self.generations, generation)  # one may have been taken and not handed out
        after = self.books.table.state
        for slot in range(SLOTS):
            lives = state[slot] in (BlockState.RESIDENT, BlockState.LEASED, BlockState.DEMOTING)
            if lives:
                assert self.books.find([named[slot]]).tolist() == [slot]
                assert after[slot] == (BlockState.LEASED if holders[slot] else BlockState.RESIDENT)
            elif state[slot] == BlockState.RESERVED and old.writer[slot] != TIER_WRITER:
                assert after[slot] == BlockState.RESERVED
            elif state[slot] == BlockState.DOOMED or (state[slot] == BlockState.QUARANTINED and holders[slot]):
                assert after[slot] == state[slot]
            else:
                assert after[slot] == BlockState.ABSENT

    @invariant()
    def conservation(self) -> None:
        self.books.check()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

"""Lookups and replies as bytes: what is packed is what is unpacked."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hifc_ray.actors import wire
from hifc_ray.client import NO_LEASE, ChainQuery, Lease, LookupReply, Missed, all_missed
from hifc_ray.layout import DTYPE_BYTES, BlockLayout
from hifc_ray.messages import CallHeader, Held
from hifc_ray.types import NO_SLOT, Fate, Key, Lookup, Namespace, Owner, Tier
from tests.fakes.blocks import query

_int64 = st.integers(-(2**63), 2**63 - 1)
_size = st.integers(1, 2**20)
_headers = st.builds(CallHeader, _int64, _int64, _int64)
_rows = st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**64 - 1)), max_size=9)
_layouts = st.builds(BlockLayout, _size, _size, _size, _size, st.sampled_from(sorted(DTYPE_BYTES)))
_key = st.binary(min_size=32, max_size=32)
_owner = st.builds(Owner, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))


@st.composite
def _queries(draw: st.DrawFn) -> ChainQuery:
    keys = draw(st.lists(_key, max_size=20))
    flags = draw(st.lists(st.booleans(), min_size=len(keys), max_size=len(keys)))
    return ChainQuery(
        Namespace(draw(_key)),
        tuple(map(Key, keys)),
        np.array(flags, np.bool_),
        draw(_layouts),
        draw(_owner),
        draw(_int64),
        draw(st.booleans()),
    )


def _held(rows: list[tuple[int, int]]) -> Held:
    return Held(np.array([slot for slot, _ in rows], np.int64), np.array([gen for _, gen in rows], np.uint64))


@given(_headers, _rows, st.none() | _queries())
def test_a_lookup_comes_back_as_it_was(
    header: CallHeader, rows: list[tuple[int, int]], sent: ChainQuery | None
) -> None:
    held = _held(rows)
    got_header, got_held, got = wire.unpack_lookup(wire.pack_lookup(header, held, sent))
    assert got_header == header
    assert got_held.slots.tolist() == held.slots.tolist()
    assert got_held.generations.tolist() == held.generations.tolist()
    if sent is None:
        assert got is None
        return
    assert got is not None
    assert (got.namespace, got.keys, got.layout) == (sent.namespace, sent.keys, sent.layout)
    assert (got.owner, got.turn, got.continued) == (sent.owner, sent.turn, sent.continued)
    assert got.in_gpu.tolist() == sent.in_gpu.tolist()


@given(st.data())
def test_a_reply_comes_back_as_it_was(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 20))
    sent = query(range(n))
    column = lambda of: data.draw(st.lists(of, min_size=n, max_size=n))  # noqa: E731
    slots = np.array(column(st.just(NO_SLOT) | st.integers(0, 2**40)), np.int64)
    generations = np.array(column(st.integers(0, 2**64 - 1)), np.uint64)
    answers = np.array(column(st.sampled_from(Lookup)), np.uint8)
    tiers = np.array(column(st.sampled_from(Tier)), np.uint8)
    at = data.draw(st.none() | st.integers(0, n - 1)) if n else None
    missed = None if at is None else Missed(at, sent.keys[at], data.draw(st.sampled_from(Fate)))
    named = slots != NO_SLOT
    reply = LookupReply(answers, slots, generations, tiers, Lease(slots[named], generations[named]), missed)
    got = wire.unpack_reply(wire.pack_reply(reply), sent)
    assert got is not None
    for name in ("answers", "slots", "generations", "tiers"):
        assert getattr(got, name).tolist() == getattr(reply, name).tolist()
        assert getattr(got, name).dtype == getattr(reply, name).dtype
    assert got.lease.slots.tolist() == slots[named].tolist()
    assert got.lease.generations.tolist() == generations[named].tolist()
    assert got.missed == missed


def test_a_refused_call_has_no_bytes() -> None:
    assert wire.pack_reply(None) == b""
    assert wire.unpack_reply(b"", query(range(3))) is None


def test_a_reply_without_slots_leases_nothing() -> None:
    sent = query(range(3))
    got = wire.unpack_reply(wire.pack_reply(all_missed(sent, Fate.DROPPED)), sent)
    assert got is not None
    assert got.lease is NO_LEASE
    assert got.missed == Missed(0, sent.keys[0], Fate.DROPPED)


def test_a_lookup_of_64_keys_is_little_more_than_its_keys() -> None:
    sent = query(range(64))
    assert len(wire.pack_lookup(CallHeader(1, 2, 3), Held(), sent)) < 64 * 33 + 150

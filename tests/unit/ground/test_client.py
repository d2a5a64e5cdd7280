"""The values that a tier answers with: what counts as usable, and the answers of a tier that cannot serve."""

from __future__ import annotations

import numpy as np
import pytest

from hifc_ray.client import NO_LEASE, ChainQuery, LookupReply, Missed, StoreRequest, all_missed, all_refused
from hifc_ray.keys import chain, namespace
from hifc_ray.layout import BlockLayout
from hifc_ray.types import NO_SLOT, Fate, Lookup, Reserve

SPACE = namespace({})
KEYS = tuple(chain(SPACE, range(4), 1))
LAYOUT = BlockLayout(1, 1, 8)


def query(*in_gpu: bool) -> ChainQuery:
    return ChainQuery(SPACE, KEYS[: len(in_gpu)], np.array(in_gpu, np.bool_), LAYOUT)


@pytest.mark.parametrize(
    ("answers", "usable"),
    [
        ([], 0),
        ([Lookup.HIT, Lookup.PENDING], 2),
        ([Lookup.HIT, Lookup.MISS, Lookup.HIT], 1),
        ([Lookup.RETRY, Lookup.HIT], 0),
        ([Lookup.PENDING, Lookup.HIT, Lookup.RETRY], 2),
    ],
)
def test_usable_is_the_leading_run(answers: list[Lookup], usable: int) -> None:
    n = len(answers)
    tiers, slots, generations = np.zeros(n, np.uint8), np.zeros(n, np.int64), np.zeros(n, np.uint64)
    reply = LookupReply(np.array(answers, np.uint8), slots, generations, tiers, NO_LEASE, None)
    assert reply.num_usable == usable


@pytest.mark.parametrize(
    ("in_gpu", "first"), [((False, False), 0), ((True, False, True), 1), ((True, True), None), ((), None)]
)
def test_a_tier_that_cannot_serve_leaves_what_the_caller_has(in_gpu: tuple[bool, ...], first: int | None) -> None:
    reply = all_missed(query(*in_gpu), Fate.UNREACHABLE)
    assert reply.answers.tolist() == [Lookup.HIT if mine else Lookup.MISS for mine in in_gpu]
    assert reply.slots.tolist() == [NO_SLOT] * len(in_gpu)
    assert len(reply.lease) == 0
    assert reply.missed == (None if first is None else Missed(first, KEYS[first], Fate.UNREACHABLE))
    assert reply.num_usable == (len(in_gpu) if first is None else first)


def test_a_tier_that_takes_nothing_refuses_each_key() -> None:
    grant = all_refused(StoreRequest(SPACE, KEYS, np.arange(4), LAYOUT))
    assert grant.answers.tolist() == [Reserve.REFUSED] * 4
    assert grant.slots.tolist() == [NO_SLOT] * 4
    assert (grant.granted, grant.refused) == ([], [0, 1, 2, 3])

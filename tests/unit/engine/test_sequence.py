"""One request's arithmetic: blocks it needs, blocks it may find, chunks to compute, keys, the end."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hifc_ray import keys
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.engine.sequence import Sequence
from hifc_ray.messages import Purge
from hifc_ray.types import NOBODY, Namespace, Owner

NAMESPACE = Namespace(b"n" * 32)


def make(
    num_tokens: int, max_new_tokens: int = 3, stop: frozenset[int] = frozenset(), owner: Owner = NOBODY
) -> Sequence:
    params = SamplingParams(max_new_tokens=max_new_tokens)
    return Sequence(1, list(range(num_tokens)), params, stop, 4, owner=owner)


@pytest.mark.parametrize(
    ("num_tokens", "max_new_tokens", "num_blocks", "num_lookups"),
    [(1, 1, 1, 0), (4, 1, 1, 0), (4, 2, 2, 0), (5, 4, 2, 1), (8, 1, 2, 1), (9, 8, 4, 2)],
)
def test_blocks(num_tokens: int, max_new_tokens: int, num_blocks: int, num_lookups: int) -> None:
    sequence = make(num_tokens, max_new_tokens)
    assert sequence.num_blocks == num_blocks  # the last generated token is never written
    assert sequence.num_lookups == num_lookups  # at least one token is computed


def test_chunks_skip_what_is_ready() -> None:
    sequence = make(14)
    assert sequence.next_chunk == 0
    sequence.ready[[0, 2]] = True
    assert sequence.next_chunk == 1
    sequence.ready[1] = True
    assert sequence.next_chunk == 3
    sequence.ready[3] = True
    assert sequence.next_chunk is None


def test_keys_are_chained_on_as_generated_blocks_fill() -> None:
    sequence = make(6, max_new_tokens=8)
    sequence.open(NAMESPACE)
    assert len(sequence.keys) == 1
    for token in (50, 51, 52, 53, 54, 55):
        sequence.accept(token, 1.0)
    assert sequence.key_of(2) == keys.chain(NAMESPACE, sequence.tokens, 4)[2]
    sequence.open(None)
    assert sequence.keys == []


def test_it_ends_by_length_or_by_a_stop_token_and_tells_each_token() -> None:
    told: list[tuple[int, int]] = []
    sequence = make(5, stop=frozenset({99}))
    sequence.on_token = lambda number, token: told.append((number, token))
    sequence.accept(7, 0.5)
    assert sequence.finish_reason == ""
    sequence.accept(99, 0.2)
    assert sequence.finish_reason == "stop"
    assert told == [(1, 7), (1, 99)]
    result = sequence.result("text")
    assert (result.tokens, result.text, result.num_prompt_tokens) == ([7, 99], "text", 5)
    assert result.min_margin == 0.2
    assert result.ttft_s is not None
    assert result.ttft_s >= 0
    full = make(5, max_new_tokens=1)
    full.accept(7, 0.5)
    assert full.finish_reason == "length"


def test_attention_is_the_mean_over_the_queries_that_saw_a_block() -> None:
    sequence = make(9)
    sequence.attention_sum[:] = [6.0, 0.0, 0.0]
    sequence.attention_queries[:] = [4, 0, 0]
    assert sequence.attention_of(0) == 1.5
    assert math.isnan(sequence.attention_of(1))
    np.testing.assert_array_equal(sequence.result("").attention, np.array([1.5, np.nan, np.nan], np.float32))


def test_a_purged_request_asks_for_nothing_and_shares_nothing() -> None:
    waiting, admitted, other = (make(9, owner=owner) for owner in (Owner(1, 2), Owner(1, 3), Owner(2, 2)))
    admitted.open(NAMESPACE)
    for sequence in (waiting, admitted, other):
        sequence.purge(Purge(tenant=1), NAMESPACE)
    assert admitted.namespace is None
    for sequence in (waiting, other):
        sequence.open(NAMESPACE)
    assert (waiting.namespace, waiting.keys) == (None, [])
    assert (other.namespace, len(other.keys)) == (NAMESPACE, 2)
    other.purge(Purge(namespace=Namespace(b"m" * 32)), NAMESPACE)
    assert other.namespace == NAMESPACE
    other.purge(Purge(namespace=NAMESPACE), Namespace(b"m" * 32))  # it is of the one it was opened in
    assert other.namespace is None

"""Small blocks of known bytes and the queries for them, for tests of the tiers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from hifc_ray.client import ChainQuery, Grant, StoreRequest, TierClient
from hifc_ray.layout import BlockLayout
from hifc_ray.types import NOBODY, Key, Namespace, Owner

LAYOUT = BlockLayout(layers=2, kv_heads=1, head_dim=8, block_tokens=64)  # 2 stripes of one page
SLOT_BYTES = LAYOUT.block_bytes
OURS = Namespace(b"n" * 32)
THEIRS = Namespace(b"m" * 32)
SOON = 5.0  # seconds; a deadline that a test does not expect to meet


def key(number: int, namespace: Namespace = OURS) -> Key:
    return Key(hashlib.blake2b(namespace + number.to_bytes(4, "little"), digest_size=32).digest())


def keys(numbers: Iterable[int], namespace: Namespace = OURS) -> tuple[Key, ...]:
    return tuple(key(number, namespace) for number in numbers)


def payload(number: int, namespace: Namespace = OURS) -> bytes:
    """The bytes of block `number`; every page of it differs from every page of any other."""
    return np.random.default_rng((number, namespace[0])).bytes(SLOT_BYTES)


def query(
    numbers: Iterable[int],
    namespace: Namespace = OURS,
    *,
    in_gpu: Sequence[bool] = (),
    continued: bool = False,
    turn: int = 0,
) -> ChainQuery:
    """A chain of blocks; `in_gpu` flags its first ones, the others are not there."""
    chain = keys(numbers, namespace)
    flags = np.array([*in_gpu, *[False] * (len(chain) - len(in_gpu))], np.bool_)
    return ChainQuery(namespace, chain, flags, LAYOUT, turn=turn, continued=continued)


def request(numbers: Iterable[int], namespace: Namespace = OURS, owner: Owner = NOBODY) -> StoreRequest:
    """Blocks to store; the position of each is its number."""
    chain = list(numbers)
    return StoreRequest(namespace, keys(chain, namespace), np.array(chain, np.int64), LAYOUT, owner)


def fill(client: TierClient, grant: Grant, numbers: Sequence[int], namespace: Namespace = OURS) -> None:
    """Write the bytes of the granted blocks into their slots."""
    for row in grant.granted:
        client.slot(int(grant.slots[row]))[:SLOT_BYTES] = payload(numbers[row], namespace)


def store(client: TierClient, numbers: Iterable[int], namespace: Namespace = OURS, owner: Owner = NOBODY) -> list[int]:
    """Reserve, fill and commit; returns the numbers of the blocks that are published now."""
    chain = list(numbers)
    grant = client.reserve(request(chain, namespace, owner), SOON)
    fill(client, grant, chain, namespace)
    assert client.commit(grant, None, SOON) == len(grant.granted)
    return [chain[row] for row in grant.granted]


def holds_bytes(client: TierClient, slot: int, number: int, namespace: Namespace = OURS) -> bool:
    """Does this slot hold exactly the bytes of block `number`?"""
    return bytes(client.slot(slot)[:SLOT_BYTES]) == payload(number, namespace)

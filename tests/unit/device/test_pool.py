"""The block pool: references, prefix cache, order of leaving, the conservation law."""

from __future__ import annotations

import numpy as np
import pytest

from hifc_ray.device.placement import choose, even_runs
from hifc_ray.device.pool import BlockPool
from hifc_ray.errors import ConfigError, ConservationBroken
from hifc_ray.layout import BlockLayout
from hifc_ray.messages import Purge
from hifc_ray.types import Key, Owner
from tests.fakes.blocks import OURS

LAYOUT = BlockLayout(layers=2, kv_heads=1, head_dim=16, block_tokens=16)


def make_pool(num_blocks: int = 8) -> BlockPool:
    return BlockPool(LAYOUT, num_blocks * LAYOUT.block_bytes + 17)


def key(number: int) -> Key:
    return Key(number.to_bytes(32, "little"))


def test_it_holds_as_many_blocks_as_fit_and_says_when_none_does() -> None:
    assert make_pool(5).num_blocks == 5
    with pytest.raises(ConfigError, match=f"engine.gpu_bytes is 100; one block needs {LAYOUT.block_bytes}"):
        BlockPool(LAYOUT, 100)


def test_a_blocks_bytes_are_a_slots_bytes() -> None:
    pool = make_pool(3)
    for layer, view in enumerate(pool.layers):
        view[1] = layer + 1
    stripes = pool.bytes[1].view(LAYOUT.layers, LAYOUT.stripe_bytes)
    for layer in range(LAYOUT.layers):
        payload = stripes[layer].numpy()[: LAYOUT.stripe_payload_bytes].view(np.float32)
        assert (payload == layer + 1).all()
    assert not pool.bytes[0].any()
    assert not pool.bytes[2].any()


def test_published_blocks_stay_and_leave_by_least_recent_use_the_deepest_first() -> None:
    pool = make_pool(4)
    blocks = pool.allocate(4)
    assert blocks is not None
    for index, block in enumerate(blocks):
        pool.publish(block, key(index), OURS)
    pool.release(blocks)
    assert pool.find([key(i) for i in range(4)]) == blocks
    pool.take(blocks[2:])  # used again: now the first two are the older ones
    pool.release(blocks[2:])
    assert pool.allocate(1) == [blocks[1]]
    assert pool.find([key(0), key(1)]) == [blocks[0]]
    assert pool.holds([key(2), key(3)]).all()
    pool.check()


def test_what_is_referenced_is_never_given_away() -> None:
    pool = make_pool(3)
    held = pool.allocate(2)
    assert held is not None
    assert pool.allocate(2) is None
    pool.take([held[0]])
    pool.release(held)
    assert pool.num_available == 2
    pool.release([held[0]])
    assert pool.num_available == 3
    with pytest.raises(ConservationBroken):
        pool.release([held[0]])


def test_a_random_life_keeps_the_law() -> None:
    rng = np.random.default_rng(0)
    pool, number = make_pool(16), 0
    held: list[list[int]] = []
    for _ in range(2000):
        if held and rng.random() < 0.5:
            pool.release(held.pop(int(rng.integers(len(held)))))
        elif (blocks := pool.allocate(int(rng.integers(1, 5)))) is not None:
            for block in blocks:
                if rng.random() < 0.7:
                    number += 1
                    pool.publish(block, key(number), OURS)
            held.append(blocks)
        pool.check()
    for blocks in held:
        pool.release(blocks)
    pool.forget()
    assert pool.num_available == 16


def test_neighbours_are_chosen_and_runs_found() -> None:
    assert choose({0, 1, 4, 5, 6, 9}, 3) == [4, 5, 6]
    assert choose({0, 1, 4, 5, 6, 9}, 2, after=3) == [4, 5]
    assert choose({0, 1, 4, 5, 6, 9}, 2) == [0, 1]
    assert choose({0, 3, 6}, 2) == sorted(choose({0, 3, 6}, 2))
    assert [list(run) for run in even_runs([3, 5, 7, 2, 1, 9])] == [[3, 5, 7], [2], [1, 9]]
    rng = np.random.default_rng(1)
    for _ in range(200):
        blocks = rng.permutation(20)[: int(rng.integers(0, 20))].tolist()
        assert [block for run in even_runs(blocks) for block in run] == blocks


def test_a_purge_frees_what_nobody_uses_and_hides_what_somebody_does() -> None:
    pool = make_pool(4)
    blocks = pool.allocate(4)
    assert blocks is not None
    owners = [Owner(1, 10), Owner(1, 10), Owner(1, 20), Owner(2, 10)]
    for number, (block, owner) in enumerate(zip(blocks, owners, strict=True)):
        pool.publish(block, key(number), OURS, owner)
    pool.release(blocks[1:])
    assert pool.purge(Purge(tenant=1)) == 3
    assert pool.holds([key(number) for number in range(4)]).tolist() == [False, False, False, True]
    assert pool.num_available == 3
    pool.check()
    pool.release(blocks[:1])  # the last to use a purged block: nobody finds it again
    assert (pool.num_available, pool.num_cached) == (4, 1)
    assert pool.purge(Purge(tenant=1)) == 0
    assert pool.purge(Purge(namespace=OURS)) == 1
    assert pool.find([key(3)]) == []
    pool.check()

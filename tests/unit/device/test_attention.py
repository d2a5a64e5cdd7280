"""Attention over blocks against one dense softmax, its shares, and its bits wherever the blocks lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from hifc_ray.device.attention import BlockAttention
from hifc_ray.device.kernels import Attend, flash_cpu_attention, matmul_attention
from hifc_ray.layout import BlockLayout

TOKENS, KV_HEADS, GROUP, DIM = 16, 3, 3, 32
LAYOUT = BlockLayout(layers=1, kv_heads=KV_HEADS, head_dim=DIM, block_tokens=TOKENS)
SCALE = DIM**-0.5
NUM_BLOCKS = 64


@dataclass
class Layer:
    """One layer of a pool."""

    keys: torch.Tensor
    values: torch.Tensor


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def attention(attend: Attend = flash_cpu_attention, group_blocks: int = 4) -> BlockAttention:
    return BlockAttention(LAYOUT, KV_HEADS * GROUP, group_blocks, attend, torch.float32, torch.device("cpu"))


def sequence(num_tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [kv_heads, tokens, D]."""
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, KV_HEADS, num_tokens, DIM, generator=generator)
    return k, v


def place(sequences: list[tuple[torch.Tensor, torch.Tensor]], tables: list[list[int]]) -> Layer:
    """A pool layer, filled with NaN but for what the sequences wrote: what is not visible must not be read."""
    keys, values = torch.full((2, NUM_BLOCKS, KV_HEADS, TOKENS, DIM), float("nan"))
    for (k, v), table in zip(sequences, tables, strict=True):
        for index, block in enumerate(table):
            part_k = k[:, index * TOKENS : (index + 1) * TOKENS]
            keys[block, :, : part_k.shape[1]] = part_k
            values[block, :, : part_k.shape[1]] = v[:, index * TOKENS : (index + 1) * TOKENS]
    return Layer(keys, values)


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int) -> tuple[Any, Any]:
    """q [heads, T, D] at positions from `first` on -> out [T, heads, D], weights [kv_heads, G, T, keys], in float64."""
    grouped = q.double().view(KV_HEADS, GROUP, -1, DIM)
    scores = torch.einsum("hgqd,hkd->hgqk", grouped, k.double()) * SCALE
    visible = torch.arange(k.shape[1]) <= (first + torch.arange(q.shape[1])).unsqueeze(1)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    out = torch.einsum("hgqk,hkd->hgqd", weights, v.double())
    return out.reshape(q.shape).transpose(0, 1), weights


def by_block(weights: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """[..., keys] -> [num_blocks, ...]"""
    padded = torch.nn.functional.pad(weights, (0, num_blocks * TOKENS - weights.shape[-1]))
    return padded.unflatten(-1, (num_blocks, TOKENS)).sum(-1).movedim(-1, 0)


TABLES = {
    "side by side": [*range(11)],
    "every third": [*range(5, 38, 3)],
    "backwards": [*range(10, -1, -1)],
    "scattered": np.random.default_rng(0).permutation(NUM_BLOCKS)[:11].tolist(),
}


@pytest.mark.parametrize("attend", [flash_cpu_attention, matmul_attention])
@pytest.mark.parametrize(("num_past", "num_tokens"), [(0, 16), (0, 5), (1, 16), (3, 7), (10, 16), (10, 1)])
def test_a_chunk_is_exact_and_gives_its_shares(attend: Attend, num_past: int, num_tokens: int) -> None:
    k, v = sequence(num_past * TOKENS + num_tokens, seed=1)
    q = torch.randn(KV_HEADS * GROUP, num_tokens, DIM, generator=torch.Generator().manual_seed(2))
    table = TABLES["scattered"][: num_past + 1]
    layer, blocks = place([(k, v)], [table]), attention(attend)
    plan = blocks.plan_chunk(table[:num_past], table[num_past], num_tokens)
    out, shares = blocks.chunk(q.unsqueeze(0), layer.keys, layer.values, plan, SCALE)
    expected, weights = dense(q, k, v, num_past * TOKENS)
    torch.testing.assert_close(out[0].double(), expected, atol=2e-6, rtol=2e-6)
    if num_past == 0:
        assert shares is None
    else:
        assert shares is not None
        mass = by_block(weights, num_past + 1).reshape(num_past + 1, KV_HEADS, -1)
        torch.testing.assert_close(shares.double(), mass, atol=2e-6, rtol=0)


@pytest.mark.parametrize("attend", [flash_cpu_attention, matmul_attention])
@pytest.mark.parametrize("lengths", [[1], [16], [17], [170], [5, 9], [33, 20], [170, 3, 16, 17, 64]])
def test_a_batch_is_exact_and_gives_its_shares(attend: Attend, lengths: list[int]) -> None:
    sequences = [sequence(length, seed=row) for row, length in enumerate(lengths)]
    q = torch.randn(len(lengths), KV_HEADS * GROUP, 1, DIM, generator=torch.Generator().manual_seed(2))
    free = iter(np.random.default_rng(1).permutation(NUM_BLOCKS).tolist())
    tables = [[next(free) for _ in range(-(-length // TOKENS))] for length in lengths]
    layer, blocks = place(sequences, tables), attention(attend)
    plan = blocks.plan_batch(tables, lengths)
    out, shares = blocks.batch(q, layer.keys, layer.values, plan, SCALE)
    for row, (k, v) in enumerate(sequences):
        expected, weights = dense(q[row], k, v, lengths[row] - 1)
        torch.testing.assert_close(out[row].double(), expected, atol=2e-6, rtol=2e-6)
        if shares is not None:
            num_parts = plan.num_parts[row]
            mass = by_block(weights, num_parts)[..., 0]
            torch.testing.assert_close(shares[row, :num_parts, :, :GROUP].double(), mass, atol=2e-6, rtol=0)
    assert (shares is None) == (max(lengths) <= TOKENS)


def chunk_of(table: list[int], num_tokens: int) -> torch.Tensor:
    k, v = sequence(10 * TOKENS + num_tokens, seed=1)
    q = torch.randn(1, KV_HEADS * GROUP, num_tokens, DIM, generator=torch.Generator().manual_seed(2))
    layer, blocks = place([(k, v)], [table]), attention()
    out, _ = blocks.chunk(q, layer.keys, layer.values, blocks.plan_chunk(table[:10], table[10], num_tokens), SCALE)
    return out


@pytest.mark.parametrize("where", TABLES)
@pytest.mark.parametrize("num_tokens", [16, 7, 1])
def test_placement_changes_no_bit_of_a_chunk(where: str, num_tokens: int) -> None:
    assert torch.equal(chunk_of(TABLES[where], num_tokens), chunk_of(TABLES["side by side"], num_tokens))


def batch_of(tables: list[list[int]], lengths: list[int], blocks: BlockAttention) -> torch.Tensor:
    layer = place([sequence(length, seed=row) for row, length in enumerate(lengths)], tables)
    q = torch.randn(len(lengths), KV_HEADS * GROUP, 1, DIM, generator=torch.Generator().manual_seed(2))
    out, _ = blocks.batch(q, layer.keys, layer.values, blocks.plan_batch(tables, lengths), SCALE)
    return out


@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_placement_changes_no_bit_of_a_batch(seed: int, independent: bool) -> None:
    lengths = [170, 35, 16, 70]
    counts = [-(-length // TOKENS) for length in lengths]
    starts = np.cumsum([0, *counts])
    tidy = [list(range(start, start + count)) for start, count in zip(starts, counts, strict=False)]
    shuffled = np.random.default_rng(seed).permutation(NUM_BLOCKS).tolist()
    mixed = [[shuffled[block] for block in table] for table in tidy]
    blocks = attention()
    if not independent:
        blocks._rows = None  # as where no number of rows is independent: calls are cut by sequence and group
    assert torch.equal(batch_of(mixed, lengths, blocks), batch_of(tidy, lengths, blocks))


def test_swapped_blocks_change_the_result() -> None:
    table = TABLES["side by side"]
    k, v = sequence(170, seed=0)
    layer = place([(k, v)], [table])
    blocks = attention()
    q = torch.randn(1, KV_HEADS * GROUP, 1, DIM, generator=torch.Generator().manual_seed(2))
    swapped = layer.keys.clone()
    swapped[[2, 3]] = swapped[[3, 2]]
    plan = blocks.plan_batch([table], [170])
    right, _ = blocks.batch(q, layer.keys, layer.values, plan, SCALE)
    wrong, _ = blocks.batch(q, swapped, layer.values, plan, SCALE)
    assert not torch.allclose(right, wrong, atol=1e-3)

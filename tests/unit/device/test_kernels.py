"""The operator under the attention: torch's own against plain matrix products, and its bits in any batch of blocks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hifc_ray.device.kernels import attend_for, flash_cpu_attention, matmul_attention, rows_for_independence

CPU = torch.device("cpu")


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("causal", [False, True])
def test_both_kernels_agree_with_a_float64_softmax(dtype: torch.dtype, tolerance: float, causal: bool) -> None:
    q = random(3, 6, 20, 16, dtype=dtype, seed=1)
    k, v = random(3, 2, 20, 16, dtype=dtype, seed=2), random(3, 2, 20, 16, dtype=dtype, seed=3)
    scores = torch.einsum("bhgqd,bhkd->bhgqk", q.double().view(3, 2, 3, 20, 16), k.double()) * 0.3
    if causal:
        scores = scores.masked_fill(torch.ones(20, 20, dtype=torch.bool).triu(1), float("-inf"))
    expected = torch.einsum("bhgqk,bhkd->bhgqd", scores.softmax(-1), v.double()).reshape(3, 6, 20, 16)
    for attend in (flash_cpu_attention, matmul_attention):
        out, lse = attend(q, k, v, 0.3, causal)
        assert out.dtype is dtype
        assert lse.dtype is torch.float32
        torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(lse.double(), scores.logsumexp(-1).view(3, 6, 20), atol=tolerance, rtol=tolerance)


def test_the_kernel_follows_the_device() -> None:
    assert attend_for(CPU, torch.float32) is flash_cpu_attention
    assert attend_for(CPU, torch.float64) is matmul_attention
    assert attend_for(torch.device("cuda"), torch.float32) is matmul_attention


@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (1, 7), (2, 2), (3, 3), (8, 4)])
def test_with_enough_rows_a_block_has_the_same_bits_in_any_batch(threads: int, kv_heads: int, group: int) -> None:
    rows = rows_for_independence(flash_cpu_attention, kv_heads, group, 64, 256, torch.float32, CPU)
    assert rows is not None, f"no number of rows from {group} on is independent at {threads} threads"
    assert rows >= group
    q = random(1, kv_heads, rows, 64, seed=5).expand(7, -1, -1, -1)
    k, v = random(7, kv_heads, 256, 64, seed=6), random(7, kv_heads, 256, 64, seed=7)
    together, lses = flash_cpu_attention(q, k, v, 0.125, False)
    for block in range(7):
        alone = slice(block, block + 1)
        out, lse = flash_cpu_attention(q[alone], k[alone], v[alone], 0.125, False)
        assert torch.equal(out, together[alone])
        assert torch.equal(lse, lses[alone])


def test_a_kernel_whose_bits_depend_on_the_batch_is_found_out() -> None:
    def depends(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = flash_cpu_attention(q, k, v, scale, causal)
        return out + 1e-6 * len(q), lse

    assert rows_for_independence(depends, 2, 3, 16, 16, torch.float32, CPU) is None

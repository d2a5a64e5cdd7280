"""Attention of queries over one set of keys per batch row, with its log-sum-exp: the operator under `attention.py`.

The CPU operator of torch is private, so it is called in this file only; `matmul_attention` serves everything else.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float, bool], tuple[torch.Tensor, torch.Tensor]]
"""(q [B, H, Q, D], k and v [B, KVH, K, D], scale, causal) -> (out [B, H, Q, D], lse [B, H, Q] float32).

H is a multiple of KVH; `causal` needs Q = K. Every query sees at least one key.
"""

_CPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def attend_for(device: torch.device, dtype: torch.dtype) -> Attend:
    """The kernel for a device: torch's flash attention on CPU, plain matrix products where that does not serve."""
    return flash_cpu_attention if device.type == "cpu" and dtype in _CPU_DTYPES else matmul_attention


def flash_cpu_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """`Attend` by torch's CPU flash attention; lse comes in a transposed memory order."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return out, lse


def matmul_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """`Attend` by matrix products, with a float32 softmax."""
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    grouped = q.reshape(batch, kv_heads, heads // kv_heads, queries, dim)
    scores = torch.einsum("bhgqd,bhkd->bhgqk", grouped, k).float() * scale
    if causal:
        hidden = torch.ones(queries, keys, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    lse = scores.logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1)).exp().to(v.dtype)
    out = torch.einsum("bhgqk,bhkd->bhgqd", weights, v)
    return out.reshape(batch, heads, queries, dim), lse.reshape(batch, heads, queries)


def rows_for_independence(
    attend: Attend, kv_heads: int, group: int, head_dim: int, tokens: int, dtype: torch.dtype, device: torch.device
) -> int | None:
    """The fewest query rows (`group` or more) with which a block's result has the same bits in any batch of blocks.

    The CPU operator gives each thread a scratch buffer whose alignment follows from the number of rows, and the bits of
    its matrix products follow from the alignment; so with 3 rows they depend on which thread got the block, with 4 they
    do not. Tried with random blocks, since it depends on the processor. None: no number of rows helps.
    """
    for unit in (4, 8, 16):
        rows = -(-group // unit) * unit
        if _is_independent(attend, kv_heads, rows, head_dim, tokens, dtype, device):
            return rows
    return None


def _is_independent(
    attend: Attend, kv_heads: int, rows: int, head_dim: int, tokens: int, dtype: torch.dtype, device: torch.device
) -> bool:
    generator = torch.Generator().manual_seed(rows)
    blocks = 8

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device=device, dtype=dtype)

    q, k, v = random(blocks, kv_heads, rows, head_dim), *(random(blocks, kv_heads, tokens, head_dim) for _ in "kv")
    out, lse = attend(q, k, v, head_dim**-0.5, False)
    for count in range(1, blocks):
        for start in (0, blocks - count):
            part = slice(start, start + count)
            part_out, part_lse = attend(q[part], k[part], v[part], head_dim**-0.5, False)
            if not (torch.equal(part_out, out[part]) and torch.equal(part_lse, lse[part])):
                return False
    return True

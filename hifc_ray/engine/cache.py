"""The transformers side of the block pool: a `Cache` that writes into blocks, an attention function that reads them.

A model calls `Cache.update` in each layer and hands what it returns to the attention function as key and value: here
that is the cache itself, so keys and values are never gathered.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from hifc_ray.device.attention import BatchPlan, BlockAttention, ChunkPlan
from hifc_ray.device.pool import BlockPool

ATTENTION_NAME = "hifc_blocks"


class PoolCache(Cache):
    """The KV cache of one engine. Each forward is preceded by `begin_chunk` or `begin_batch`."""

    is_compileable = False

    def __init__(self, pool: BlockPool, attention: BlockAttention) -> None:
        self.layers: list[Any] = []  # of transformers' own storage; there is none
        self._keys = [layer[:, 0] for layer in pool.layers]
        self._values = [layer[:, 1] for layer in pool.layers]
        self._by_token = [layer.permute(0, 3, 1, 2, 4) for layer in pool.layers]  # [blocks, tokens, 2, heads, D]
        self._attention = attention
        self._plan: ChunkPlan | BatchPlan | None = None
        self._past_tokens = 0
        self._written: tuple[torch.Tensor, torch.Tensor] | None = None
        self.shares: torch.Tensor | None = None  # softmax shares of the parts, summed over layers

    def begin_chunk(self, plan: ChunkPlan, past_tokens: int) -> None:
        """The next forward is this chunk."""
        self._plan, self._past_tokens, self.shares = plan, past_tokens, None

    def begin_batch(self, plan: BatchPlan, past_tokens: int) -> None:
        """The next forward is one token of each sequence of the plan, written at the end of its tail."""
        self._plan, self._past_tokens, self.shares = plan, past_tokens, None
        device = self._keys[0].device
        blocks = torch.tensor([block for block, _ in plan.tails], device=device)
        offsets = torch.tensor([visible - 1 for _, visible in plan.tails], device=device)
        self._written = blocks, offsets

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Write a layer's new keys and values into their blocks."""
        plan = self._plan
        assert plan is not None
        if isinstance(plan, ChunkPlan):
            self._keys[layer_idx][plan.current, :, : plan.num_tokens] = key_states[0]
            self._values[layer_idx][plan.current, :, : plan.num_tokens] = value_states[0]
        elif len(plan.tails) == 1:
            block, visible = plan.tails[0]
            self._keys[layer_idx][block, :, visible - 1] = key_states[0, :, 0]
            self._values[layer_idx][block, :, visible - 1] = value_states[0, :, 0]
        else:
            self._by_token[layer_idx][self._written] = torch.stack((key_states[:, :, 0], value_states[:, :, 0]), dim=1)
        return self, self

    def attend(self, query: torch.Tensor, layer: int, scale: float, mask: Any, options: dict[str, Any]) -> torch.Tensor:
        """query [B, heads, tokens, D] over the blocks of the plan -> [B, tokens, heads, D].

        What else the model passes on was looked at when it was loaded (`refusals.probe`).
        """
        keys, values = self._keys[layer], self._values[layer]
        if isinstance(self._plan, ChunkPlan):
            out, shares = self._attention.chunk(query, keys, values, self._plan, scale)
        else:
            assert self._plan is not None
            out, shares = self._attention.batch(query, keys, values, self._plan, scale)
        if shares is not None:
            self.shares = shares if self.shares is None else self.shares.add_(shares)
        return out

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._past_tokens

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self._past_tokens + query_length, 0


def attend_blocks(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function under `ATTENTION_NAME`; `key` is the `PoolCache` (or the probe) of this forward."""
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return key.attend(query, module.layer_idx, scale, attention_mask, kwargs), None


AttentionInterface.register(ATTENTION_NAME, attend_blocks)

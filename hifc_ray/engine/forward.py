"""One forward of the model over the pool: a chunk of one prompt, or one token of each sequence of a batch."""

from __future__ import annotations

import numpy as np
import torch

from hifc_ray.device.attention import BatchPlan, BlockAttention
from hifc_ray.device.pool import BlockPool
from hifc_ray.engine.cache import PoolCache
from hifc_ray.engine.models import LoadedModel
from hifc_ray.engine.sequence import Sequence
from hifc_ray.types import AnyArray


class Forward:
    """Runs the model, and notes in each sequence what attention its blocks got."""

    def __init__(self, loaded: LoadedModel, pool: BlockPool, attention: BlockAttention) -> None:
        self._model = loaded.model
        self._body = loaded.model.base_model  # without the LM head
        self._device = loaded.device
        self._layers = loaded.layout.layers
        self._kv_heads = loaded.layout.kv_heads
        self._group = loaded.query_heads // loaded.layout.kv_heads
        self._block_tokens = loaded.layout.block_tokens
        self._attention = attention
        self._cache = PoolCache(pool, attention)

    @torch.inference_mode()
    def chunk(self, sequence: Sequence, block: int) -> torch.Tensor | None:
        """Compute a block of the prompt; the last one gives the logits of its last token [1, vocab], others None."""
        start = block * self._block_tokens
        end = min(start + self._block_tokens, sequence.num_prompt_tokens)
        plan = self._attention.plan_chunk(sequence.table[:block], sequence.table[block], end - start)
        self._cache.begin_chunk(plan, start)
        tokens = torch.tensor([sequence.tokens[start:end]], device=self._device)
        positions = torch.arange(start, end, device=self._device).unsqueeze(0)
        logits = None
        if end == sequence.num_prompt_tokens:
            logits = self._run(self._model, tokens, positions, logits_to_keep=1).logits[:, -1]
        else:
            self._run(self._body, tokens, positions)
        self._note_chunk(sequence, block, start, end)
        return logits

    @torch.inference_mode()
    def batch(self, sequences: list[Sequence]) -> torch.Tensor:
        """Compute the newest token of each sequence; logits [S, vocab]."""
        lengths = [len(sequence.tokens) for sequence in sequences]
        plan = self._attention.plan_batch([sequence.table for sequence in sequences], lengths)
        self._cache.begin_batch(plan, max(lengths) - 1)
        tokens = torch.tensor([[sequence.tokens[-1]] for sequence in sequences], device=self._device)
        positions = torch.tensor([[length - 1] for length in lengths], device=self._device)
        logits = self._run(self._model, tokens, positions, logits_to_keep=1).logits[:, -1]
        self._note_batch(sequences, plan, lengths)
        return logits

    def _run(
        self, module: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor, **kwargs: int
    ) -> torch.Tensor:
        return module(input_ids=tokens, position_ids=positions, cache=self._cache, use_cache=True, **kwargs)

    def _note_chunk(self, sequence: Sequence, block: int, start: int, end: int) -> None:
        """Mass of each block ÷ (its visible tokens ÷ tokens visible), summed over the chunk's queries."""
        num_queries = end - start
        visible = np.arange(start, end) + 1.0
        own = np.arange(num_queries) + 1.0
        if self._cache.shares is None:
            ratios = np.ones((1, num_queries))
        else:
            shares = self._cache.shares.view(block + 1, -1, num_queries).mean(dim=1) / self._layers
            ratios = shares.cpu().numpy() * visible
            ratios[:block] /= self._block_tokens
            ratios[block] /= own
        sequence.attention_sum[: block + 1] += ratios.sum(axis=1)
        sequence.attention_queries[: block + 1] += num_queries

    def _note_batch(self, sequences: list[Sequence], plan: BatchPlan, lengths: list[int]) -> None:
        shares: AnyArray | None = None
        if self._cache.shares is not None:
            whole = self._cache.shares.view(len(sequences), max(plan.num_parts), self._kv_heads, -1)
            shares = (whole[..., : self._group].mean(dim=(2, 3)) / self._layers).cpu().numpy()
        for row, (sequence, length, parts) in enumerate(zip(sequences, lengths, plan.num_parts, strict=True)):
            tokens = np.full(parts, float(self._block_tokens))
            tokens[-1] = plan.tails[row][1]
            own = shares[row, :parts] if shares is not None else np.ones(1)
            sequence.attention_sum[:parts] += own * length / tokens
            sequence.attention_queries[:parts] += 1

"""Block-streamed exact attention over a pool of blocks: partial attention per block, then one merge by position.

Each full block is a row of an operator call's batch, so that it keeps its own log-sum-exp, hence its share of the
softmax mass. Where blocks lie changes no bit of the result: prefill cuts its calls by position in the sequence and
copies blocks side by side where they are not evenly spaced; decode calls the operator on whatever runs of evenly
spaced blocks there are, if a block's bits are the same in any batch (`rows_for_independence`), or else does as prefill.

Shapes: S sequences, T tokens of a chunk, N full blocks, P parts of a sequence, G query heads per kv head, R >= G rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from hifc_ray.device.kernels import Attend, rows_for_independence
from hifc_ray.device.placement import even_runs
from hifc_ray.layout import BlockLayout

Blocks: TypeAlias = slice | torch.Tensor  # an evenly spaced run, or indices


@dataclass(frozen=True)
class Segment:
    """Full blocks of one operator call."""

    blocks: Blocks
    count: int


@dataclass(frozen=True)
class ChunkPlan:
    """One sequence's prefill chunk of `num_tokens` at the start of block `current`, after the full blocks of `past`."""

    past: tuple[Segment, ...]
    num_past: int
    current: int
    num_tokens: int


@dataclass(frozen=True)
class BatchPlan:
    """One token of each of S sequences. The last part of a sequence is its current block, which may be part full."""

    full: tuple[Segment, ...]
    owner: torch.Tensor  # [N] row of the sequence of each full block
    tails: tuple[tuple[int, int], ...]  # S of (block, tokens visible)
    parts: torch.Tensor | None  # [S, P] rows of (full blocks, then tails) in order of position; None: one part each
    absent: torch.Tensor | None  # [S, P, 1, 1] True where a sequence has fewer parts; None: all have P
    num_parts: tuple[int, ...]  # S

    @property
    def num_full(self) -> int:
        return len(self.owner)


class BlockAttention:
    """The attention of one model: its heads, its kernel and one staging buffer. Used by one thread."""

    def __init__(
        self,
        layout: BlockLayout,
        query_heads: int,
        group_blocks: int,
        attend: Attend,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layout = layout
        self.group_blocks = group_blocks
        self.query_group = query_heads // layout.kv_heads
        self._attend = attend
        self._device = device
        shape = (group_blocks, layout.kv_heads, layout.block_tokens, layout.head_dim)
        self._staging = [torch.zeros(shape, dtype=dtype, device=device) for _ in "kv"]
        self._rows = rows_for_independence(
            attend, layout.kv_heads, self.query_group, layout.head_dim, layout.block_tokens, dtype, device
        )

    def plan_chunk(self, past: Sequence[int], current: int, num_tokens: int) -> ChunkPlan:
        """The calls of a prefill chunk that follows the full blocks `past`."""
        return ChunkPlan(tuple(self._groups(past)), len(past), current, num_tokens)

    def plan_batch(self, tables: Sequence[Sequence[int]], lengths: Sequence[int]) -> BatchPlan:
        """The calls of a decode step: each sequence's blocks, and its tokens visible now, the newest one included."""
        tokens = self.layout.block_tokens
        full = [list(table[: (length - 1) // tokens]) for table, length in zip(tables, lengths, strict=True)]
        owner = [row for row, blocks in enumerate(full) for _ in blocks]
        if self._rows is None:
            segments = [segment for blocks in full for segment in self._groups(blocks)]
        else:
            runs = even_runs([block for blocks in full for block in blocks])
            segments = [Segment(_as_slice(run), len(run)) for run in runs]
        tails = tuple(
            (table[len(blocks)], length - len(blocks) * tokens)
            for table, blocks, length in zip(tables, full, lengths, strict=True)
        )
        num_parts = tuple(len(blocks) + 1 for blocks in full)
        parts, absent = self._parts(num_parts)
        return BatchPlan(tuple(segments), self._indices(owner), tails, parts, absent, num_parts)

    def chunk(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: ChunkPlan, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """q [1, heads, T, D] over a layer's keys and values [blocks, kv_heads, tokens, D], the chunk's own written.

        Returns out [1, T, heads, D] and the share of each part in each query's softmax [P, kv_heads, G * T], the
        current block last; None where there is but one part.
        """
        _, heads, num_tokens, dim = q.shape
        kv_heads = self.layout.kv_heads
        current = slice(plan.current, plan.current + 1)
        own_k, own_v = keys[current, :, :num_tokens], values[current, :, :num_tokens]
        out, lse = self._attend(q, own_k, own_v, scale, True)
        if not plan.num_past:
            return out.transpose(1, 2), None
        folded = q.reshape(1, kv_heads, self.query_group * num_tokens, dim)
        outs, lses = [], []
        for segment in plan.past:
            k, v = self._gather(keys, segment, 0), self._gather(values, segment, 1)
            part_out, part_lse = self._attend(folded.expand(segment.count, -1, -1, -1), k, v, scale, False)
            outs.append(part_out)
            lses.append(part_lse)
        outs.append(out.reshape(folded.shape))
        lses.append(lse.reshape(folded.shape[:3]))
        shares = torch.softmax(torch.cat(lses), dim=0)
        merged = _weighted_sum(outs, shares)
        return merged.view(1, heads, num_tokens, dim).transpose(1, 2), shares

    def batch(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: BatchPlan, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """q [S, heads, 1, D] over one layer's keys and values, the new tokens' written already.

        Returns out [S, 1, heads, D] and the share of each part [S, P, kv_heads, R], rows beyond G meaningless; None
        where each sequence has but one part.
        """
        num_sequences, heads, _, dim = q.shape
        rows = self._padded(q.view(num_sequences, self.layout.kv_heads, self.query_group, dim))
        outs, lses = [], []
        if plan.full:
            alone = num_sequences == 1
            spread = rows.expand(plan.num_full, -1, -1, -1) if alone else rows.index_select(0, plan.owner)
            start = 0
            for segment in plan.full:
                k, v = self._gather(keys, segment, 0), self._gather(values, segment, 1)
                out, lse = self._attend(spread[start : start + segment.count], k, v, scale, False)
                outs.append(out)
                lses.append(lse)
                start += segment.count
        for row, (block, visible) in enumerate(plan.tails):
            k, v = keys[block : block + 1, :, :visible], values[block : block + 1, :, :visible]
            out, lse = self._attend(rows[row : row + 1], k, v, scale, False)
            outs.append(out)
            lses.append(lse)
        merged, shares = _merge(outs, lses, plan)
        return merged[:, :, : self.query_group].reshape(num_sequences, 1, heads, dim), shares

    def _padded(self, q: torch.Tensor) -> torch.Tensor:
        rows = self._rows or self.query_group
        return q if rows == self.query_group else torch.nn.functional.pad(q, (0, 0, 0, rows - self.query_group))

    def _groups(self, past: Sequence[int]) -> list[Segment]:
        segments = []
        for start in range(0, len(past), self.group_blocks):
            group = list(past[start : start + self.group_blocks])
            runs = even_runs(group)
            blocks = _as_slice(runs[0]) if len(runs) == 1 else self._indices(group)
            segments.append(Segment(blocks, len(group)))
        return segments

    def _gather(self, tensor: torch.Tensor, segment: Segment, which: int) -> torch.Tensor:
        """[count, kv_heads, tokens, D]: a view, or a copy in the staging buffer."""
        if isinstance(segment.blocks, slice):
            return tensor[segment.blocks]
        return torch.index_select(tensor, 0, segment.blocks, out=self._staging[which][: segment.count])

    def _indices(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _parts(self, num_parts: tuple[int, ...]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        most = max(num_parts)
        if most == 1:
            return None, None
        num_full = sum(num_parts) - len(num_parts)
        table, absent, start = [], [], 0
        for row, count in enumerate(num_parts):
            own = [*range(start, start + count - 1), num_full + row]
            start += count - 1
            table.append(own + [0] * (most - count))
            absent.append([False] * count + [True] * (most - count))
        hidden = torch.tensor(absent, device=self._device).view(len(num_parts), most, 1, 1)
        return self._indices(table), hidden if min(num_parts) < most else None  # type: ignore[arg-type]


def _merge(
    outs: list[torch.Tensor], lses: list[torch.Tensor], plan: BatchPlan
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """[S, kv_heads, R, D] and shares [S, P, kv_heads, R] of all sequences at once."""
    out = torch.cat(outs)
    if plan.parts is None:
        return out, None
    if len(plan.num_parts) == 1:
        shares = torch.softmax(torch.cat(lses), dim=0)
        return (out.float() * shares.unsqueeze(-1)).sum(dim=0, keepdim=True).to(out.dtype), shares.unsqueeze(0)
    lse = torch.cat(lses)[plan.parts]
    if plan.absent is not None:
        lse = lse.masked_fill(plan.absent, float("-inf"))
    shares = torch.softmax(lse, dim=1)
    return (out[plan.parts].float() * shares.unsqueeze(-1)).sum(dim=1).to(out.dtype), shares


def _weighted_sum(outs: list[torch.Tensor], shares: torch.Tensor) -> torch.Tensor:
    """Sum of all parts [rows, kv_heads, Q, D] by their shares [P, kv_heads, Q], one after the other."""
    total: torch.Tensor | None = None
    part = 0
    for out in outs:
        for row in out:
            share = shares[part].unsqueeze(-1)
            total = row.float() * share if total is None else total.addcmul_(row.float(), share)
            part += 1
    assert total is not None
    return total.to(outs[0].dtype)


def _as_slice(run: range) -> slice:
    return slice(run.start, run.stop, run.step)

"""The state of one request: its tokens, its blocks and their keys, and the result that it becomes. No torch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from hifc_ray import keys
from hifc_ray.client import Missed
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.messages import Purge
from hifc_ray.types import NOBODY, FloatArray, Key, Namespace, Owner

OnToken = Callable[[int, int], None]  # (request number, token)


class Status(Enum):
    """Where a request is. Any of them may be cancelled."""

    WAITING = "waiting"  # in the queue; holds nothing
    LOADING = "loading"  # holds its blocks; some are on their way from the tiers
    PREFILL = "prefill"  # its prompt is being computed, chunk by chunk
    RUNNING = "running"  # decodes
    FINISHED = "finished"


@dataclass
class Result:
    """What a request has become."""

    tokens: list[int]
    text: str
    finish_reason: str  # stop, length, cancelled
    num_prompt_tokens: int
    ttft_s: float | None  # from submission to the first token
    blocks: dict[str, int]  # full blocks that were looked up, by where they came from: gpu, host, flash, ..., computed
    loaded_bytes: dict[str, int]  # by tier
    loaded_s: dict[str, float]  # by tier: from asking until the last of its blocks was in the pool
    missed: Missed | None  # the first block that no tier could serve, and why
    min_margin: float  # smallest lead of a greedy token over the second best; inf if none was greedy
    logits: list[FloatArray] = field(repr=False)  # of each step [vocab], if asked for
    attention: FloatArray = field(
        repr=False
    )  # [blocks] attention weight; NaN where no query of this request saw the block


class Sequence:
    """One request inside the engine. The engine's thread owns it."""

    def __init__(
        self,
        number: int,
        prompt: list[int],
        params: SamplingParams,
        stop_tokens: frozenset[int],
        block_tokens: int,
        on_token: OnToken | None = None,
        owner: Owner = NOBODY,
    ) -> None:
        self.number = number
        self.params = params
        self.tokens = list(prompt)
        self.num_prompt_tokens = len(prompt)
        self.block_tokens = block_tokens
        self.stop_tokens = stop_tokens
        self.on_token = on_token
        self.owner = owner
        self.purged = False  # what it has computed or will compute is to be forgotten: it asks for and shares nothing
        self.status = Status.WAITING
        self.cancelled = False
        self.generator = np.random.default_rng(params.seed)
        self.keys: list[Key] = []
        self.namespace: Namespace | None = None  # None: neither looked up nor shared
        self.table: list[int] = []
        self.ready = np.zeros(self.num_blocks, np.bool_)  # full prompt blocks whose bytes are in the pool
        self.prefilled_from = 0  # first block computed by decode steps, in part at least
        self.submitted_s = time.perf_counter()
        self.first_token_s: float | None = None
        self.sources: Counter[str] = Counter()
        self.loaded_bytes: Counter[str] = Counter()
        self.loaded_s: dict[str, float] = {}
        self.missed: Missed | None = None
        self.min_margin = float("inf")
        self.logits: list[FloatArray] = []
        self.finish_reason = ""
        self.attention_sum = np.zeros(self.num_blocks, np.float64)
        self.attention_queries = np.zeros(self.num_blocks, np.int64)

    @property
    def num_blocks(self) -> int:
        """Blocks for the prompt and all that it may generate; the last token is never written."""
        return -(-(self.num_prompt_tokens + self.params.max_new_tokens - 1) // self.block_tokens)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_lookups(self) -> int:
        """Full prompt blocks that may come from a cache: at least one token is left to compute."""
        return (self.num_prompt_tokens - 1) // self.block_tokens

    @property
    def next_chunk(self) -> int | None:
        """The block of the prompt to compute next; None when the prompt is done."""
        for block in range(-(-self.num_prompt_tokens // self.block_tokens)):
            if not self.ready[block]:
                return block
        return None

    def open(self, namespace: Namespace | None) -> None:
        """Take the keys of the prompt's full blocks, in the namespace of this moment."""
        self.namespace = namespace = None if self.purged else namespace
        self.keys = [] if namespace is None else keys.chain(namespace, self.tokens, self.block_tokens)

    def purge(self, what: Purge, namespace: Namespace) -> None:
        """If this is of what is purged, ask for and share nothing from now on; `namespace` is that of this moment."""
        if what.covers(self.namespace or namespace, self.owner):
            self.purged, self.namespace = True, None

    def key_of(self, block: int) -> Key:
        """The key of a full block, prompt or generated; keys are chained as blocks fill."""
        assert self.namespace is not None
        while len(self.keys) <= block:
            start = len(self.keys) * self.block_tokens
            ids = np.asarray(self.tokens[start : start + self.block_tokens], dtype="<u4")
            self.keys.append(Key(keys.extend(self.keys[-1] if self.keys else self.namespace, ids.tobytes())))
        return self.keys[block]

    def accept(self, token: int, margin: float) -> None:
        """Append a generated token and see whether it is the last."""
        if self.first_token_s is None:
            self.first_token_s = time.perf_counter()
        self.tokens.append(token)
        self.min_margin = min(self.min_margin, margin)
        if token in self.stop_tokens:
            self.finish_reason = "stop"
        elif self.num_generated >= self.params.max_new_tokens:
            self.finish_reason = "length"
        if self.on_token is not None:
            self.on_token(self.number, token)

    def attention_of(self, block: int) -> float:
        """The block's attention weight so far; NaN if no query of this request has seen it."""
        queries = self.attention_queries[block]
        return float(self.attention_sum[block] / queries) if queries else float("nan")

    def result(self, text: str) -> Result:
        """The result of a finished request."""
        first = self.first_token_s
        return Result(
            tokens=self.tokens[self.num_prompt_tokens :],
            text=text,
            finish_reason=self.finish_reason,
            num_prompt_tokens=self.num_prompt_tokens,
            ttft_s=None if first is None else first - self.submitted_s,
            blocks=dict(self.sources),
            loaded_bytes=dict(self.loaded_bytes),
            loaded_s=dict(self.loaded_s),
            missed=self.missed,
            min_margin=self.min_margin,
            logits=self.logits,
            attention=np.array([self.attention_of(block) for block in range(self.num_blocks)], np.float32),
        )

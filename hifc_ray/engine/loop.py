"""The engine: requests in, tokens out, over a pool of blocks that outlive their requests."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Prompts
from types import TracebackType
from typing import Any

import torch

from hifc_ray.client import TierClient
from hifc_ray.config import EngineConfig
from hifc_ray.device.attention import BlockAttention
from hifc_ray.device.copies import Copies, copies_for
from hifc_ray.device.kernels import attend_for
from hifc_ray.device.pool import BlockPool
from hifc_ray.engine.forward import Forward
from hifc_ray.engine.loading import Load, Loader
from hifc_ray.engine.models import LoadedModel, adopt_model, digest, load_model
from hifc_ray.engine.prompts import Prompt, checked
from hifc_ray.engine.sampling import SamplingParams, greedy, sample
from hifc_ray.engine.scheduler import Scheduler
from hifc_ray.engine.sequence import OnToken, Result, Sequence, Status
from hifc_ray.engine.storing import Storer, filled_block
from hifc_ray.engine.text import TextStream
from hifc_ray.engine.weights import Progress
from hifc_ray.keys import session_tag, tenant_tag
from hifc_ray.messages import Purge
from hifc_ray.stats import Stats
from hifc_ray.types import Owner, Tier

_REST_S = 0.002  # how long a step waits when all that is left to do is waiting
_CLOSE_DEADLINE_S = 10.0  # for stores under way when the engine closes


class Engine:
    """Generates with one model on one device; keeps full blocks in the pool and, given a client, in its tiers.

    Safe from any thread; whoever calls `step` is the engine's thread for that step, and runs `on_token`.
    Raises `ConfigError`, `ModelRefused`.
    """

    def __init__(
        self,
        config: EngineConfig,
        client: TierClient | None = None,
        *,
        model: Any = None,
        tokenizer: Any = None,
        copies: Copies | None = None,
        progress: Progress | None = None,
    ) -> None:
        if config.threads:
            torch.set_num_threads(config.threads)
        self.config = config
        self.stats = Stats()
        self.loaded: LoadedModel = (
            load_model(config, progress) if model is None else adopt_model(model, tokenizer, config)
        )
        self.tokenizer = self.loaded.tokenizer
        self.layout = self.loaded.layout
        self.pool = BlockPool(self.layout, config.gpu_bytes, self.loaded.device)
        attention = BlockAttention(
            self.layout,
            self.loaded.query_heads,
            config.group_blocks,
            attend_for(self.loaded.device, self.loaded.dtype),
            self.loaded.dtype,
            self.loaded.device,
        )
        self._forward = Forward(self.loaded, self.pool, attention)
        self.copies = copies_for(self.pool) if copies is None else copies
        self._client = client
        self._loader = Loader(client, self.copies, self.pool, config, self.stats) if client is not None else None
        self._storer = Storer(client, self.copies, self.layout, config, self.stats) if client is not None else None
        self._scheduler = Scheduler(config.max_batch, config.max_waiting, config.hold_decode)
        self._loads: dict[int, Load] = {}
        self._results: dict[int, Result] = {}
        self._step_lock = threading.RLock()
        self._number_lock = threading.Lock()
        self._last_number = 0
        self.namespace = digest(self.loaded, config)

    def step(self) -> bool:
        """Do the next piece of work: a chunk of a prompt, or a token of each running sequence. False: nothing to do."""
        with self._step_lock:
            if not self._scheduler.has_work:
                self._collect()
                return False
            try:
                self._collect()
                self._drop_cancelled()
                self._admit()
                self._advance_loads()
                if sequence := self._scheduler.next_prefill():
                    self._prefill(sequence)
                elif batch := self._scheduler.decode_batch():
                    self._decode(batch)
                else:
                    self._rest()
            except BaseException:
                self._fail_all()
                raise
            return True

    def submit(self, prompt: Prompt, params: SamplingParams | None = None, on_token: OnToken | None = None) -> int:
        """Queue one prompt (text or token ids); returns its number. Raises `RequestRefused` if it can never run."""
        params = params or SamplingParams()
        tokens = checked(prompt, params, self.loaded, self.pool)
        stop = frozenset(params.stop_tokens) | (frozenset() if params.ignore_eos else self.loaded.stop_tokens)
        with self._number_lock:
            self._last_number += 1
            number = self._last_number
        owner = Owner(tenant_tag(self.config.tenant_salt), session_tag(params.session))
        self._scheduler.enqueue(Sequence(number, tokens, params, stop, self.layout.block_tokens, on_token, owner))
        return number

    def result(self, number: int) -> Result | None:
        """The result of a finished request, handed out once; None while it is not finished."""
        return self._results.pop(number, None)

    def cancel(self, number: int) -> None:
        """Stop a request; what it holds is given back at the next step, and its result says `cancelled`."""
        self._scheduler.cancel(number)

    def generate(
        self,
        prompts: Prompts[Prompt],
        params: SamplingParams | Prompts[SamplingParams] | None = None,
        on_token: OnToken | None = None,
    ) -> list[Result]:
        """Answer all prompts, in their order. `on_token` gets (index of the prompt, token) as tokens come."""
        each: list[SamplingParams]
        if params is None or isinstance(params, SamplingParams):
            each = [params or SamplingParams()] * len(prompts)
        else:
            each = list(params)
        for prompt, own in zip(prompts, each, strict=True):
            checked(prompt, own, self.loaded, self.pool)
        index_of: dict[int, int] = {}
        results: dict[int, Result] = {}

        def tell(number: int, token: int) -> None:
            if on_token is not None:
                on_token(index_of[number], token)

        todo = deque(enumerate(prompts))
        while len(results) < len(prompts):
            while todo and self._scheduler.has_room:
                index, prompt = todo.popleft()
                with self._step_lock:  # no token comes before its number is known
                    index_of[self.submit(prompt, each[index], tell)] = index
            self.step()
            for number, index in index_of.items():
                if index not in results and (result := self.result(number)) is not None:
                    results[index] = result
        return [results[index] for index in range(len(prompts))]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[tuple[int, str]]:
        """Tokens of one prompt as they come, each with the text that it completes. Leaving the loop cancels it."""
        tokens: deque[int] = deque()
        text = TextStream(self.tokenizer)
        number = self.submit(prompt, params, lambda _, token: tokens.append(token))
        try:
            result = None
            while result is None:
                self.step()
                result = self.result(number)
                while tokens:
                    token = tokens.popleft()
                    yield token, text.push(token)
        finally:
            if result is None:
                self.cancel(number)
                self.step()
                self.result(number)

    def weights_changed(self) -> None:
        """The parameters are others now: what is cached under the old ones is not found any more.

        Requests that were admitted before go on with the blocks they have, and ask for and share no more.
        """
        with self._step_lock:
            self.namespace = digest(self.loaded, self.config)
            for sequence in self._scheduler.admitted:
                sequence.namespace = None

    def purge(self, what: Purge) -> int:
        """Forget blocks in this engine; returns how many of its pool. Purge the tiers after it, with `cache.purge`.

        Requests of those that are queued or under way go on with the blocks they have, and ask for and share no more.
        """
        with self._step_lock:
            for sequence in self._scheduler.requests():
                sequence.purge(what, self.namespace)
            if self._storer is not None:
                self._storer.purge(what)
            self._collect()
            return self.pool.purge(what)

    def forget_pool(self) -> int:
        """Free the pool blocks that no request uses, so that the tiers are asked; returns how many there were."""
        with self._step_lock:
            self._collect()
            return self.pool.forget()

    def drain(self, timeout_s: float) -> bool:
        """Wait until filled blocks are stored or dropped; False if that took longer."""
        drained = self._storer is None or self._storer.drain(timeout_s)
        with self._step_lock:
            self._collect()
        return drained

    def close(self) -> None:
        """Store what has filled, stop the threads, let go of the client's slots. The client stays the caller's."""
        if self._storer is not None:
            self._storer.close(_CLOSE_DEADLINE_S)
        self.copies.close()
        with self._step_lock:
            self._collect()
        if self._client is not None:
            self._client.flush()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _collect(self) -> None:
        """Unpin blocks whose copies have returned."""
        if self._storer is not None:
            for block in self._storer.collect():
                self.pool.release([block])
        if self._loader is not None:
            self._loader.collect()

    def _drop_cancelled(self) -> None:
        for sequence in self._scheduler.cancelled():
            sequence.finish_reason = "cancelled"
            self._finish(sequence)

    def _admit(self) -> None:
        """Give blocks to as many waiting requests as there is room for, first come, first served."""
        while (sequence := self._scheduler.next_waiting()) is not None:
            sequence.open(None if sequence.params.cache == "off" else self.namespace)
            lookups = sequence.keys[: sequence.num_lookups]
            held = self.pool.holds(lookups)
            if not held.all() and self._scheduler.would_repeat(lookups[int(held.argmin())]):
                return
            shared = {index: self.pool.block_of(lookups[index]) for index in held.nonzero()[0].tolist()}
            if not self._place(sequence, shared):
                return
            self._scheduler.admit(sequence)
            if self._loader is not None and lookups:
                self._loads[sequence.number] = self._loader.start(sequence)

    def _place(self, sequence: Sequence, shared: dict[int, int]) -> bool:
        """Fill the sequence's table: blocks found in the pool, and its own for the rest. False: no room now."""
        need = sequence.num_blocks - len(shared)
        if not self._has_room(need, shared.values()):
            return False
        self.pool.take(shared.values())
        fresh = self.pool.allocate(need, after=shared.get(len(shared) - 1))
        assert fresh is not None
        own = iter(fresh)
        sequence.table = [shared[index] if index in shared else next(own) for index in range(sequence.num_blocks)]
        sequence.ready[list(shared)] = True
        if shared:
            sequence.sources["gpu"] += len(shared)
            self.stats.add("hits_blocks", len(shared), tier=Tier.GPU)
        return True

    def _has_room(self, need: int, shared: Iterable[int]) -> bool:
        if self.config.hold_decode and self._storer is not None and self.pool.num_available < need:
            # Whether there is room must not depend on how fast stores go.
            self._storer.drain(self.config.store_deadline_s)
            self._collect()
        return self.pool.num_available - self.pool.num_unreferenced(shared) >= need

    def _advance_loads(self) -> None:
        for sequence in self._scheduler.loading():
            load = self._loads.get(sequence.number)
            if load is not None and not load.advance():
                continue
            self._loads.pop(sequence.number, None)
            self._begin_prefill(sequence)

    def _begin_prefill(self, sequence: Sequence) -> None:
        sequence.status = Status.PREFILL
        saved = int(sequence.ready.sum()) * self.layout.block_tokens
        self.stats.add("saved_tokens", saved)
        self.stats.add("computed_tokens", sequence.num_prompt_tokens - saved)
        if sequence.namespace is not None:
            computed = sequence.num_lookups - int(sequence.ready.sum())
            self.stats.add("looked_up_blocks", sequence.num_lookups)
            self.stats.add("computed_blocks", computed)
            sequence.sources["computed"] += computed

    def _prefill(self, sequence: Sequence) -> None:
        """Compute the next chunk of a prompt; after the last one the first token comes."""
        block = sequence.next_chunk
        assert block is not None
        begun_s = time.monotonic()
        logits = self._forward.chunk(sequence, block)
        for load in self._loads.values():
            load.excuse(time.monotonic() - begun_s)
        sequence.ready[block] = True
        if (block + 1) * self.layout.block_tokens <= sequence.num_prompt_tokens:
            self._share(sequence, block)
        if logits is not None:
            sequence.status = Status.RUNNING
            self._accept([sequence], logits)

    def _decode(self, batch: list[Sequence]) -> None:
        """One token of each running sequence."""
        logits = self._forward.batch(batch)
        for sequence in batch:
            if self.config.cache_generated and len(sequence.tokens) % self.layout.block_tokens == 0:
                self._share(sequence, len(sequence.tokens) // self.layout.block_tokens - 1)
        self._accept(batch, logits)

    def _accept(self, batch: list[Sequence], logits: torch.Tensor) -> None:
        best, margins = greedy(logits)
        for row, sequence in enumerate(batch):
            if sequence.params.keep_logits:
                sequence.logits.append(logits[row].float().cpu().numpy().copy())
            if sequence.params.temperature > 0:
                sequence.accept(sample(logits[row].cpu(), sequence.params, sequence.generator), float("inf"))
            else:
                sequence.accept(best[row], margins[row])
            self.stats.add("generated_tokens")
            if sequence.finish_reason:
                self._finish(sequence)

    def _share(self, sequence: Sequence, block: int) -> None:
        """A block is complete: let other requests find it, and store it in the background."""
        if sequence.namespace is None or sequence.params.cache != "on":
            return
        key, place = sequence.key_of(block), sequence.table[block]
        if self.pool.publish(place, key, sequence.namespace, sequence.owner):
            self.stats.add("published_blocks", tier=Tier.GPU)
            self.stats.add("published_bytes", self.layout.block_bytes, tier=Tier.GPU)
        if self._storer is not None:
            self.pool.take([place])
            if not self._storer.put(filled_block(sequence, block, key, self.config.store_deadline_s)):
                self.pool.release([place])

    def _finish(self, sequence: Sequence) -> None:
        load = self._loads.pop(sequence.number, None)
        if load is not None:
            load.abandon()
        if sequence.status is not Status.WAITING:
            self._scheduler.finish(sequence)
        self.pool.release(sequence.table)
        sequence.table = []
        text = TextStream(self.tokenizer).whole(sequence.tokens[sequence.num_prompt_tokens :])
        self.stats.add("finished_requests", reason=sequence.finish_reason)
        self._results[sequence.number] = sequence.result(text)

    def _rest(self) -> None:
        """Wait a little for the tiers: nothing can be computed now."""
        if self._loads:
            next(iter(self._loads.values())).wait(_REST_S)
        elif self._storer is not None and self._storer.num_pinned:
            self._storer.wait_returned(_REST_S)
        else:
            time.sleep(_REST_S)

    def _fail_all(self) -> None:
        for sequence in [*self._scheduler.admitted]:
            sequence.finish_reason = "error"
            self._finish(sequence)

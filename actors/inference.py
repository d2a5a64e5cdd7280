"""The inference actor: an engine whose steps one thread makes, with any number of callers waiting for their results."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ray

from hifc_ray.actors import names
from hifc_ray.actors.client import RayTierClient
from hifc_ray.config import EngineConfig
from hifc_ray.engine import chat
from hifc_ray.engine.loop import Engine
from hifc_ray.engine.prompts import Prompt
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.engine.sequence import Result
from hifc_ray.errors import HifcError
from hifc_ray.messages import Purge

CONNECT_S = 10.0  # how long a new actor waits for its node's tier before it goes on without one
IDLE_S = 0.2  # how often an idle engine tells the tier what it has given back
BUSY_FLUSH_S = 1.0  # the same for a busy one: others must not wait for slots that it needs no more
LEFT_S = 0.2  # how often a waiting call looks whether its caller has left

log = logging.getLogger(__name__)


class InferenceActor:
    """One engine beside its node's cache tier. Raises `ConfigError` if the two do not fit.

    Without a tier, or while it is gone, requests are computed; a tier that comes (back) is used from then on.
    """

    def __init__(self, config: EngineConfig, namespace: str, *, num_engines: int = 1) -> None:
        if config.threads == 0:
            # Ray leaves an actor of at most one CPU a single thread; what is right is this node's cores, shared.
            config = replace(config, threads=max(1, (os.cpu_count() or 1) // num_engines))
        node_id = ray.get_runtime_context().get_node_id()
        self._node_id = node_id
        self._client = RayTierClient(lambda: names.find(names.tier(node_id), namespace))
        try:
            self._engine = Engine(config, self._client)
            self._client.require(self._engine.layout.block_bytes)
            self._client.connected(CONNECT_S)
        except BaseException:
            self._client.close()
            raise
        self._events: dict[int, queue.SimpleQueue[Any]] = {}  # of each request whose result is not handed out yet
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hifc-engine", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Inference[{self._node_id[:8]}]"

    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Result:
        """Answer one prompt (text or token ids). Calls that wait together decode together. Raises `RequestRefused`.

        `ray.cancel` on the call stops the request; its result then says `cancelled`.
        """
        *_, result = self._follow(prompt, params, tokens=False)
        assert isinstance(result, Result)
        return result

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[int | Result]:
        """Token ids as they come, then the `Result`. Call with `num_returns="streaming"`, best through `calls.follow`.

        `ray.cancel` on the generator stops the request. Ray does not say that a generator was merely dropped: such a
        request runs to its end.
        """
        yield from self._follow(prompt, params, tokens=True)

    @ray.method(concurrency_group="control")
    def ready(self) -> dict[str, Any]:
        """What this engine is: device, pool, layout, whether it has a tier. Returns once it can answer."""
        engine = self._engine
        return {
            "device": str(engine.loaded.device),
            "dtype": engine.layout.dtype,
            "num_blocks": engine.pool.num_blocks,
            "block_bytes": engine.layout.block_bytes,
            "block_tokens": engine.layout.block_tokens,
            "context": engine.loaded.context,
            "threads": engine.config.threads,
            "has_tier": self._client.connected(),
            "namespace": engine.namespace.hex(),
            "node": self._node_id,
        }

    @ray.method(concurrency_group="control")
    def counters(self) -> dict[str, float]:
        """Counters of the engine and of its client, as `Stats.snapshot` names them."""
        return {**self._client.stats.snapshot(), **self._engine.stats.snapshot()}

    @ray.method(concurrency_group="control")
    def drain(self, timeout_s: float = 30.0) -> bool:
        """Wait until filled blocks are stored or dropped; False if that took longer."""
        return self._engine.drain(timeout_s)

    @ray.method(concurrency_group="control")
    def purge(self, what: Purge) -> int:
        """See `Engine.purge`."""
        return self._engine.purge(what)

    def encode(self, messages: list[dict[str, str]] | str) -> list[int]:
        """Token ids of a text, or of chat messages with the prompt for the next answer."""
        tokenizer = self._engine.tokenizer
        return chat.encode(tokenizer, messages) if isinstance(messages, str) else chat.first_turn(tokenizer, messages)

    def encode_next(self, question: str) -> list[int]:
        """Token ids that go between an answer of a chat and the next; see `chat.next_prompt`."""
        return chat.next_turn(self._engine.tokenizer, question)

    @ray.method(concurrency_group="control")
    def close(self) -> None:
        """Store what has filled, give everything back to the tier."""
        self._closing.set()
        self._wake.set()
        self._thread.join()
        self._engine.close()
        self._client.close()

    def _follow(self, prompt: Prompt, params: SamplingParams | None, *, tokens: bool) -> Iterator[int | Result]:
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        on_token = (lambda _, token: events.put(token)) if tokens else None
        number = self._engine.submit(prompt, params, on_token)
        self._events[number] = events
        self._wake.set()
        finished = False
        try:
            while not finished:
                item = self._next(events, number)
                if isinstance(item, Exception):
                    raise HifcError(f"the engine failed: {item}") from item
                finished = isinstance(item, Result)
                yield item
        finally:
            if not finished:
                self._engine.cancel(number)
                self._wake.set()

    def _next(self, events: queue.SimpleQueue[Any], number: int) -> Any:
        """The next event of a request. A caller that has left does not get one, but the engine stops for it."""
        while True:
            try:
                return events.get(timeout=LEFT_S)
            except queue.Empty:
                pass
            if self._ended.is_set() and events.empty():
                return HifcError("it was closed before this request was done")
            if ray.get_runtime_context().is_canceled():
                self._engine.cancel(number)
                self._wake.set()

    def _run(self) -> None:
        flushed_s = time.monotonic()
        while not self._closing.is_set():
            worked, failure = self._step()
            self._tell(failure)
            if not worked or time.monotonic() - flushed_s >= BUSY_FLUSH_S:
                self._client.flush()
                flushed_s = time.monotonic()
            if not worked:
                self._wake.wait(IDLE_S)
                self._wake.clear()
        self._ended.set()

    def _step(self) -> tuple[bool, Exception | None]:
        try:
            return self._engine.step(), None
        except Exception as error:
            log.exception("a step of the engine failed")
            return False, error

    def _tell(self, failure: Exception | None) -> None:
        """Hand out what has finished. A step that failed has ended the requests it was about; if none, all are told."""
        waiting = list(self._events.items())
        ended = [(number, events, result) for number, events in waiting if (result := self._engine.result(number))]
        for number, events, result in ended:
            del self._events[number]
            events.put(failure if failure is not None and result.finish_reason == "error" else result)
        if failure is not None and not ended:
            for _, events in waiting:
                events.put(failure)

"""The inference actor: an engine whose steps one thread makes, with any number of callers waiting for their results."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ray

from hifc_ray.actors import names
from hifc_ray.actors.client import RayTierClient
from hifc_ray.config import EngineConfig
from hifc_ray.engine.loop import Engine
from hifc_ray.engine.prompts import Prompt
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.engine.sequence import Result
from hifc_ray.errors import ConfigError, HifcError

CONNECT_S = 10.0  # how long a new actor waits for its node's tier before it goes on without one
IDLE_S = 0.2  # how often an idle engine tells the tier what it has given back

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
            if self._client.connected(CONNECT_S) and self._client.slot_bytes < self._engine.layout.block_bytes:
                raise ConfigError(
                    f"a block of {config.model} is {self._engine.layout.block_bytes} bytes; the slots of this node's "
                    f"tier are {self._client.slot_bytes}: start the tier for this model"
                )
        except BaseException:
            self._client.close()
            raise
        self._done: dict[int, queue.SimpleQueue[Any]] = {}
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hifc-engine", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Inference[{self._node_id[:8]}]"

    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Result:
        """Answer one prompt (text or token ids). Calls that wait together decode together. Raises `RequestRefused`."""
        for item in self._follow(prompt, params, tokens=False):
            if isinstance(item, Result):
                return item
        raise HifcError("the engine was closed before this request was done")

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[int | Result]:
        """Token ids as they come, then the `Result`. Call with `num_returns="streaming"`; leaving it cancels."""
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

    def encode(self, messages: list[dict[str, str]] | str) -> list[int]:
        """Token ids of a text, or of chat messages with the prompt for the next answer."""
        tokenizer = self._engine.tokenizer
        if isinstance(messages, str):
            return list(tokenizer(messages)["input_ids"])
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

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
        self._done[number] = events
        self._wake.set()
        finished = False
        try:
            while True:
                item = events.get()
                if isinstance(item, BaseException):
                    raise HifcError(f"the engine failed: {item}") from item
                finished = isinstance(item, Result)
                yield item
                if finished:
                    return
        finally:
            if not finished:
                self._engine.cancel(number)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                worked = self._engine.step()
            except Exception as error:
                log.exception("a step of the engine failed")
                self._tell(error)
                continue
            self._tell(None)
            if not worked:
                self._client.flush()
                self._wake.wait(IDLE_S)
                self._wake.clear()
        self._tell(HifcError("the engine was closed"))

    def _tell(self, error: Exception | None) -> None:
        """Hand finished results, or an error, to who waits."""
        for number, events in list(self._done.items()):
            outcome = self._engine.result(number)
            if outcome is None and error is None:
                continue
            self._done.pop(number, None)
            events.put(outcome if error is None else error)

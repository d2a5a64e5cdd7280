"""Actors of one namespace on this node, small, and what tests do to them: look inside, kill, wait."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray

from hifc_ray.actors import cluster, names, placement
from hifc_ray.actors.calls import ask
from hifc_ray.actors.client import RayTierClient
from hifc_ray.config import EngineConfig, FlashConfig, HostConfig, PolicyConfig, TierConfig
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.engine.sequence import Result
from hifc_ray.errors import HifcError
from hifc_ray.layout import BlockLayout
from tests.fakes.blocks import SLOT_BYTES

BLOCK_BYTES = BlockLayout(layers=3, kv_heads=2, head_dim=16, block_tokens=16).block_bytes  # of the tiny model
WAIT_S = 30.0  # never waited for in a test that passes


def eventually(what: Callable[[], Any], timeout_s: float = WAIT_S) -> Any:
    """The first answer that is true, of a question that is asked again and again; an answer may be an error of ours."""
    end = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < end:
        try:
            if last := what():
                return last
        except HifcError as error:
            last = error
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout_s} s; last: {last!r}")


def inside(actor: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function says that gets the actor's own object, in the actor's process."""
    return ask(actor.__ray_call__.remote(function, *arguments), WAIT_S)


def pid(actor: Any) -> int:
    return int(inside(actor, lambda _: os.getpid()))


def kill_process(actor: Any) -> int:
    """kill -9 of the actor's process; its pid."""
    number = pid(actor)
    os.kill(number, signal.SIGKILL)
    return number


class Stage:
    """Starts actors in its namespace; `clear` ends them all."""

    def __init__(self, namespace: str, directory: Path, model: str) -> None:
        self.namespace = namespace
        self.directory = directory
        self.model = model
        self.node = str(ray.get_runtime_context().get_node_id())
        self._clients: list[RayTierClient] = []

    def config(
        self, slots: int, slot_bytes: int = BLOCK_BYTES, *, flash: Path | None = None, **host: Any
    ) -> TierConfig:
        """A tier of so many slots, its flash in `flash` or in a directory of the stage's."""
        directory = flash or self.directory / "flash"
        if flash is None:
            directory.mkdir(exist_ok=True)
        return TierConfig(
            HostConfig(arena_bytes=slots * slot_bytes, **host),
            FlashConfig((directory,), limit_bytes=16 << 20),
            PolicyConfig(eviction="retention", report_interval_s=0.2),
        )

    def tier(self, slots: int = 64, slot_bytes: int = BLOCK_BYTES, **options: Any) -> Any:
        """The tier of this node; it may still be opening, or refuse to."""
        return placement.tier(self.config(slots, slot_bytes, **options), slot_bytes, self.node, self.namespace)

    def find_tier(self, node: str = "") -> Any:
        """Handle of the tier of a node, by default this one; None if there is none."""
        return names.find(names.tier(node or self.node), self.namespace)

    def small_tier(self) -> Any:
        """For the blocks of `tests.fakes.blocks`, with the sizes of the contract."""
        return self.tier(16, SLOT_BYTES, low_watermark=1 / 16, high_watermark=1 / 16, window_share=0.5)

    def client(self) -> RayTierClient:
        """A client of this node's tier in this process."""
        client = RayTierClient(self.find_tier)
        self._clients.append(client)
        assert client.connected(WAIT_S)
        return client

    def policy(self) -> Any:
        return placement.policy(self.namespace)

    def start_engine(self, name: str, gpu_blocks: int = 40, **config: Any) -> Any:
        """An engine in another process, not awaited."""
        options = {"block_tokens": 16, "hold_decode": True, "threads": 1, **config}
        engine = EngineConfig(model=self.model, gpu_bytes=gpu_blocks * BLOCK_BYTES, **options)
        return placement.inference(engine, names.ENGINE_PREFIX + name, self.namespace)

    def engine(self, name: str, gpu_blocks: int = 40, **config: Any) -> Any:
        engine = self.start_engine(name, gpu_blocks, **config)
        ask(engine.ready.remote(), 120.0)
        return engine

    def summary(self) -> dict[str, Any]:
        return dict(ask(self.find_tier().summary.remote(), WAIT_S))

    def slots(self) -> dict[str, int]:
        return dict(self.summary()["host"]["slots"])

    def check(self) -> None:
        ask(self.find_tier().check.remote(), WAIT_S)

    def clear(self) -> None:
        for client in self._clients:
            client.close()
        cluster.down(self.namespace, flush=False)


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 6, "ignore_eos": True, "keep_logits": True, **changes})


def generate(engine: Any, prompt: Sequence[int], **changes: Any) -> Result:
    result = ask(engine.generate.remote(list(prompt), params(**changes)), 60.0)
    assert isinstance(result, Result)
    return result


def same(result: Result, reference: Result) -> bool:
    """Tokens and logits of two runs, bit for bit."""
    return result.tokens == reference.tokens and all(
        (a == b).all() for a, b in zip(result.logits, reference.logits, strict=True)
    )

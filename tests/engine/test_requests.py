"""Requests: what is refused, what a stop, a cancel or a full queue does, and what a tier cannot do to them."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import torch

from hifc_ray.client import ChainQuery, Grant, Lease, LookupReply, StoreRequest, all_missed, all_refused
from hifc_ray.config import EngineConfig
from hifc_ray.engine.loop import Engine
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.errors import ConfigError, RequestRefused
from hifc_ray.types import BoolArray, ByteArray, Fate, FloatArray
from tests.fakes.models import BLOCK_TOKENS, VOCABULARY, layout_of, make_model

LAYOUT = layout_of("llama-gqa")


def tokens_of(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


def make_engine(num_blocks: int = 32, client: Any = None, **settings: Any) -> Engine:
    config = EngineConfig(gpu_bytes=num_blocks * LAYOUT.block_bytes, block_tokens=BLOCK_TOKENS, **settings)
    return Engine(config, client, model=make_model())


@pytest.mark.parametrize(
    ("prompt", "params", "named"),
    [
        ([], SamplingParams(), "prompt"),
        (tokens_of(3000), SamplingParams(), "2048"),
        (tokens_of(2040), SamplingParams(max_new_tokens=60), "2048"),
        (tokens_of(700), SamplingParams(max_new_tokens=5), "gpu_bytes|pool"),
        ([1, 2, VOCABULARY], SamplingParams(), str(VOCABULARY)),
        ([1, -2], SamplingParams(), "-2"),
        ("text", SamplingParams(), "tokenizer"),
    ],
)
def test_a_request_that_can_never_run_is_refused_by_name(prompt: Any, params: SamplingParams, named: str) -> None:
    with make_engine() as engine:
        with pytest.raises(RequestRefused, match=named) as refused:
            engine.submit(prompt, params)
        assert "\n" not in str(refused.value)
        assert not engine.step()


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}, {"max_new_tokens": 0}, {"cache": "x"}]
)
def test_wrong_sampling_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_stop_tokens_end_a_request() -> None:
    prompt = tokens_of(40)
    with make_engine() as engine:
        free = engine.generate([prompt], SamplingParams(max_new_tokens=20, cache="off"))[0]
        stop = free.tokens[7]
        stopped = engine.generate([prompt], SamplingParams(max_new_tokens=20, stop_tokens=(stop,), cache="off"))[0]
    assert free.finish_reason == "length"
    assert stopped.finish_reason == "stop"
    assert stopped.tokens == free.tokens[: free.tokens.index(stop) + 1]


def test_a_stream_gives_the_same_tokens_and_leaving_it_frees_everything() -> None:
    prompt = tokens_of(40)
    with make_engine() as engine:
        whole = engine.generate([prompt], SamplingParams(max_new_tokens=12, cache="off"))[0]
        assert [
            token for token, _ in engine.stream(prompt, SamplingParams(max_new_tokens=12, cache="off"))
        ] == whole.tokens
        stream = engine.stream(prompt, SamplingParams(max_new_tokens=12, cache="off"))
        next(stream)
        assert isinstance(stream, Generator)
        stream.close()
        assert not engine.step()
        assert engine.pool.num_available == engine.pool.num_blocks
        engine.pool.check()


def test_one_that_finishes_makes_room_for_the_next() -> None:
    """More sequences than the pool and the batch hold at a time; each still gets what it gets alone."""
    prompts = [tokens_of(30 + i, seed=i) for i in range(7)]
    lengths = [3, 9, 5, 12, 4, 8, 6]
    params = [SamplingParams(max_new_tokens=n, ignore_eos=True, cache="off") for n in lengths]
    with make_engine(num_blocks=8, max_batch=3) as engine:
        together = engine.generate(prompts, params)
        engine.pool.check()
        alone = [engine.generate([prompt], own)[0] for prompt, own in zip(prompts, params, strict=True)]
    assert [len(result.tokens) for result in together] == lengths
    for result, expected in zip(together, alone, strict=True):
        assert result.tokens == expected.tokens


def test_a_full_queue_refuses() -> None:
    with make_engine(max_waiting=2) as engine:
        engine.submit(tokens_of(5))
        engine.submit(tokens_of(5))
        with pytest.raises(RequestRefused, match="max_waiting is 2"):
            engine.submit(tokens_of(5))


def test_shared_prefixes_are_held_once() -> None:
    shared = tokens_of(6 * BLOCK_TOKENS)
    with make_engine(num_blocks=16) as engine:
        engine.generate([[*shared, 1]], SamplingParams(max_new_tokens=1))
        used = []
        engine.generate(
            [[*shared, 2], [*shared, 3], [*shared, 4]],
            SamplingParams(max_new_tokens=2, ignore_eos=True),
            lambda *_: used.append(engine.pool.num_blocks - engine.pool.num_available),
        )
    assert max(used) == 6 + 3


class BrokenTier:
    """A tier on which everything goes wrong in the way that `mode` says."""

    slot_bytes, num_slots, window = LAYOUT.block_bytes, 8, 4

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.hang = threading.Event()

    def lookup(self, query: ChainQuery, deadline_s: float) -> LookupReply:
        if self.mode == "raises":
            raise RuntimeError("a bug in the tier's client")
        if self.mode == "hangs":
            self.hang.wait(deadline_s)
        return all_missed(query, Fate.UNREACHABLE)

    def wait(self, reply: LookupReply, deadline_s: float) -> ByteArray:
        return reply.answers

    def holds(self, lease: Lease) -> BoolArray:
        return np.ones(len(lease), np.bool_)

    def release(self, lease: Lease) -> None: ...

    def reserve(self, request: StoreRequest, deadline_s: float) -> Grant:
        if self.mode == "raises":
            raise RuntimeError("a bug in the tier's client")
        return all_refused(request)

    def commit(self, grant: Grant, attention: FloatArray | None, deadline_s: float) -> int:
        return 0

    def abort(self, grant: Grant) -> None: ...

    def slot(self, index: int) -> memoryview:
        raise AssertionError("nothing was granted")

    def flush(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("mode", ["refuses", "hangs", "raises"])
def test_a_broken_tier_costs_a_recompute(mode: str) -> None:
    prompt = tokens_of(100)
    params = SamplingParams(max_new_tokens=4, ignore_eos=True, keep_logits=True)
    with make_engine() as engine:
        expected = engine.generate([prompt], params)[0]
    with make_engine(client=BrokenTier(mode), call_deadline_s=0.05, store_deadline_s=0.1) as engine:
        result = engine.generate([prompt], params)[0]
        assert engine.drain(10)
        engine.pool.forget()
        engine.pool.check()
        assert engine.pool.num_available == engine.pool.num_blocks
    np.testing.assert_array_equal(np.stack(result.logits), np.stack(expected.logits))


def test_after_a_change_of_weights_nothing_of_before_is_found() -> None:
    prompt, params = tokens_of(5 * BLOCK_TOKENS + 3), SamplingParams(max_new_tokens=4, keep_logits=True)

    def change(model: Any) -> None:
        with torch.no_grad():
            next(model.parameters()).mul_(-0.5)

    with make_engine() as fresh:
        change(fresh.loaded.model)
        expected = fresh.generate([prompt], params)[0]
    with make_engine() as engine:
        engine.generate([prompt], params)
        assert engine.generate([prompt], params)[0].blocks["gpu"] == 5
        change(engine.loaded.model)
        engine.weights_changed()
        result = engine.generate([prompt], params)[0]
    assert (result.blocks.get("gpu", 0), result.blocks["computed"]) == (0, 5)
    assert np.array_equal(np.stack(result.logits), np.stack(expected.logits))

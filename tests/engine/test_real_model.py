"""The default model: the same bits from every tier, and the tokens of plain transformers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from hifc_ray import keys
from hifc_ray.config import EngineConfig
from hifc_ray.engine import chat
from hifc_ray.engine.loop import Engine
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.engine.sequence import Result
from hifc_ray.engine.weights import find_model
from hifc_ray.layout import BlockLayout
from hifc_ray.memory_tier import MemoryTier
from hifc_ray.types import Key

LAYOUT = BlockLayout(layers=30, kv_heads=3, head_dim=64)
STEPS = 30
TOLERANCE = 2e-4  # with other shapes of chunk or batch
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TEXT = (
    "A cache keeps what was expensive to make near to where it will be wanted again. The keys and values of a long "
    "prompt are such a thing: they are made once, they are read at every step, and another question about the same "
    "text needs the very same ones. What is kept must be right to the last bit, or it is worth nothing. "
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As many threads for what the tests share as for the tests: with others the last bits of a short chunk differ."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tier() -> MemoryTier:
    return MemoryTier(LAYOUT.block_bytes, 16, window=16, keep_evicted=True)


@pytest.fixture(scope="module")
def engine(tier: MemoryTier) -> Iterator[Engine]:
    config = EngineConfig(gpu_bytes=16 * LAYOUT.block_bytes, hold_decode=True, load_deadline_s=60, store_deadline_s=60)
    with Engine(config, tier) as made:
        yield made


@pytest.fixture(scope="module")
def prompt(engine: Engine) -> list[int]:
    messages = [{"role": "system", "content": TEXT * 11}, {"role": "user", "content": "What must a cache be?"}]
    return chat.first_turn(engine.tokenizer, messages)


def params(cache: str = "on") -> SamplingParams:
    return SamplingParams(max_new_tokens=STEPS, ignore_eos=True, keep_logits=True, cache=cache)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def cold(engine: Engine, prompt: list[int]) -> Result:
    return engine.generate([prompt], params("off"))[0]


def test_the_layout_is_the_models(engine: Engine) -> None:
    assert engine.layout == LAYOUT
    assert engine.loaded.context == 8192


def test_every_tier_gives_the_same_bits(engine: Engine, tier: MemoryTier, prompt: list[int], cold: Result) -> None:
    num_blocks = (len(prompt) - 1) // 256
    assert num_blocks >= 3
    first = engine.generate([prompt], params())[0]
    pooled = engine.generate([prompt], params())[0]
    assert engine.drain(60)
    engine.forget_pool()
    loaded = engine.generate([prompt], params())[0]
    engine.forget_pool()
    engine.drain(60)
    names = [(engine.namespace, key) for key in _keys(engine, prompt)]
    assert all(tier.evict(name) for name in names)
    promoted = engine.generate([prompt], params())[0]
    assert first.blocks["computed"] == num_blocks
    assert pooled.blocks["gpu"] == loaded.blocks["host"] == promoted.blocks["flash"] == num_blocks
    for result in (first, pooled, loaded, promoted):
        assert result.tokens == cold.tokens
        np.testing.assert_array_equal(np.stack(result.logits), np.stack(cold.logits))


def test_tokens_are_those_of_plain_transformers(prompt: list[int], cold: Result) -> None:
    plain = AutoModelForCausalLM.from_pretrained(find_model("smollm2"), dtype=torch.float32).eval()
    cache, ids = DynamicCache(config=plain.config), torch.tensor([prompt])
    worst = 0.0
    with torch.inference_mode():
        for step, token in enumerate(cold.tokens):
            logits = plain(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
            worst = max(worst, float(np.abs(logits.numpy() - cold.logits[step]).max()))
            best = logits.topk(2)
            margin = float(best.values[0] - best.values[1])
            if int(best.indices[0]) != token:
                print(f"step {step}: {token} here, {int(best.indices[0])} there, margin {margin:.1e}")  # noqa: T201
                assert margin < TOLERANCE
            ids = torch.tensor([[token]])
    assert worst < TOLERANCE


def test_a_long_answer_streams_as_text(engine: Engine) -> None:
    ids = chat.first_turn(engine.tokenizer, [{"role": "user", "content": "What is the capital of France?"}])
    pieces = list(engine.stream(ids, SamplingParams(max_new_tokens=24)))
    assert "Paris" in "".join(text for _, text in pieces)


def _keys(engine: Engine, prompt: list[int]) -> list[Key]:
    return keys.chain(engine.namespace, prompt, 256)[: (len(prompt) - 1) // 256]

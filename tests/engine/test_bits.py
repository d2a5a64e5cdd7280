"""Promise 1: in float32 the logits are equal bit for bit, wherever blocks come from and wherever they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from hifc_ray.config import EngineConfig
from hifc_ray.engine.loop import Engine
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.engine.sequence import Result
from hifc_ray.memory_tier import MemoryTier
from tests.fakes.models import BLOCK_TOKENS, FAMILIES, VOCABULARY, layout_of, make_model

STEPS = 34  # crosses two block boundaries while decoding
TOLERANCE = 2e-4  # with other shapes of chunk or batch


def prompt_of(num_tokens: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, num_tokens).tolist()


PROMPT = prompt_of(9 * BLOCK_TOKENS + 5)


def params(cache: Any = "on", steps: int = STEPS) -> SamplingParams:
    return SamplingParams(max_new_tokens=steps, ignore_eos=True, keep_logits=True, cache=cache)


def engine_for(model: Any, tier: MemoryTier | None = None, *, num_blocks: int = 64, **settings: Any) -> Engine:
    layout = layout_of("llama-gqa") if not hasattr(model, "family") else layout_of(model.family)
    config = EngineConfig(
        gpu_bytes=num_blocks * layout.block_bytes,
        block_tokens=BLOCK_TOKENS,
        hold_decode=True,
        load_deadline_s=30.0,
        store_deadline_s=30.0,
        **settings,
    )
    return Engine(config, tier, model=model)


def same_bits(result: Result, expected: Result) -> None:
    assert result.tokens == expected.tokens
    np.testing.assert_array_equal(np.stack(result.logits), np.stack(expected.logits))


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    made = make_model(request.param)
    made.family = request.param
    return made


@pytest.fixture
def llama() -> Any:
    return make_model()


def test_from_the_pool_from_host_and_from_flash(model: Any) -> None:
    layout = layout_of(model.family)
    with engine_for(model) as engine:
        cold = engine.generate([PROMPT], params("off"))[0]
    tier = MemoryTier(layout.block_bytes, 6, window=3, keep_evicted=True)
    with engine_for(model, tier) as engine:
        first = engine.generate([PROMPT], params())[0]
        assert engine.drain(30)
        from_pool = engine.generate([PROMPT], params())[0]
        engine.pool.forget()
        from_tiers = engine.generate([PROMPT], params())[0]
        engine.pool.check()
    assert first.blocks["computed"] == 9
    assert from_pool.blocks["gpu"] == 9
    assert from_tiers.blocks.get("flash", 0) >= 3
    assert from_tiers.blocks.get("host", 0) + from_tiers.blocks.get("flash", 0) == 9
    for result in (first, from_pool, from_tiers):
        same_bits(result, cold)


def test_a_hit_that_ends_at_any_block_changes_no_bit(llama: Any) -> None:
    layout = layout_of("llama-gqa")
    with engine_for(llama) as engine:
        cold = engine.generate([PROMPT], params("off"))[0]
    for hits in range(1, 10):
        tier = MemoryTier(layout.block_bytes, 32, window=16)
        with engine_for(llama, tier) as engine:
            engine.generate([PROMPT[: hits * BLOCK_TOKENS + 1]], params(steps=1))
            assert engine.drain(30)
            engine.pool.forget()
            result = engine.generate([PROMPT], params())[0]
        assert result.blocks["host"] == hits
        assert result.blocks["computed"] == 9 - hits
        same_bits(result, cold)


def test_where_blocks_lie_changes_no_bit(llama: Any) -> None:
    """The pool is fragmented in a different way each time, so that tables are anything but evenly spaced."""
    with engine_for(llama, num_blocks=64) as engine:
        cold = engine.generate([PROMPT], params("off"))[0]
    seen = set()
    for seed in range(4):
        with engine_for(llama, num_blocks=64) as engine:
            blocks = engine.pool.allocate(64)
            assert blocks is not None
            free = np.random.default_rng(seed).permutation(64)[:14]
            kept = [block for block in blocks if block not in free]
            engine.pool.release([int(block) for block in free])
            tables: list[tuple[int, ...]] = []

            def note(number: int, token: int, engine: Engine = engine, tables: Any = tables) -> None:
                tables.extend(tuple(sequence.table) for sequence in engine._scheduler.admitted)

            result = engine.generate([PROMPT], params("off"), note)[0]
            engine.pool.release(kept)
        seen.add(tables[0])
        same_bits(result, cold)
    assert len(seen) == 4


def test_group_size_and_threads_change_no_bit_or_stay_within_the_tolerance(llama: Any) -> None:
    with engine_for(llama) as engine:
        cold = engine.generate([PROMPT], params("off"))[0]
    for group_blocks in (1, 2, 3):
        with engine_for(llama, group_blocks=group_blocks) as engine:
            same_bits(engine.generate([PROMPT], params("off"))[0], cold)
    torch.set_num_threads(2)
    with engine_for(llama) as engine:
        two = engine.generate([PROMPT], params("off", steps=8))[0]
    assert two.tokens == cold.tokens[:8]
    assert np.abs(np.stack(two.logits) - np.stack(cold.logits[:8])).max() < TOLERANCE


def test_batches_of_equal_composition_are_equal_bit_for_bit(model: Any) -> None:
    layout = layout_of(model.family)
    shared = prompt_of(5 * BLOCK_TOKENS, seed=1)
    prompts = [shared + prompt_of(length, seed=length) for length in (3, 17, 30, 40)]
    with engine_for(model) as engine:
        cold = engine.generate(prompts, params("off"))
    tier = MemoryTier(layout.block_bytes, 64, window=16)
    with engine_for(model, tier) as engine:
        first = engine.generate(prompts, params())
        assert engine.drain(30)
        engine.pool.forget()
        second = engine.generate(prompts, params())
    assert sum(result.blocks.get("computed", 0) for result in second) == 0
    for results in (first, second):
        for result, expected in zip(results, cold, strict=True):
            same_bits(result, expected)


def test_logits_agree_with_plain_transformers(model: Any) -> None:
    plain = make_model(model.family)
    with engine_for(model) as engine:
        ours = engine.generate([PROMPT], params("off"))[0]
    ids = list(PROMPT)
    cache = DynamicCache()
    step = torch.tensor([ids])
    worst = 0.0
    for index, token in enumerate(ours.tokens):
        with torch.inference_mode():
            logits = plain(input_ids=step, past_key_values=cache, use_cache=True).logits[0, -1].numpy()
        worst = max(worst, float(np.abs(logits - ours.logits[index]).max()))
        best = np.sort(logits)[-2:]
        margin = float(best[1] - best[0])
        assert int(logits.argmax()) == token or margin < TOLERANCE, f"step {index}: another token at margin {margin}"
        step = torch.tensor([[token]])
    assert worst < TOLERANCE


def test_swapping_two_blocks_changes_the_logits(llama: Any) -> None:
    """So that a wrong block cannot go unseen in these tests."""
    swapped = [
        *PROMPT[BLOCK_TOKENS : 2 * BLOCK_TOKENS],
        *PROMPT[:BLOCK_TOKENS],
        *PROMPT[2 * BLOCK_TOKENS :],
    ]
    with engine_for(llama) as engine:
        plain, other = engine.generate([PROMPT, swapped], params("off", steps=1))
    assert np.abs(plain.logits[0] - other.logits[0]).max() > 0.1


def test_a_wrong_byte_in_a_slot_would_be_seen(llama: Any) -> None:
    """Nothing below the engine can check bytes in host memory at each load: these tests can."""
    layout = layout_of("llama-gqa")
    tier = MemoryTier(layout.block_bytes, 32, window=16)
    with engine_for(llama, tier) as engine:
        first = engine.generate([PROMPT], params())[0]
        assert engine.drain(30)
        engine.pool.forget()
        for slot in range(32):
            floats = np.frombuffer(tier.slot(slot), np.float32)
            if floats.any():
                floats[: len(floats) // 8] *= -1.0
        damaged = engine.generate([PROMPT], params())[0]
    assert damaged.tokens != first.tokens


def test_a_request_samples_from_its_own_generator(llama: Any) -> None:
    hot = SamplingParams(max_new_tokens=20, temperature=1.0, top_p=0.9, seed=5, ignore_eos=True, cache="off")
    other = SamplingParams(max_new_tokens=20, temperature=1.0, top_p=0.9, seed=6, ignore_eos=True, cache="off")
    with engine_for(llama) as engine:
        alone = engine.generate([PROMPT], hot)[0]
        together = engine.generate([PROMPT, prompt_of(40, seed=2)], [hot, other])
        again = engine.generate([PROMPT], other)[0]
    assert together[0].tokens == alone.tokens
    assert again.tokens != alone.tokens


def test_cache_modes(llama: Any) -> None:
    layout = layout_of("llama-gqa")
    tier = MemoryTier(layout.block_bytes, 32, window=16)
    with engine_for(llama, tier) as engine:
        assert engine.generate([PROMPT], params("read", steps=2))[0].blocks["computed"] == 9
        assert engine.generate([PROMPT], params("on", steps=2))[0].blocks["computed"] == 9
        assert engine.drain(30)
        assert engine.generate([PROMPT], params("read", steps=2))[0].blocks["gpu"] == 9
        assert not engine.generate([PROMPT], params("off", steps=2))[0].blocks.get("gpu")
        result = engine.generate([prompt_of(3 * BLOCK_TOKENS, seed=9)], params(steps=1))[0]
    assert result.missed is not None
    assert result.missed.index == 0
    assert result.missed.fate.name == "UNKNOWN"

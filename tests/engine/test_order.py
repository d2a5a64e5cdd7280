"""The device order: commit after copy-out, reuse after copy-out, share after copy-in; each held by a double."""

from __future__ import annotations

from typing import Any

import numpy as np

from hifc_ray import keys
from hifc_ray.client import ChainQuery
from hifc_ray.config import EngineConfig
from hifc_ray.device.copies import ThreadCopies
from hifc_ray.device.delayed import DelayedCopies
from hifc_ray.engine.loop import Engine
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.memory_tier import MemoryTier
from hifc_ray.types import Lookup
from tests.fakes.models import BLOCK_TOKENS, VOCABULARY, layout_of, make_model

LAYOUT = layout_of("llama-gqa")
ONE = SamplingParams(max_new_tokens=1, ignore_eos=True, keep_logits=True)


def prompt_of(num_blocks: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, num_blocks * BLOCK_TOKENS + 1).tolist()


def engine_with(tier: MemoryTier, num_blocks: int) -> tuple[Engine, DelayedCopies]:
    config = EngineConfig(
        gpu_bytes=num_blocks * LAYOUT.block_bytes,
        block_tokens=BLOCK_TOKENS,
        load_deadline_s=60.0,
        store_deadline_s=60.0,
    )
    engine = Engine(config, tier, model=make_model())
    engine.copies.close()
    delayed = DelayedCopies(ThreadCopies(engine.pool))
    engine.copies = delayed
    for user in (engine._loader, engine._storer):
        vars(user)["copies" if user is engine._loader else "_copies"] = delayed
    return engine, delayed


def published(engine: Engine, tier: MemoryTier, prompt: list[int]) -> int:
    chain = tuple(keys.chain(engine.namespace, prompt, BLOCK_TOKENS))
    reply = tier.lookup(ChainQuery(engine.namespace, chain, np.zeros(len(chain), np.bool_), LAYOUT), 1.0)
    tier.release(reply.lease)
    return int((reply.answers == Lookup.HIT).sum())


def wait_for(condition: Any, engine: Engine) -> None:
    """Run the engine until the condition holds; pytest's timeout ends a wait that never does."""
    while not condition():
        engine.step()


def test_a_block_is_committed_after_its_copy_out() -> None:
    tier = MemoryTier(LAYOUT.block_bytes, 16, window=8)
    engine, delayed = engine_with(tier, 16)
    prompt = prompt_of(3, seed=1)
    delayed.hold("out")
    engine.generate([prompt], ONE)
    wait_for(lambda: delayed.num_held("out") > 0, engine)
    assert published(engine, tier, prompt) == 0
    delayed.release("out")
    assert engine.drain(30)
    assert published(engine, tier, prompt) == 3
    engine.close()


def test_a_block_is_not_reused_before_its_copy_out() -> None:
    tier = MemoryTier(LAYOUT.block_bytes, 32, window=16)
    engine, delayed = engine_with(tier, 8)
    first, second = prompt_of(5, seed=1), prompt_of(5, seed=2)
    delayed.hold("out")
    expected = engine.generate([first], ONE)[0]
    number = engine.submit(second, ONE)
    for _ in range(50):
        engine.step()
    assert engine.result(number) is None, "the second prompt got blocks whose bytes had not been copied out"
    delayed.release("out")
    result = None
    while result is None:
        engine.step()
        result = engine.result(number)
    assert engine.drain(30)
    engine.pool.forget()
    again = engine.generate([first], ONE)[0]
    assert again.blocks["host"] == 5
    np.testing.assert_array_equal(again.logits[0], expected.logits[0])
    engine.close()


def test_a_block_is_not_shared_before_its_copy_in() -> None:
    tier = MemoryTier(LAYOUT.block_bytes, 32, window=16)
    engine, delayed = engine_with(tier, 32)
    prompt = prompt_of(4, seed=1)
    expected = engine.generate([prompt], ONE)[0]
    assert engine.drain(30)
    engine.pool.forget()
    delayed.hold("in")
    number = engine.submit(prompt, ONE)
    wait_for(lambda: delayed.num_held("in") > 0, engine)
    chain = keys.chain(engine.namespace, prompt, BLOCK_TOKENS)
    assert not engine.pool.holds(chain).any()
    assert engine.result(number) is None
    delayed.release("in")
    result = None
    while result is None:
        engine.step()
        result = engine.result(number)
    assert result.blocks["host"] == 4
    assert engine.pool.holds(chain).all()
    np.testing.assert_array_equal(result.logits[0], expected.logits[0])
    engine.close()


def test_a_copy_that_is_late_costs_a_recompute_and_keeps_its_lease_until_it_returns() -> None:
    tier = MemoryTier(LAYOUT.block_bytes, 32, window=16)
    engine, delayed = engine_with(tier, 32)
    prompt = prompt_of(4, seed=1)
    expected = engine.generate([prompt], ONE)[0]
    assert engine.drain(30)
    engine.pool.forget()
    delayed.hold("in")
    assert engine._loader is not None
    engine._loader.config = EngineConfig(load_deadline_s=0.2)
    result = engine.generate([prompt], ONE)[0]
    assert result.blocks["computed"] == 4
    assert result.missed is not None
    assert result.missed.fate.name == "LATE"
    np.testing.assert_array_equal(result.logits[0], expected.logits[0])
    assert engine._loader.num_late == 4
    delayed.release("in")
    wait_for(lambda: engine._loader is not None and engine._loader.num_late == 0, engine)
    assert engine.drain(30)
    engine.pool.forget()
    engine.pool.check()
    assert engine.pool.num_available == engine.pool.num_blocks
    engine.close()


def test_a_load_under_way_asks_for_nothing_more_when_the_weights_change() -> None:
    """With a window smaller than the prompt it would ask again, in the name of no model at all."""
    tier = MemoryTier(LAYOUT.block_bytes, 32, window=2)
    engine, delayed = engine_with(tier, 32)
    prompt = prompt_of(6, seed=1)
    engine.generate([prompt], ONE)
    assert engine.drain(30)
    engine.pool.forget()
    delayed.hold("in")
    number = engine.submit(prompt, ONE)
    wait_for(lambda: delayed.num_held("in") == 2, engine)
    asked = tier.num_lookups
    engine.weights_changed()
    delayed.release("in")
    result = None
    while result is None:
        engine.step()
        result = engine.result(number)
    assert tier.num_lookups == asked
    assert engine.stats.get("lookup_failures") == 0
    assert result.finish_reason == "length"
    engine.pool.check()
    engine.close()

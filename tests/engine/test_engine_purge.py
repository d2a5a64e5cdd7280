"""Purging through a real engine: what is purged is found on no tier, all else still is, and no answer changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from hifc_ray.config import EngineConfig, FlashConfig, HostConfig, TierConfig
from hifc_ray.engine.loop import Engine
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.engine.sequence import Result
from hifc_ray.keys import session_tag, tenant_tag
from hifc_ray.messages import Purge, PurgeReport
from hifc_ray.policies import registry
from hifc_ray.tiering import TieredCache
from tests.fakes.models import BLOCK_TOKENS, VOCABULARY, layout_of, make_model

LAYOUT = layout_of("llama-gqa")
BLOCKS = 4  # of each first turn
OURS, THEIRS = "a salt", "another salt"
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[TieredCache]:
    config = TierConfig(
        HostConfig(arena_bytes=48 * LAYOUT.block_bytes, window_share=0.5),
        FlashConfig(directories=(tmp_path,), limit_bytes=64 << 20),
    )
    made = TieredCache(config, LAYOUT.block_bytes, registry.eviction("lru"), registry.admission("always"))
    yield made
    made.check()
    made.close()


def engine(cache: TieredCache | None, salt: str, **options: Any) -> Engine:
    config = EngineConfig(
        gpu_bytes=48 * LAYOUT.block_bytes, block_tokens=BLOCK_TOKENS, tenant_salt=salt, load_deadline_s=30, **options
    )
    return Engine(config, cache, model=make_model())


def first_turn(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, BLOCKS * BLOCK_TOKENS + 1).tolist()


def answer(engine: Engine, prompt: list[int], session: str, turn: int = 0) -> Result:
    params = SamplingParams(max_new_tokens=3, ignore_eos=True, keep_logits=True, session=session, turn=turn)
    result = engine.generate([prompt], params)[0]
    assert engine.drain(30)
    return result


def found(result: Result) -> dict[str, int]:
    return {tier: count for tier, count in result.blocks.items() if count}


def same_logits(result: Result, reference: Result) -> bool:
    return result.tokens == reference.tokens and bool((np.stack(result.logits) == np.stack(reference.logits)).all())


@pytest.mark.parametrize("where", ["gpu", "host", "flash"])
def test_after_a_purge_the_next_turn_finds_nothing_anywhere_and_nobody_else_loses_anything(
    cache: TieredCache, where: str
) -> None:
    with engine(cache, OURS) as ours, engine(cache, THEIRS) as theirs, engine(None, OURS) as without:
        history = first_turn(1) + answer(ours, first_turn(1), "secret").tokens
        answer(ours, first_turn(2), "other")
        answer(theirs, first_turn(1), "theirs")
        if where == "flash":
            assert cache.demote_all(30)
        what = Purge(session=session_tag("secret"))
        assert (ours.purge(what), theirs.purge(what)) == (BLOCKS, 0)
        assert cache.purge(what) == (PurgeReport(0, BLOCKS, ANY) if where == "flash" else PurgeReport(BLOCKS))
        if where != "gpu":
            assert ours.forget_pool() == theirs.forget_pool() == BLOCKS

        prompt = history + first_turn(3)
        again = answer(ours, prompt, "secret", turn=1)
        assert found(again) == {"computed": len(prompt) // BLOCK_TOKENS}
        assert same_logits(again, answer(without, prompt, "secret"))
        assert found(answer(ours, first_turn(2), "other")) == {where: BLOCKS}
        assert found(answer(theirs, first_turn(1), "theirs")) == {where: BLOCKS}


def test_a_tenant_is_purged_and_the_others_are_not(cache: TieredCache) -> None:
    with engine(cache, OURS) as ours, engine(cache, THEIRS) as theirs, engine(cache, "") as unsalted:
        everyone = (ours, theirs, unsalted)
        for each in everyone:
            answer(each, first_turn(1), "chat")
        what = Purge(tenant=tenant_tag(THEIRS))
        assert [each.purge(what) for each in everyone] == [0, BLOCKS, 0]
        assert cache.purge(what).host_blocks == BLOCKS
        results = [answer(each, first_turn(1), "chat") for each in everyone]
        assert [found(result) for result in results] == [{"gpu": BLOCKS}, {"computed": BLOCKS}, {"gpu": BLOCKS}]
        assert ours.purge(Purge(namespace=ours.namespace)) == BLOCKS
        assert cache.purge(Purge(namespace=ours.namespace)).host_blocks == BLOCKS
        assert found(answer(ours, first_turn(1), "chat")) == {"computed": BLOCKS}


def test_a_request_under_way_is_answered_and_leaves_nothing_behind(cache: TieredCache) -> None:
    params = SamplingParams(max_new_tokens=BLOCK_TOKENS + 1, ignore_eos=True, keep_logits=True, session="secret")
    with engine(cache, OURS, max_batch=1) as ours, engine(None, OURS) as without:
        expected = without.generate([first_turn(1)], params)[0]
        under_way, waiting = ours.submit(first_turn(1), params), ours.submit(first_turn(1), params)
        for _ in range(3):  # a part of its prompt is computed and shared
            ours.step()
        what = Purge(session=session_tag("secret"))
        assert ours.purge(what) > 0
        cache.purge(what)
        results: dict[int, Any] = {}
        while len(results) < 2:
            ours.step()
            results |= {n: result for n in (under_way, waiting) if (result := ours.result(n))}
        assert all(same_logits(result, expected) for result in results.values())
        assert ours.drain(30)
        assert ours.purge(what) == 0
        assert cache.purge(what) == PurgeReport()
        ours.pool.check()

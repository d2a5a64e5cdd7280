"""Generation over Ray: the same tokens and logits with the cache as without, out of every tier, whatever is killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hifc_ray.actors.calls import ask, follow
from hifc_ray.engine.sequence import Result
from hifc_ray.errors import HifcError
from tests.fakes.stage import WAIT_S, Stage, eventually, generate, inside, kill_process, params, pid, same
from tests.fakes.whole_life import live_elsewhere

pytestmark = pytest.mark.timeout(150)

NUM_BLOCKS = 24  # that a prompt may find: the last token is always computed
PROMPTS = [np.random.default_rng(seed).integers(1, 200, NUM_BLOCKS * 16 + 9).tolist() for seed in range(4)]
KILLS = 3


@pytest.fixture(scope="module")
def stage(shared_stage: Stage) -> Stage:
    """A tier for two prompts and a half; two engines whose pools hold one prompt and a half."""
    shared_stage.tier(64, window_share=0.25)
    return shared_stage


@pytest.fixture(scope="module")
def engines(stage: Stage) -> list[Any]:
    started = [stage.start_engine(name, store_deadline_s=1.0) for name in ("first", "second")]
    for engine in started:
        assert ask(engine.ready.remote(), 120.0)["has_tier"]
    return started


@pytest.fixture(scope="module")
def engine(engines: list[Any]) -> Any:
    return engines[0]


@pytest.fixture(scope="module")
def references(engine: Any) -> list[Result]:
    """What each prompt is answered without a cache."""
    return [generate(engine, prompt, cache="off") for prompt in PROMPTS]


def drain(engine: Any) -> None:
    assert ask(engine.drain.remote(), WAIT_S)


def settled(stage: Stage) -> dict[str, int]:
    """The slots once idle engines have told what they hold: nothing."""
    return dict(eventually(lambda: (now := stage.slots())["leased"] == now["reserved"] == now["demoting"] == 0 and now))


def linked(engine: Any, stage: Stage) -> None:
    """Until the engine has found the tier that runs now, which it does by itself when idle."""
    from tests.fakes.driven import linked_to

    eventually(lambda: inside(engine, linked_to) == stage.summary()["incarnation"])


def test_out_of_every_tier_bit_for_bit(stage: Stage, engine: Any, references: list[Result]) -> None:
    first = [generate(engine, prompt) for prompt in PROMPTS]
    drain(engine)
    assert [result.blocks for result in first] == [{"computed": NUM_BLOCKS}] * len(PROMPTS)
    again = [generate(engine, PROMPTS[i]) for i in (3, 2, 0)]
    for result, reference in zip(first + again, references + [references[i] for i in (3, 2, 0)], strict=True):
        assert same(result, reference)
    gpu, host, flash = (Counter(result.blocks) for result in again)
    assert gpu["gpu"] == NUM_BLOCKS
    assert host["host"] > 0
    assert flash["flash"] > NUM_BLOCKS / 2
    assert all(sum(result.blocks.values()) == NUM_BLOCKS for result in again)
    assert gpu["computed"] == host["computed"] == flash["computed"] == 0
    assert settled(stage)["quarantined"] == 0
    stage.check()


def test_what_one_engine_stored_serves_another_from_host(engines: list[Any], references: list[Result]) -> None:
    first, second = engines
    generate(first, PROMPTS[1])
    drain(first)
    result = generate(second, PROMPTS[1])
    assert same(result, references[1])
    assert result.blocks.get("computed", 0) == result.blocks.get("gpu", 0) == 0
    assert result.blocks["host"] > 0


def test_an_idle_engine_holds_nothing_at_the_tier(stage: Stage, engine: Any) -> None:
    generate(engine, PROMPTS[2])
    generate(engine, PROMPTS[0])
    drain(engine)
    assert settled(stage)["resident"] > 0


class TestTierKilled:
    """kill -9 of the tier's process: misses, no errors, the same tokens; then it is back and warm."""

    def test_again_and_again_while_requests_run(self, stage: Stage, engine: Any, references: list[Result]) -> None:
        for prompt in PROMPTS[:2]:
            generate(engine, prompt)
        drain(engine)
        before = stage.summary()
        with _killer(stage) as kills:
            round_ = 0
            while kills.alive or round_ % len(PROMPTS):
                result = generate(engine, PROMPTS[round_ % len(PROMPTS)])
                assert same(result, references[round_ % len(PROMPTS)])
                assert sum(result.blocks.values()) == NUM_BLOCKS
                round_ += 1
        assert kills.count == KILLS
        linked(engine, stage)
        drain(engine)
        assert settled(stage)["quarantined"] == 0
        stage.check()
        after = stage.summary()
        assert after["incarnation"] != before["incarnation"]
        assert after["host"]["slots"]["resident"] > 0

    def test_it_comes_back_warm(self, stage: Stage, engine: Any, references: list[Result]) -> None:
        generate(engine, PROMPTS[0])
        generate(engine, PROMPTS[1])
        drain(engine)
        resident = settled(stage)["resident"]
        killed = kill_process(stage.find_tier())
        eventually(lambda: pid(stage.find_tier()) != killed)
        summary = stage.summary()
        assert summary["host"]["slots"]["resident"] >= resident
        assert summary["flash"]["blocks"] > 0
        linked(engine, stage)
        sources: Counter[str] = Counter()
        for i in (2, 3, 0, 1):  # what is in host memory and not in the pool comes last
            result = generate(engine, PROMPTS[i])
            assert same(result, references[i])
            sources += Counter(result.blocks)
        assert sources["computed"] == 0
        assert sources["host"] > 0
        assert sources["flash"] > 0
        stage.check()

    def test_misses_while_it_is_gone_say_why(self, stage: Stage, engine: Any, references: list[Result]) -> None:
        tier = stage.find_tier()
        number = pid(tier)
        os.kill(number, signal.SIGSTOP)  # hung: no answer, and its locks are held
        try:
            results = [generate(engine, PROMPTS[i]) for i in (2, 0)]
        finally:
            os.kill(number, signal.SIGCONT)
        assert all(same(result, references[i]) for result, i in zip(results, (2, 0), strict=True))
        missed = results[-1].missed
        assert missed is not None
        assert missed.fate.name == "UNREACHABLE"
        linked(engine, stage)
        drain(engine)
        settled(stage)
        stage.check()


class _Kills:
    alive = True
    count = 0


class _killer:  # noqa: N801
    """Kills the tier KILLS times at random moments, each time after it has come back."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._kills = _Kills()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        moments = random.Random(7)
        try:
            for _ in range(KILLS):
                victim = eventually(lambda: pid(self._stage.find_tier()))
                time.sleep(moments.uniform(0.05, 0.6))
                os.kill(victim, signal.SIGKILL)
                self._kills.count += 1
                eventually(lambda: pid(self._stage.find_tier()) != victim)  # noqa: B023
        finally:
            self._kills.alive = False

    def __enter__(self) -> _Kills:
        self._thread.start()
        return self._kills

    def __exit__(self, *_: object) -> None:
        self._thread.join(2 * WAIT_S)


def test_a_killed_engine_leaves_its_slots_to_others(stage: Stage, engines: list[Any], references: list[Result]) -> None:
    from tests.fakes.driven import hold_slots

    first, second = engines
    drain(first)
    settled(stage)
    linked(second, stage)
    leased, reserved = inside(second, hold_slots, PROMPTS[0], PROMPTS[3])
    assert leased > 0
    assert reserved > 0
    held = stage.slots()
    assert (held["leased"], held["reserved"]) == (leased, reserved)
    before = stage.summary()["counters"].get("holders_lost", 0)
    kill_process(second)
    eventually(lambda: stage.summary()["counters"].get("holders_lost", 0) == before + 1)
    settled(stage)
    stage.check()
    for i in (3, 0):
        assert same(generate(first, PROMPTS[i]), references[i])
    with pytest.raises(HifcError):
        generate(second, PROMPTS[0])


def test_a_stream_says_each_token(engine: Any, references: list[Result]) -> None:
    options = engine.stream.options(num_returns="streaming")
    items = list(follow(options.remote(PROMPTS[0], params()), WAIT_S))
    assert items[:-1] == references[0].tokens
    assert items[-1].tokens == references[0].tokens


@pytest.fixture
def long_one(engine: Any) -> Any:
    return engine.stream.options(num_returns="streaming").remote(PROMPTS[0], params(max_new_tokens=240))


def finished(engine: Any, reason: str) -> float:
    counters = ask(engine.counters.remote(), WAIT_S)
    return float(counters.get(f"finished_requests{{{reason}}}", 0))


def test_who_leaves_a_stream_stops_it(engine: Any, long_one: Any, references: list[Result]) -> None:
    from tests.fakes.driven import num_remembered

    before = finished(engine, "cancelled")
    items = follow(long_one, WAIT_S)
    assert [next(items), next(items)] == references[0].tokens[:2]
    items.close()
    eventually(lambda: finished(engine, "cancelled") == before + 1)
    eventually(lambda: inside(engine, num_remembered) == 0)
    assert same(generate(engine, PROMPTS[0]), references[0])


def test_calls_that_wait_together_decode_together(engine: Any, references: list[Result]) -> None:
    from tests.fakes.driven import watch_batches, watched_batches

    inside(engine, watch_batches)
    calls = [engine.generate.remote(prompt[:40], params(max_new_tokens=60)) for prompt in PROMPTS]
    results = [ask(call, 60.0) for call in calls]
    assert all(len(result.tokens) == 60 for result in results)
    assert max(inside(engine, watched_batches)) > 1


def test_a_failing_step_fails_its_request_and_no_other(engine: Any, references: list[Result]) -> None:
    from tests.fakes.driven import fail_next_chunk, num_remembered

    inside(engine, fail_next_chunk)
    with pytest.raises(HifcError, match="the engine failed: out of luck"):
        generate(engine, PROMPTS[1], cache="off")
    assert same(generate(engine, PROMPTS[1], cache="off"), references[1])
    assert inside(engine, num_remembered) == 0


def test_closing_ends_every_call(stage: Stage, engine: Any) -> None:
    """The engine is closed after it."""
    calls = [engine.generate.remote(prompt, params(max_new_tokens=240)) for prompt in PROMPTS]
    eventually(lambda: ask(engine.counters.remote(), WAIT_S)["generated_tokens"] > 0)
    ask(engine.close.remote(), WAIT_S)
    for call in calls:
        with pytest.raises(HifcError, match="closed before this request was done"):
            ask(call, WAIT_S)
    with pytest.raises(HifcError, match="closed before this request was done"):
        generate(engine, PROMPTS[0])
    ask(engine.close.remote(), WAIT_S)
    settled(stage)
    stage.check()


def test_another_ray_finds_all_of_it_on_flash(
    stage: Stage, references: list[Result], short_dir: Path, shm_dir_of_the_session: Path
) -> None:
    """Last in this module: its tier is closed, and everything starts again elsewhere with its flash directory."""
    ask(stage.find_tier().close.remote(), WAIT_S)
    stage.clear()
    assert not list(shm_dir_of_the_session.iterdir())
    second = live_elsewhere(stage.model, stage.directory / "flash", short_dir, PROMPTS)
    assert second["tokens"] == [reference.tokens for reference in references]
    assert [blocks.get("flash") for blocks in second["blocks"]] == [NUM_BLOCKS] * len(PROMPTS)
    assert [blocks.get("computed", 0) for blocks in second["blocks"]] == [0] * len(PROMPTS)
    assert not list(shm_dir_of_the_session.iterdir())

"""Seeded requests as conversations make them, and the smallest cache that a policy can be judged in."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hifc_ray.hotness import Hotness
from hifc_ray.policy import EvictionPolicy
from hifc_ray.sim import traces


@dataclass(frozen=True)
class Request:
    """One turn of a conversation: the blocks of its whole prompt, by name, from the first on."""

    blocks: tuple[str, ...]
    turn: int


def conversations(seed: int, num_requests: int, num_prompts: int = 4, prompt_blocks: int = 6) -> Iterator[Request]:
    """Interleaved conversations: each begins with one of a few shared system prompts and grows by 1 to 4 blocks a turn.

    Prompts are popular by Zipf's law; about a quarter of the turns open a new conversation, the others go on with one,
    a recent one more likely.
    """
    chance = random.Random(seed)
    running: list[tuple[list[str], int]] = []
    popularity = [1 / (rank + 1) for rank in range(num_prompts)]
    for number in range(num_requests):
        if not running or chance.random() < 0.25:
            prompt = chance.choices(range(num_prompts), popularity)[0]
            blocks, turn = [f"prompt{prompt}/{depth}" for depth in range(prompt_blocks)], 0
        else:
            back = min(int(chance.expovariate(0.15)), len(running) - 1)
            blocks, turn = running.pop(len(running) - 1 - back)
        blocks = [*blocks, *(f"request{number}/{depth}" for depth in range(chance.randint(1, 4)))]
        running.append((blocks, turn + 1))
        yield Request(tuple(blocks), turn)


def conversation_trace(seed: int, num_requests: int, num_prompts: int = 4, prompt_blocks: int = 6) -> traces.Trace:
    """The same conversations as a trace, one request a second."""
    requests = conversations(seed, num_requests, num_prompts, prompt_blocks)
    return traces.make(f"seed {seed}", (traces.Request(float(i), r.blocks, r.turn) for i, r in enumerate(requests)))


@dataclass(frozen=True)
class Counts:
    """What a replay saw. A block hits if it and all blocks before it are stored."""

    accesses: int
    hits: int
    evictions: int


class TinyCache:
    """`capacity` blocks, filled on every miss; the policy chooses what leaves, never from the request being served."""

    def __init__(self, policy: EvictionPolicy, capacity: int) -> None:
        self.policy = policy
        self.rows: dict[str, int] = {}
        self.free = list(range(capacity))
        self.hotness = Hotness(capacity)

    def replay(self, requests: Iterator[Request]) -> Counts:
        accesses = hits = evictions = 0
        for request in requests:
            accesses += len(request.blocks)
            hits += next((i for i, block in enumerate(request.blocks) if block not in self.rows), len(request.blocks))
            evictions += self._serve(request)
        return Counts(accesses, hits, evictions)

    def _serve(self, request: Request) -> int:
        kept = [self.rows[block] for block in request.blocks if block in self.rows]
        if kept:
            self.hotness.touch(np.array(kept, np.int64), request.turn)
        missing = [(depth, block) for depth, block in enumerate(request.blocks) if block not in self.rows]
        evicted = self._make_room(len(missing) - len(self.free), set(kept))
        born = [self.free.pop() for _ in missing]
        self.rows.update((block, row) for (_, block), row in zip(missing, born, strict=True))
        positions = np.array([depth for depth, _ in missing], np.int64)
        if born:
            self.hotness.born(np.array(born, np.int64), positions, request.turn)
        return evicted

    def _make_room(self, count: int, kept: set[int]) -> int:
        if count <= 0:
            return 0
        names = {row: block for block, row in self.rows.items() if row not in kept}
        candidates = np.array(sorted(names), np.int64)
        chosen = candidates[self.policy.victims(self.hotness.features(candidates), count)]
        for row in chosen.tolist():
            del self.rows[names[row]]
            self.free.append(row)
        return len(chosen)

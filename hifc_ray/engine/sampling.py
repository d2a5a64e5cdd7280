"""Choosing the next token: greedy, or by temperature and top-p from a generator of the sequence's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from hifc_ray.errors import ConfigError

CacheMode = Literal["off", "read", "on"]


@dataclass(frozen=True)
class SamplingParams:
    """How a request is answered. Temperature 0 is greedy; `cache`: its blocks are looked up (read) and stored (on)."""

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()  # beside the model's own
    ignore_eos: bool = False  # the model's own do not stop it
    cache: CacheMode = "on"
    keep_logits: bool = False  # the result has each step's logits
    session: str = ""  # names a conversation, so that its blocks can be purged; only a tag of it is kept
    turn: int = 0

    def __post_init__(self) -> None:
        _check(self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "at least 1")
        _check(self.temperature >= 0, "temperature", self.temperature, "0 (greedy) or more")
        _check(0 < self.top_p <= 1, "top_p", self.top_p, "above 0, at most 1")
        _check(self.cache in ("off", "read", "on"), "cache", self.cache, "off, read, on")


def greedy(logits: torch.Tensor) -> tuple[list[int], list[float]]:
    """[S, vocab] -> the best token of each row, the lowest id of equals, and its lead over the second best."""
    best_two = torch.topk(logits, 2, dim=-1).values
    return logits.argmax(dim=-1).tolist(), (best_two[:, 0] - best_two[:, 1]).tolist()


def sample(logits: torch.Tensor, params: SamplingParams, generator: np.random.Generator) -> int:
    """One token of a row [vocab]: the smallest set of best tokens that has mass `top_p`, then one draw."""
    probabilities = torch.softmax(logits.double() / params.temperature, dim=-1)
    ordered, tokens = torch.sort(probabilities, descending=True, stable=True)
    mass = torch.cumsum(ordered, dim=0).numpy()
    count = int(np.searchsorted(mass, params.top_p * mass[-1], side="left")) + 1
    draw = generator.random() * mass[min(count, len(mass)) - 1]
    chosen = int(np.searchsorted(mass[:count], draw, side="right"))
    return int(tokens[min(chosen, len(mass) - 1)])


def _check(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ConfigError(f"{name} is {value!r}; allowed: {allowed}")

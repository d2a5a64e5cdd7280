"""Who says what, and when: turns of several users, interleaved so that they return after shorter and longer pauses.

Each visit of a user is up to two turns long, and each round of visits goes through the users in the reverse order of
the round before: the last one returns at once, the first one after everybody else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hifc_ray.demo.texts import Desk
from hifc_ray.errors import ConfigError

VISIT_TURNS = 2
QUESTIONS_OF_A_USER = 3  # that follow each other in the texts; after those come the next user's
_NAMES = ("Ada", "Bruno", "Chen", "Dalia", "Emil", "Farah", "Goran", "Hana", "Imre", "Jun", "Kofi", "Lena")


@dataclass(frozen=True)
class Turn:
    """One question of one user."""

    conversation: int  # from 0
    number: int  # of the turn in its conversation, from 1
    user: str
    desk: Desk
    question: str


def script(desks: list[Desk], conversations: int, turns: int, seed: int) -> list[Turn]:
    """All turns in the order in which they are played; the same for the same arguments. Raises `ConfigError`."""
    for name, value in (("conversations", conversations), ("turns", turns)):
        if value < 1:
            raise ConfigError(f"{name} is {value}; allowed: at least 1")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; allowed: 0 or more")
    rng = np.random.default_rng(seed)
    order = [desks[index] for index in rng.permutation(len(desks))]
    first_user = rng.integers(0, 3, len(desks))
    return [_turn(order, first_user, *visit) for visit in interleaved(conversations, turns)]


def interleaved(conversations: int, turns: int) -> list[tuple[int, int]]:
    """(conversation, number of the turn), in the order of play."""
    played = []
    for round_number, first in enumerate(range(1, turns + 1, VISIT_TURNS)):
        users = range(conversations) if round_number % 2 == 0 else reversed(range(conversations))
        for user in users:
            played += [(user, number) for number in range(first, min(first + VISIT_TURNS, turns + 1))]
    return played


def _turn(desks: list[Desk], first_user: np.ndarray, conversation: int, number: int) -> Turn:
    at_desk, which = divmod(conversation, len(desks))
    desk = desks[which]
    start = QUESTIONS_OF_A_USER * (int(first_user[which]) + at_desk)
    question = desk.questions[(start + number - 1) % len(desk.questions)]
    name = _NAMES[conversation % len(_NAMES)] + ("" if conversation < len(_NAMES) else f" {conversation}")
    text = f"My name is {name}. {question}" if number == 1 else question
    return Turn(conversation, number, name, desk, text)

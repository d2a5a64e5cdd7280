"""What is played, and in which order: the same each time, with shorter and longer pauses."""

from __future__ import annotations

import pytest

from hifc_ray.demo.script import Turn, interleaved, script
from hifc_ray.demo.texts import desks
from hifc_ray.errors import ConfigError


def told(turns: list[Turn]) -> list[tuple[int, int, str, str]]:
    return [(turn.conversation, turn.number, turn.desk.name, turn.question) for turn in turns]


def test_the_package_carries_the_texts() -> None:
    found = desks()
    assert [desk.name for desk in found] == ["library", "ship", "hut"]
    for desk in found:
        assert len(desk.system) > 4000
        assert len(desk.questions) == len(set(desk.questions)) == 9
    assert len({line for desk in found for line in desk.system.splitlines() if len(line) > 80}) > 40


def test_users_return_at_once_soon_and_late() -> None:
    order = interleaved(4, 3)
    assert order == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3), (2, 3), (1, 3), (0, 3)]
    assert interleaved(1, 5) == [(0, number) for number in range(1, 6)]
    assert interleaved(2, 4) == [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3), (1, 4), (0, 3), (0, 4)]


@pytest.mark.parametrize(("conversations", "turns"), [(1, 1), (4, 3), (7, 6), (13, 2)])
def test_every_turn_is_played_once_and_in_order(conversations: int, turns: int) -> None:
    played = interleaved(conversations, turns)
    assert sorted(played) == [(user, number) for user in range(conversations) for number in range(1, turns + 1)]
    for user in range(conversations):
        assert [number for who, number in played if who == user] == list(range(1, turns + 1))


def test_a_seed_always_gives_the_same_script_and_another_seed_another() -> None:
    texts = desks()
    assert told(script(texts, 4, 3, 0)) == told(script(texts, 4, 3, 0))
    assert len({str(told(script(texts, 4, 3, seed))) for seed in range(8)}) > 1


def test_users_of_one_desk_share_its_prompt_and_ask_different_things() -> None:
    turns = script(desks(), 9, 3, 3)
    by_desk: dict[str, set[int]] = {}
    for turn in turns:
        by_desk.setdefault(turn.desk.name, set()).add(turn.conversation)
    assert sorted(map(len, by_desk.values())) == [3, 3, 3]
    assert len({turn.question for turn in turns}) == len(turns)


@pytest.mark.parametrize(
    ("arguments", "words"), [((0, 3, 0), "conversations is 0"), ((4, -1, 0), "turns is -1"), ((4, 3, -2), "seed is -2")]
)
def test_impossible_scripts_are_refused(arguments: tuple[int, int, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        script(desks(), *arguments)

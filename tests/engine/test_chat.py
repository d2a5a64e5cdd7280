"""Chats as token ids: the next turn is what the template would have written, without writing the turns before."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from hifc_ray.engine import chat
from hifc_ray.errors import ConfigError, RequestRefused
from tests.fakes.demo_model import save_demo_model

SYSTEM, USER, ANSWER, NEXT = "the library", "which books", "all of the books", "and the ship"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoTokenizer.from_pretrained(save_demo_model(tmp_path_factory.mktemp("chat")))


def messages(*contents: str) -> list[dict[str, str]]:
    roles = ("system", "user", "assistant", "user")
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


def words(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_turns_together_are_the_whole_chat(tokenizer: Any) -> None:
    first = chat.first_turn(tokenizer, messages(SYSTEM, USER))
    whole = chat.first_turn(tokenizer, messages(SYSTEM, USER, ANSWER, NEXT))
    following = chat.next_turn(tokenizer, NEXT)
    assert chat.next_prompt(first, words(tokenizer, ANSWER), following) == whole


def test_an_answer_that_ended_by_itself_is_not_ended_twice(tokenizer: Any) -> None:
    first, following = chat.first_turn(tokenizer, messages(SYSTEM, USER)), chat.next_turn(tokenizer, NEXT)
    answer = words(tokenizer, ANSWER)
    ended = [*answer, tokenizer.eos_token_id]
    assert chat.next_prompt(first, ended, following) == chat.next_prompt(first, answer, following)


def test_without_a_template_roles_are_words(tokenizer: Any) -> None:
    plain = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    plain.chat_template = None
    assert not chat.has_template(plain)
    assert chat.first_turn(plain, messages(SYSTEM, USER)) == words(plain, f"system: {SYSTEM}\nuser: {USER}\nassistant:")
    assert chat.next_turn(plain, NEXT) == words(plain, f"\nuser: {NEXT}\nassistant:")


def test_a_template_that_drops_answers_is_refused(tokenizer: Any) -> None:
    forgetful = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    forgetful.chat_template = "{{ messages[-1]['content'] }}"
    with pytest.raises(ConfigError, match="leaves answers out"):
        chat.next_turn(forgetful, NEXT)


def test_no_tokenizer_is_told() -> None:
    with pytest.raises(RequestRefused, match="no tokenizer"):
        chat.first_turn(None, messages(SYSTEM, USER))

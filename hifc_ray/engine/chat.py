"""Chats as token ids: a turn extends the ids of the turn before it, whose text is never tokenised a second time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hifc_ray.errors import ConfigError, RequestRefused

_ANSWER = "ANSWER-7f3a9c"  # stands for an answer, to see what the template writes after one


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text to be continued. Raises `RequestRefused` if the model has no tokenizer."""
    return list(_known(tokenizer)(text)["input_ids"])


def first_turn(tokenizer: Any, messages: Sequence[dict[str, str]]) -> list[int]:
    """Token ids of a new chat, up to where the answer begins. Without a chat template the roles are plain words."""
    if not has_template(tokenizer):
        return encode(tokenizer, "".join(_plain(message) for message in messages) + "assistant:")
    return list(tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False))


def next_turn(tokenizer: Any, question: str) -> list[int]:
    """Token ids that the template writes between the end of an answer and the next one, `question` included."""
    user = {"role": "user", "content": question}
    if not has_template(tokenizer):
        following = "\n" + _plain(user) + "assistant:"
    else:
        messages = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _ANSWER}, user]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        before, _, following = text.rpartition(_ANSWER)
        if not before:
            raise ConfigError("the model's chat template leaves answers out, so a chat cannot be extended")
    return list(tokenizer(following, add_special_tokens=False)["input_ids"])


def next_prompt(prompt: Sequence[int], answer: Sequence[int], following: Sequence[int]) -> list[int]:
    """The ids of the next turn. An answer that ended by itself has the end-of-turn token already."""
    if answer and following and answer[-1] == following[0]:
        following = following[1:]
    return [*prompt, *answer, *following]


def has_template(tokenizer: Any) -> bool:
    """Does this model say how chats are written?"""
    return getattr(_known(tokenizer), "chat_template", None) is not None


def _plain(message: dict[str, str]) -> str:
    return f"{message['role']}: {message['content']}\n"


def _known(tokenizer: Any) -> Any:
    if tokenizer is None:
        raise RequestRefused("the prompt is text, and this model has no tokenizer; allowed: token ids")
    return tokenizer

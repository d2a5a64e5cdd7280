"""Text from tokens as they come: a piece is given out once no later token can change it."""

from __future__ import annotations

from typing import Any

_UNFINISHED = "�"  # what a tokenizer gives for the first bytes of a character


class TextStream:
    """Turns one sequence's tokens into text, piece by piece. Without a tokenizer all text is empty."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._start = 0  # of the tokens that the next piece is decoded with
        self._given = 0  # tokens whose text has been given out

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self._tokens.append(token)
        before = self.whole(self._tokens[self._start : self._given])
        now = self.whole(self._tokens[self._start :])
        if now.endswith(_UNFINISHED) or len(now) <= len(before):
            return ""
        self._start, self._given = self._given, len(self._tokens)
        return now[len(before) :]

    def whole(self, tokens: list[int]) -> str:
        """The text of a list of tokens, special ones left out."""
        if self._tokenizer is None or not tokens:
            return ""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

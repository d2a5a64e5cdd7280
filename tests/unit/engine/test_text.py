"""Text in pieces: no piece is given out that a later token would change, and together they are the whole."""

from __future__ import annotations

from hifc_ray.engine.text import TextStream


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(token for token in tokens if token < 256).decode("utf-8", errors="replace")


def test_pieces_are_whole_characters_and_add_up() -> None:
    text = "naïve ☕ and 🙂!"
    stream = TextStream(Bytes())
    pieces = [stream.push(token) for token in text.encode()]
    assert "".join(pieces) == text
    assert all("�" not in piece for piece in pieces)
    assert pieces[2:4] == ["", "ï"]


def test_special_tokens_give_no_text() -> None:
    stream = TextStream(Bytes())
    assert [stream.push(token) for token in (104, 999, 105)] == ["h", "", "i"]
    assert stream.whole([104, 999, 105]) == "hi"


def test_without_a_tokenizer_there_is_no_text() -> None:
    assert TextStream(None).push(3) == ""
    assert TextStream(None).whole([1, 2]) == ""

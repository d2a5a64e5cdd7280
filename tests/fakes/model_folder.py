"""A tiny random model with a tokenizer in a folder, as a user's own model lies on disk."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tests.fakes.models import VOCABULARY, make_model


def save_model(folder: Path, family: str = "llama-gqa") -> str:
    """Write it; the folder's path as a command takes it."""
    make_model(family).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return str(folder)

"""A tiny random model that can hold the demo's conversations: one token a word of its texts, ChatML, in a folder."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hifc_ray.demo.texts import desks

BLOCK_BYTES = 3 * 2 * 2 * 256 * 16 * 4  # layers, keys and values, heads, tokens, values, float32
# As many blocks and slots as the built-in model has by default; flash as small as it may be.
SIZES = ("--gpu-bytes", str(7 * BLOCK_BYTES), "--host-bytes", str(13 * BLOCK_BYTES), "--flash-bytes", "40MB")
_SPECIAL = ("<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for message in messages %}<|im_start|> {{ message['role'] }} {{ message['content'] }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)


def save_demo_model(folder: Path) -> str:
    """Write it; the folder's path as a command takes it."""
    cut = pre_tokenizers.Whitespace()
    texts = [text for desk in desks() for text in (desk.system, *desk.questions)]
    words = sorted({word for text in texts for word, _ in cut.pre_tokenize_str(text)} - set(_SPECIAL))
    names = (*_SPECIAL, "<unknown>", "system", "user", "assistant", *words)
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = cut
    tokenizer.add_special_tokens(list(_SPECIAL))
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_SPECIAL[1], unk_token="<unknown>")
    whole.chat_template = _TEMPLATE
    whole.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)

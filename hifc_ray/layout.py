"""Bytes of a block: arithmetic only.

A block is the KV of `block_tokens` consecutive tokens of one shard; a stripe is its part of one layer,
`[2, kv_heads, block_tokens, head_dim]`, padded to whole pages. A slot, a pool block and a raw record hold the same
bytes: stripes one after the other, layer 0 first.
"""

from __future__ import annotations

from dataclasses import dataclass

from hifc_ray.errors import ConfigError

PAGE_BYTES = 4096
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def round_up(value: int, unit: int) -> int:
    """`value`, or the next multiple of `unit` above it."""
    return -(-value // unit) * unit


@dataclass(frozen=True)
class BlockLayout:
    """Shape and bytes of the blocks of one model shard."""

    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int = 256
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim", "block_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"layout.{name} is {getattr(self, name)}; it must be at least 1")
        if self.dtype not in DTYPE_BYTES:
            raise ConfigError(f"layout.dtype is {self.dtype!r}; allowed: {', '.join(DTYPE_BYTES)}")

    @property
    def stripe_shape(self) -> tuple[int, int, int, int]:
        return (2, self.kv_heads, self.block_tokens, self.head_dim)

    @property
    def stripe_payload_bytes(self) -> int:
        """Bytes of a stripe that carry values."""
        return 2 * self.kv_heads * self.block_tokens * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def stripe_bytes(self) -> int:
        """Bytes of a stripe with its padding to whole pages."""
        return round_up(self.stripe_payload_bytes, PAGE_BYTES)

    @property
    def block_bytes(self) -> int:
        return self.layers * self.stripe_bytes

    @property
    def token_bytes(self) -> int:
        """KV bytes of one token over all layers, without padding."""
        return self.layers * self.stripe_payload_bytes // self.block_tokens

    def describe(self) -> str:
        """One canonical line, part of the namespace and of every record header."""
        return f"{self.layers}x2x{self.kv_heads}x{self.block_tokens}x{self.head_dim}:{self.dtype}"

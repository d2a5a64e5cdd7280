"""The contract of a codec."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Codec(Protocol):
    """One stripe to its encoded bytes and back, without loss of what it promises to keep. Safe from any thread.

    `code` is the byte in the record header; once written it never changes its meaning. The encoded bytes of a
    `verbatim` codec are the stripe itself, so that readers read straight into place and skip `decode`.
    """

    @property
    def name(self) -> str: ...

    @property
    def code(self) -> int: ...

    @property
    def verbatim(self) -> bool: ...

    def encode(self, stripe: memoryview) -> memoryview:
        """The encoded bytes; they may be the stripe's own memory, so it must not change before they are written."""

    def decode(self, encoded: memoryview, stripe: memoryview) -> None:
        """Fill `stripe` whole. Raises `CorruptRecord` if `encoded` cannot be that of a stripe of this length."""

"""The slot table: one line a slot, in shared memory, at the head of the arena.

The tier's process alone writes it; engines read state and generation. It outlives the tier's process, so a line is
written in an order that a kill between two stores cannot turn into a lie: what publishes a block is written last
(RESERVED, RESIDENT), what withdraws it is written first (ABSENT).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hifc_ray.types import KEY_BYTES, AnyArray, ByteArray, GenerationArray, Key, Namespace, SlotArray

LINE_BYTES = 128
LINE = np.dtype(
    {
        "names": ["generation", "holders", "tag", "position", "state", "writer", "key"],
        "formats": ["<u8", "<u8", "<u8", "<u4", "u1", "u1", (np.uint8, KEY_BYTES)],
        "offsets": [0, 8, 16, 24, 28, 29, 32],
        "itemsize": LINE_BYTES,
    }
)

MAX_HOLDERS = 64  # bits of `holders`
TIER_WRITER = 255  # `writer` of a slot that the tier itself fills from flash


def tag_of(namespace: Namespace) -> int:
    """The part of a namespace that a line carries: enough to catch a key that is served under the wrong one."""
    return int.from_bytes(namespace[:8], "little")


class SlotTable:
    """Columns of the table over a buffer of `num_slots * LINE_BYTES` bytes."""

    def __init__(self, buffer: memoryview, num_slots: int) -> None:
        lines: AnyArray = np.frombuffer(buffer, LINE, num_slots)
        self.generation: GenerationArray = lines["generation"]
        self.holders: GenerationArray = lines["holders"]  # bit h: holder h has leased or waits for this slot
        self.tag: GenerationArray = lines["tag"]
        self.position: AnyArray = lines["position"]
        self.state: ByteArray = lines["state"]
        self.writer: ByteArray = lines["writer"]
        self._key: ByteArray = lines["key"]

    def __len__(self) -> int:
        return len(self.state)

    def set_keys(self, slots: SlotArray, keys: Sequence[Key]) -> None:
        self._key[slots] = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES)

    def key(self, slot: int) -> Key:
        return Key(self._key[slot].tobytes())

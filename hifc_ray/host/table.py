"""The slot table: one line a slot, in shared memory, at the head of the arena.

The tier's process alone writes it; engines read state and generation. It outlives the tier's process, so a line is
written in an order that a kill between two stores cannot turn into a lie: what publishes a block is written last
(RESERVED, RESIDENT), what withdraws it is written first (ABSENT).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hifc_ray.layout import DTYPE_BYTES, BlockLayout
from hifc_ray.messages import Purge
from hifc_ray.types import (
    KEY_BYTES,
    AnyArray,
    BlockState,
    BoolArray,
    ByteArray,
    FingerprintArray,
    GenerationArray,
    Key,
    Lookup,
    Namespace,
    Owner,
    SlotArray,
)

_DTYPES = tuple(DTYPE_BYTES)  # a line names its dtype by its place in here: append only

LINE_BYTES = 128
_FIELDS: list[tuple[str, Any, int]] = [
    ("generation", "<u8", 0),
    ("holders", "<u8", 8),
    ("position", "<u4", 16),
    ("state", "u1", 20),
    ("writer", "u1", 21),
    ("dtype", "u1", 22),
    ("key", (np.uint8, KEY_BYTES), 32),
    ("fingerprint", "<u8", 32),  # the head of the key
    ("tag", "<u8", 64),  # the head of the namespace
    ("namespace", (np.uint8, KEY_BYTES), 64),
    ("layout", ("<u4", 4), 96),
    ("tenant", "<u8", 112),
    ("session", "<u8", 120),
]
LINE = np.dtype(
    {
        "names": [name for name, _, _ in _FIELDS],
        "formats": [kind for _, kind, _ in _FIELDS],
        "offsets": [offset for _, _, offset in _FIELDS],
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
        self.fingerprint: FingerprintArray = lines["fingerprint"]
        self.tag: GenerationArray = lines["tag"]
        self.position: AnyArray = lines["position"]
        self.state: ByteArray = lines["state"]
        self.writer: ByteArray = lines["writer"]
        self.tenant: GenerationArray = lines["tenant"]
        self.session: GenerationArray = lines["session"]
        self._dtype: ByteArray = lines["dtype"]
        self._key: ByteArray = lines["key"]
        self._namespace: ByteArray = lines["namespace"]
        self._layout: AnyArray = lines["layout"]

    def __len__(self) -> int:
        return len(self.state)

    def name(
        self,
        slots: SlotArray,
        keys: Sequence[Key],
        namespace: Namespace,
        layout: BlockLayout,
        owners: Owner | Sequence[Owner],
    ) -> None:
        """Write what the blocks in these slots are; enough for a later incarnation of the tier to go on with them.

        `owners` is one for all of them, or one for each.
        """
        self._key[slots] = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES)
        self._namespace[slots] = np.frombuffer(namespace, np.uint8)
        self._layout[slots] = (layout.layers, layout.kv_heads, layout.head_dim, layout.block_tokens)
        self._dtype[slots] = _DTYPES.index(layout.dtype)
        tags = np.array(owners, np.uint64).reshape(-1, 2)
        self.tenant[slots], self.session[slots] = tags[:, 0], tags[:, 1]

    def key(self, slot: int) -> Key:
        return Key(self._key[slot].tobytes())

    def namespace(self, slot: int) -> Namespace:
        return Namespace(self._namespace[slot].tobytes())

    def owner(self, slot: int) -> Owner:
        return Owner(int(self.tenant[slot]), int(self.session[slot]))

    def covered(self, what: Purge) -> BoolArray:
        """[slots] True where the line, if it names a block, names one that is to be purged."""
        if what.namespace is not None:
            wanted = np.frombuffer(what.namespace, np.uint8)
            return np.asarray((self._namespace == wanted).all(axis=1))
        if what.tenant is not None:
            return np.asarray(self.tenant == np.uint64(what.tenant))
        return np.asarray(self.session == np.uint64(what.session or 0))

    def layout(self, slot: int) -> BlockLayout:
        layers, kv_heads, head_dim, block_tokens = map(int, self._layout[slot])
        return BlockLayout(layers, kv_heads, head_dim, block_tokens, _DTYPES[self._dtype[slot]])

    def holds(self, slots: SlotArray, generations: GenerationArray) -> BoolArray:
        """[n] True where a slot still has the block that was leased at this generation, and may be served."""
        kept = self.state[slots] != BlockState.QUARANTINED
        # Read after the state, as in `answers_now`.
        return np.asarray(kept & (self.generation[slots] == generations))

    def answers_now(self, slots: SlotArray, generations: GenerationArray) -> ByteArray:
        """[n] `Lookup` for blocks that were seen at these generations: HIT, PENDING, or MISS if they are gone."""
        state = self.state[slots]
        published = (state == BlockState.RESIDENT) | (state == BlockState.LEASED) | (state == BlockState.DEMOTING)
        answers = np.where(published, Lookup.HIT, np.where(state == BlockState.RESERVED, Lookup.PENDING, Lookup.MISS))
        # Read after the state: a slot that changed owner in between has another generation by now.
        answers[self.generation[slots] != generations] = Lookup.MISS
        return answers.astype(np.uint8)

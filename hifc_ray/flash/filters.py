"""Bloom filters over keys: "not here" without an index. One for each sealed segment, in its footer, and one for a node.

As long as the whole index is in memory nothing asks those of segments: they are for stores that keep a part of it.

Encoded: stamp, 16 bytes and a number that say whose it is (segment uuid and sequence; zeros and version of a node's),
number of keys, bytes of the filter; the filter as rbloom writes it; zeros up to whole pages; XXH3-64 of all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from rbloom import Bloom

from hifc_ray.errors import CorruptRecord
from hifc_ray.flash.format import CHECKSUM_BYTES, STAMP, check_checksum, check_stamp, put_checksum, stamp
from hifc_ray.flash.key_table import KeyArray
from hifc_ray.layout import PAGE_BYTES, round_up
from hifc_ray.types import BoolArray

MAGIC = b"HIFC-BLM"
NODE_MAGIC = b"HIFC-SUM"

_FIXED = struct.Struct("<16sQQQ")
_BLOOM_HEAD_BYTES = 8  # the number of its hashes
_BATCH = 1 << 16  # keys at a time: rbloom keeps the interpreter to itself meanwhile, some 10 ms


class KeyFilter:
    """Which keys may be somewhere, and which are not for certain. Immutable once it is shared."""

    def __init__(self, bloom: Bloom, num_keys: int = 0) -> None:
        self.bloom = bloom
        self.num_keys = num_keys  # that were added

    @classmethod
    def of_size(cls, num_keys: int, false_positive_rate: float) -> KeyFilter:
        """An empty one that keeps to the rate up to so many keys; at 0.01 it takes 1.2 bytes for each."""
        return cls(Bloom(max(num_keys, 1), false_positive_rate, int))

    def add(self, keys: KeyArray) -> None:
        for batch in _hashes(keys):
            self.bloom.update(batch)
        self.num_keys += len(keys)

    def may_hold(self, keys: KeyArray) -> BoolArray:
        """False: never added. True: added, or one of the false positives."""
        found = [np.fromiter(map(self.bloom.__contains__, batch), np.bool_, len(batch)) for batch in _hashes(keys)]
        return np.concatenate(found) if found else np.zeros(0, np.bool_)

    def encode(self, magic: bytes, uuid: bytes, number: int, unit_bytes: int = PAGE_BYTES) -> bytes:
        """The filter as bytes, a multiple of `unit_bytes`."""
        body = self.bloom.save_bytes()
        head = stamp(magic) + _FIXED.pack(uuid, number, self.num_keys, len(body))
        data = bytearray(round_up(len(head) + len(body) + CHECKSUM_BYTES, unit_bytes))
        data[: len(head)] = head
        data[len(head) : len(head) + len(body)] = body
        put_checksum(memoryview(data))
        return bytes(data)


def segment_filter(keys: KeyArray, false_positive_rate: float, uuid: bytes, sequence: int) -> bytes:
    """The filter of a segment that holds these keys, for its footer: whole pages."""
    found = KeyFilter.of_size(len(keys), false_positive_rate)
    found.add(keys)
    return found.encode(MAGIC, uuid, sequence)


def load_segment_filter(data: bytes | memoryview, uuid: bytes, sequence: int) -> KeyFilter:
    """Raises `CorruptRecord` unless these are the bytes of this very segment's filter, or `NewerFormat`."""
    what = f"filter of segment {sequence}"
    found, found_uuid, found_sequence = decode(data, MAGIC, what)
    if (found_uuid, found_sequence) != (uuid, sequence):
        raise CorruptRecord(f"{what}: it is that of segment {found_sequence}, {found_uuid.hex()}")
    return found


def decode(data: bytes | memoryview, magic: bytes, what: str) -> tuple[KeyFilter, bytes, int]:
    """(filter, uuid, number). Raises `CorruptRecord` or `NewerFormat`."""
    check_stamp(data, magic, what)
    check_checksum(data, what)
    at = STAMP.size + _FIXED.size
    if len(data) < at + CHECKSUM_BYTES:
        raise CorruptRecord(f"{what}: only {len(data)} bytes")
    uuid, number, num_keys, body_bytes = _FIXED.unpack_from(data, STAMP.size)
    most = len(data) - at - CHECKSUM_BYTES
    if not _BLOOM_HEAD_BYTES < body_bytes <= most:  # on less rbloom does not raise but panics
        raise CorruptRecord(f"{what}: {len(data)} bytes for a filter of {body_bytes}")
    return KeyFilter(Bloom.load_bytes(bytes(data[at : at + body_bytes]), int), num_keys), uuid, number


def _hashes(keys: KeyArray) -> Iterator[list[int]]:
    """The first 16 bytes of each key as a signed number, as rbloom takes them: keys are hashes already."""
    for start in range(0, len(keys), _BATCH):
        batch = keys[start : start + _BATCH]
        low, high = batch[:, 0].tolist(), batch[:, 1].view(np.int64).tolist()
        yield [(above << 64) | below for below, above in zip(low, high, strict=True)]

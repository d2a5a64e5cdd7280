"""What all our bytes on flash share: a stamp that every release can read, checksums, pages, file names.

The stamp (magic, version, version inverted) keeps its place in every future format, so that an old release can tell
a newer format, which it refuses, from a flipped bit, which is a miss.
"""

from __future__ import annotations

import re
import struct

import xxhash

from hifc_ray.errors import CorruptRecord, NewerFormat

FORMAT_VERSION = 2
CHECKSUM_BYTES = 8
LOCK_NAME = "LOCK"
PURGES_NAME = "purges.json"
FAULTS_NAME = "faults.json"
CHECKPOINT_NAME = "state.checkpoint"
SMALL_NAMES = (PURGES_NAME, FAULTS_NAME, CHECKPOINT_NAME)
TEMP_SUFFIX = ".tmp"

STAMP = struct.Struct("<8sII")
_CHECKSUM = struct.Struct("<Q")
_SEGMENT_NAME = re.compile(r"([0-9a-f]{16})\.segment")
_HINT_NAME = re.compile(r"([0-9a-f]{16})\.hint")


def segment_name(sequence: int) -> str:
    return f"{sequence:016x}.segment"


def hint_name(sequence: int) -> str:
    return f"{sequence:016x}.hint"


def segment_of(name: str) -> int | None:
    """Sequence number of a segment file, None for any other name."""
    match = _SEGMENT_NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def hint_of(name: str) -> int | None:
    """Sequence number of a hint file, None for any other name."""
    match = _HINT_NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def is_temp(name: str) -> bool:
    """A file that a killed process left half-written."""
    return name.endswith(TEMP_SUFFIX) and _is_small(name.removesuffix(TEMP_SUFFIX))


def is_ours(name: str) -> bool:
    return name == LOCK_NAME or segment_of(name) is not None or _is_small(name) or is_temp(name)


def _is_small(name: str) -> bool:
    """Files that `Device.put` replaces whole."""
    return name in SMALL_NAMES or hint_of(name) is not None


def stamp(magic: bytes) -> bytes:
    return STAMP.pack(magic, FORMAT_VERSION, FORMAT_VERSION ^ 0xFFFFFFFF)


def check_stamp(data: bytes | memoryview, magic: bytes, what: str) -> None:
    """Raises `CorruptRecord` if this is no stamp of ours, `NewerFormat` if a newer release wrote it."""
    if len(data) < STAMP.size:
        raise CorruptRecord(f"{what}: {len(data)} bytes are no header")
    found, version, inverted = STAMP.unpack_from(data)
    if found != magic or version ^ inverted != 0xFFFFFFFF:
        raise CorruptRecord(f"{what}: not a header of ours")
    if version > FORMAT_VERSION:
        raise NewerFormat(f"{what} has format {version}; allowed: up to {FORMAT_VERSION} in this release")
    if version != FORMAT_VERSION:
        raise CorruptRecord(f"{what}: format {version} is none of this release")


def checksum(data: bytes | memoryview) -> int:
    """XXH3-64."""
    return xxhash.xxh3_64_intdigest(data)


def with_checksum(data: bytes) -> bytes:
    """The data and its checksum."""
    return data + _CHECKSUM.pack(checksum(data))


def put_checksum(data: memoryview) -> None:
    """Checksum of all but the last 8 bytes, into the last 8 bytes."""
    data[-CHECKSUM_BYTES:] = _CHECKSUM.pack(checksum(data[:-CHECKSUM_BYTES]))


def check_checksum(data: bytes | memoryview, what: str) -> None:
    """Raises `CorruptRecord` unless the last 8 bytes are the checksum of the rest."""
    body = memoryview(data)
    if len(body) < CHECKSUM_BYTES or body[-CHECKSUM_BYTES:] != _CHECKSUM.pack(checksum(body[:-CHECKSUM_BYTES])):
        raise CorruptRecord(f"{what}: checksum does not match")

"""Checkpoints: what a cache has learned (access history, ghosts, budget), kept beside its log and bounded in age.

Stamp, wall time, bytes of the notes and of the arrays; notes as JSON; arrays as .npz without pickles; XXH3-64 of all.
One that is torn, damaged, too old, from the future or of a newer release is left alone: it is only history.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hifc_ray.errors import CorruptRecord, NewerFormat
from hifc_ray.flash.device import FilePlace
from hifc_ray.flash.format import (
    CHECKPOINT_NAME,
    CHECKSUM_BYTES,
    STAMP,
    check_checksum,
    check_stamp,
    put_checksum,
    stamp,
)
from hifc_ray.stats import Stats
from hifc_ray.types import AnyArray, Tier

MAGIC = b"HIFC-CKP"

_FIXED = struct.Struct("<dQQ")
_CLOCK_SLACK_S = 300.0  # wall clocks are set back a little; by more, and the age of what they stamped is unknown


@dataclass(frozen=True)
class Checkpoint:
    """What was saved, and how long ago by the wall clock."""

    arrays: dict[str, AnyArray]
    notes: dict[str, Any]
    age_s: float


def save(device: FilePlace, arrays: Mapping[str, AnyArray], notes: Mapping[str, Any], wall_s: float) -> int:
    """Replace the checkpoint, whole or not at all; bytes written. Raises OSError.

    Arrays hold plain numbers or bytes; notes are what JSON can say. `wall_s` is the time since the epoch.
    """
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"array {name!r} of a checkpoint is of {array.dtype}; allowed: numbers and bytes")
    body = io.BytesIO()
    np.savez(body, allow_pickle=False, **arrays)
    text = json.dumps(notes).encode()
    head = stamp(MAGIC) + _FIXED.pack(wall_s, len(text), body.tell())
    data = bytearray(head + text)
    data += body.getbuffer()
    data += bytes(CHECKSUM_BYTES)
    put_checksum(memoryview(data))
    device.put(CHECKPOINT_NAME, bytes(data))
    return len(data)


def load(device: FilePlace, max_age_s: float, wall_s: float, stats: Stats) -> Checkpoint | None:
    """The checkpoint, or None if there is none that can be believed: then `checkpoint_refused` says why."""
    try:
        found = _decode(device.get(CHECKPOINT_NAME), wall_s)
    except FileNotFoundError:
        return None
    except OSError:
        reason = "io"
    except NewerFormat:
        reason = "newer"
    except CorruptRecord:
        reason = "corrupt"
    else:
        if -_CLOCK_SLACK_S <= found.age_s <= max_age_s:
            return found
        reason = "future" if found.age_s < 0 else "old"
    stats.add("checkpoint_refused", tier=Tier.FLASH, reason=reason)
    return None


def _decode(data: bytes, wall_s: float) -> Checkpoint:
    check_stamp(data, MAGIC, CHECKPOINT_NAME)
    check_checksum(data, CHECKPOINT_NAME)
    at = STAMP.size + _FIXED.size
    if len(data) < at + CHECKSUM_BYTES:
        raise CorruptRecord(f"{CHECKPOINT_NAME}: only {len(data)} bytes")
    saved_s, text_bytes, body_bytes = _FIXED.unpack_from(data, STAMP.size)
    if len(data) != at + text_bytes + body_bytes + CHECKSUM_BYTES:
        raise CorruptRecord(f"{CHECKPOINT_NAME}: {len(data)} bytes for {text_bytes} and {body_bytes}")
    text, body = data[at : at + text_bytes], data[at + text_bytes : -CHECKSUM_BYTES]
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
            return Checkpoint(dict(arrays), json.loads(text), wall_s - saved_s)
    except ValueError as error:  # pickles, which numpy then refuses; JSON that is none
        raise CorruptRecord(f"{CHECKPOINT_NAME}: {error}") from error

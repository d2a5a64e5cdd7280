"""A record: header pages, then the encoded stripes of one run of blocks, each starting on a page.

Header, little-endian: stamp, codec code, num_blocks (1, 2 or 4), length of the layout text, header bytes, stripes per
block, stripe bytes, tokens per block, payload bytes, segment sequence and uuid, offset in the segment, namespace, tags
of the owner; then layout text, keys (32 bytes each), positions (u32 each), and for each stripe of the payload its
encoded length (u32), XXH3-64 of the encoded bytes and of the raw bytes; zeros; XXH3-64 of all of it in the last 8.

A record names its segment and offset, so a scan can tell it from bytes that lie elsewhere, and go on behind a hole.
"""

from __future__ import annotations

import struct
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hifc_ray.codecs import Codec
from hifc_ray.errors import CorruptRecord, NewerFormat
from hifc_ray.flash.address import MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES
from hifc_ray.flash.format import CHECKSUM_BYTES, STAMP, check_checksum, check_stamp, checksum, stamp, with_checksum
from hifc_ray.layout import PAGE_BYTES, BlockLayout, round_up
from hifc_ray.types import KEY_BYTES, NOBODY, Key, Namespace, Owner

MAGIC = b"HIFC-REC"
RUN_BLOCKS = (1, 2, 4)
STRIPE_DTYPE = np.dtype([("length", "<u4"), ("encoded", "<u8"), ("raw", "<u8")])
StripeArray = npt.NDArray[np.void]

_LARGE_BYTES = 8 << 20  # from here on the hand-over to another thread and a write of its own cost less than the hash
_STAMP = stamp(MAGIC)
_FIXED = struct.Struct("<BBHIIIIQQ16sQ32sQQ")


@dataclass(frozen=True, slots=True)
class FlashBlock:
    """A block to be stored: `num_stripes` stripes of `stripe_bytes` (whole pages) in a page-aligned buffer.

    The buffer may be longer; it must not change before `append` has returned. `layout_text`: `BlockLayout.describe()`.
    """

    key: Key
    namespace: Namespace
    layout_text: str
    stripe_bytes: int
    num_stripes: int
    position: int  # index of the block in its sequence
    buffer: memoryview
    num_tokens: int = 0  # 0: as many as the layout says
    owner: Owner = NOBODY

    @property
    def payload_bytes(self) -> int:
        return self.stripe_bytes * self.num_stripes


@dataclass(frozen=True)
class RecordHeader:
    """What a record says of itself."""

    codec: int
    keys: tuple[Key, ...]
    namespace: Namespace
    layout_text: str
    num_stripes: int  # of each block
    stripe_bytes: int
    num_tokens: int  # of each block
    positions: tuple[int, ...]
    stripes: StripeArray  # [len(keys) * num_stripes]
    segment: int
    segment_uuid: bytes
    offset: int
    payload_bytes: int
    owner: Owner

    @property
    def header_bytes(self) -> int:
        return header_bytes(len(self.keys), self.num_stripes, self.layout_text)


@dataclass(frozen=True)
class EncodedBlock:
    """A block ready to be written: what goes into its record, but for its place."""

    key: Key
    namespace: Namespace
    layout_text: str
    num_stripes: int
    stripe_bytes: int
    num_tokens: int
    position: int
    owner: Owner
    codec: int
    pieces: list[memoryview]  # encoded stripes; those of a verbatim codec lie side by side and are one piece
    stripes: StripeArray
    header_bytes: int
    payload_bytes: int
    hashing: Future[StripeArray] | None = None  # `stripes` to come, while the payload is written

    @property
    def record_bytes(self) -> int:
        return self.header_bytes + self.payload_bytes

    def header(self, segment: int, segment_uuid: bytes, offset: int) -> RecordHeader:
        """The header of this block at its place; waits for `hashing`."""
        stripes = self.stripes if self.hashing is None else self.hashing.result()
        return RecordHeader(
            self.codec, (self.key,), self.namespace, self.layout_text, self.num_stripes, self.stripe_bytes,
            self.num_tokens, (self.position,), stripes, segment, segment_uuid, offset, self.payload_bytes,
            self.owner,
        )  # fmt: skip


def header_bytes(num_blocks: int, num_stripes: int, layout_text: str) -> int:
    """Bytes of a record's header pages."""
    variable = len(layout_text.encode()) + num_blocks * (KEY_BYTES + 4 + num_stripes * STRIPE_DTYPE.itemsize)
    return round_up(STAMP.size + _FIXED.size + variable + CHECKSUM_BYTES, PAGE_BYTES)


def record_bytes(layout: BlockLayout) -> int:
    """Of a block of this layout, stored raw: its header and its stripes."""
    return header_bytes(1, layout.layers, layout.describe()) + layout.block_bytes


def encode(block: FlashBlock, codec: Codec, hashers: Executor | None = None) -> EncodedBlock:
    """Encode and checksum a block. Raises ValueError, with the numbers, for a shape that no record can have.

    With `hashers` a large block that is its own encoding is checksummed there, meanwhile.
    """
    _check_shape(block)
    raw = block.buffer[: block.payload_bytes]
    hashing = None
    if not codec.verbatim:
        pieces = [codec.encode(stripe) for stripe in _stripes(raw, block.stripe_bytes)]
        stripes = _sums(pieces, _stripes(raw, block.stripe_bytes))
    elif hashers is not None and block.payload_bytes >= _LARGE_BYTES:
        pieces, stripes = [raw], np.empty(0, STRIPE_DTYPE)
        hashing = hashers.submit(_sums_of_raw, raw, block.stripe_bytes)
    else:
        pieces, stripes = [raw], _sums_of_raw(raw, block.stripe_bytes)
    head = header_bytes(1, block.num_stripes, block.layout_text)
    return EncodedBlock(
        block.key, block.namespace, block.layout_text, block.num_stripes, block.stripe_bytes, block.num_tokens,
        block.position, block.owner, codec.code, pieces, stripes, head, sum(map(len, pieces)), hashing,
    )  # fmt: skip


def _stripes(raw: memoryview, stripe_bytes: int) -> list[memoryview]:
    return [raw[at : at + stripe_bytes] for at in range(0, len(raw), stripe_bytes)]


def _sums_of_raw(raw: memoryview, stripe_bytes: int) -> StripeArray:
    return _sums(_stripes(raw, stripe_bytes))


def _sums(encoded: list[memoryview], raw: list[memoryview] | None = None) -> StripeArray:
    """Lengths and checksums of stripes; without `raw` they are their own encoding."""
    sums = np.empty(len(encoded), STRIPE_DTYPE)
    sums["length"] = [len(piece) for piece in encoded]
    sums["encoded"] = [checksum(piece) for piece in encoded]
    sums["raw"] = sums["encoded"] if raw is None else [checksum(piece) for piece in raw]
    return sums


def again(header: RecordHeader, payload: memoryview) -> EncodedBlock:
    """A record that was read and verified, ready to be written at another place as it is."""
    return EncodedBlock(
        header.keys[0], header.namespace, header.layout_text, header.num_stripes, header.stripe_bytes,
        header.num_tokens, header.positions[0], header.owner, header.codec, [payload], header.stripes,
        header.header_bytes, header.payload_bytes,
    )  # fmt: skip


def write_header(header: RecordHeader, out: memoryview) -> None:
    """Fill `out`, of `header.header_bytes` bytes."""
    layout = header.layout_text.encode()
    parts = (
        _STAMP,
        _FIXED.pack(
            header.codec, len(header.keys), len(layout), len(out), header.num_stripes, header.stripe_bytes,
            header.num_tokens, header.payload_bytes, header.segment, header.segment_uuid, header.offset,
            header.namespace, *header.owner,
        ),
        layout,
        b"".join(header.keys),
        struct.pack(f"<{len(header.positions)}I", *header.positions),
        header.stripes.tobytes(),
    )  # fmt: skip
    out[:] = with_checksum(b"".join(parts).ljust(len(out) - CHECKSUM_BYTES, b"\0"))


def length_of_header(first_page: memoryview) -> int:
    """How many bytes of header this first page announces. Raises `CorruptRecord` if it is none of ours."""
    try:
        check_stamp(first_page, MAGIC, "record header")
    except NewerFormat as error:
        raise CorruptRecord(str(error)) from error
    length = int(_FIXED.unpack_from(first_page, STAMP.size)[3])
    if not PAGE_BYTES <= length <= MAX_HEADER_BYTES or length % PAGE_BYTES:
        raise CorruptRecord(f"record header of {length} bytes; allowed: whole pages up to {MAX_HEADER_BYTES}")
    return length


def read_header(data: memoryview) -> RecordHeader:
    """The header in these pages. Raises `CorruptRecord` if its magic, checksum or lengths are wrong."""
    if length_of_header(data) != len(data):
        raise CorruptRecord(f"record header announces other than its {len(data)} bytes")
    check_checksum(data, "record header")
    fixed = _FIXED.unpack_from(data, STAMP.size)
    codec, num_blocks, layout_bytes, _, num_stripes, stripe_bytes, num_tokens, payload, segment, uuid = fixed[:10]
    offset, namespace, *owner = fixed[10:]
    at = STAMP.size + _FIXED.size
    rows = num_blocks * num_stripes
    needed = at + layout_bytes + num_blocks * (KEY_BYTES + 4) + rows * STRIPE_DTYPE.itemsize + CHECKSUM_BYTES
    if num_blocks not in RUN_BLOCKS or needed > len(data):
        raise CorruptRecord(f"record header of {len(data)} bytes with {num_blocks} blocks of {num_stripes} stripes")
    layout = bytes(data[at : at + layout_bytes]).decode(errors="replace")
    at += layout_bytes
    keys = tuple(Key(bytes(data[at + i * KEY_BYTES : at + (i + 1) * KEY_BYTES])) for i in range(num_blocks))
    at += num_blocks * KEY_BYTES
    positions = struct.unpack_from(f"<{num_blocks}I", data, at)
    stripes = np.frombuffer(data, STRIPE_DTYPE, rows, at + 4 * num_blocks).copy()
    total = sum(stripes["length"].tolist())
    if total != payload:
        raise CorruptRecord(f"stripes of {total} bytes in a payload of {payload}")
    return RecordHeader(
        codec, keys, Namespace(namespace), layout, num_stripes, stripe_bytes, num_tokens, positions, stripes, segment,
        uuid, offset, payload, Owner(*owner),
    )  # fmt: skip


def _check_shape(block: FlashBlock) -> None:
    size, count, buffer = block.stripe_bytes, block.num_stripes, block.buffer
    if size < PAGE_BYTES or size % PAGE_BYTES or count < 1 or block.payload_bytes > MAX_PAYLOAD_BYTES:
        raise ValueError(f"{count} stripes of {size} bytes; allowed: whole pages, {MAX_PAYLOAD_BYTES} bytes in all")
    if buffer.itemsize != 1 or buffer.ndim != 1 or len(buffer) < block.payload_bytes:
        raise ValueError(f"buffer of {buffer.nbytes} bytes for {block.payload_bytes}")
    if np.frombuffer(buffer, np.uint8, 1).__array_interface__["data"][0] % PAGE_BYTES:
        raise ValueError(f"buffer is not aligned to {PAGE_BYTES} bytes")
    if len(block.key) != KEY_BYTES or len(block.namespace) != KEY_BYTES:
        raise ValueError(f"key of {len(block.key)}, namespace of {len(block.namespace)} bytes; both have {KEY_BYTES}")
    if header_bytes(1, count, block.layout_text) > MAX_HEADER_BYTES:
        raise ValueError(f"{count} stripes need a header of more than {MAX_HEADER_BYTES} bytes")

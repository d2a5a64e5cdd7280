"""Reading: whole blocks, runs of neighbours in one go, or chosen stripes; every byte that is handed out is verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hifc_ray import points
from hifc_ray.errors import CorruptRecord
from hifc_ray.flash.address import Address, Place, unpack
from hifc_ray.flash.device import pages, scratch_pages
from hifc_ray.flash.record import RecordHeader
from hifc_ray.flash.segment import Segment
from hifc_ray.flash.verify import Mismatch, check_header, check_record, check_stripes
from hifc_ray.types import Key, Namespace

_MERGED_BYTES = 8 << 20  # longer reads gain no bandwidth, and their first block would wait for their last
_MERGED_BLOCKS = 512  # a preadv takes 1024 buffers (IOV_MAX of Linux), and each block is two


@dataclass(frozen=True)
class BlockRead:
    """A block to be read into `out` (page-aligned, at least as long)."""

    key: Key
    namespace: Namespace
    address: Address
    out: memoryview


def merge(addresses: Sequence[Address]) -> list[list[int]]:
    """Which of these reads go together: rows of records that lie side by side, in the order of their first use."""
    places = [unpack(address) for address in addresses]
    ordered = sorted(range(len(places)), key=lambda row: (places[row].segment, places[row].offset))
    groups: list[list[int]] = []
    size = 0
    for row in ordered:
        place = places[row]
        last = places[groups[-1][-1]] if groups else None
        adjacent = last is not None and (place.segment, place.offset) == (last.segment, last.end)
        size = size + place.end - place.offset if adjacent else place.end - place.offset
        if adjacent and size <= _MERGED_BYTES and len(groups[-1]) < _MERGED_BLOCKS:
            groups[-1].append(row)
        else:
            groups.append([row])
            size = place.end - place.offset
    return sorted(groups, key=min)


def read_run(segment: Segment, reads: Sequence[BlockRead]) -> list[Mismatch | None]:
    """Read neighbours in one go, straight into place; for each, None or what is wrong with it. Raises OSError."""
    places = [unpack(read.address) for read in reads]
    heads = scratch_pages("read", sum(place.header_bytes for place in places))
    buffers, of_each, at = [], [], 0
    for read, place in zip(reads, places, strict=True):
        if len(read.out) < place.payload_bytes:
            raise ValueError(f"buffer of {len(read.out)} bytes for a block of {place.payload_bytes}")
        head = heads[at : at + place.header_bytes]
        at += place.header_bytes
        payload = read.out[: place.payload_bytes]
        buffers += [head, payload]
        of_each.append((head, payload))
    points.reach("flash.read.before")
    segment.read(buffers, places[0].offset)
    points.reach("flash.read.done")
    return [
        check_record(head, payload, read.key, read.namespace, segment, place)
        for read, place, (head, payload) in zip(reads, places, of_each, strict=True)
    ]


class StripeReader:
    """Stripes of one block, in any order: its header is read and verified once. Raises `CorruptRecord`, OSError."""

    def __init__(self, segment: Segment, key: Key, namespace: Namespace, place: Place) -> None:
        self._segment = segment
        self._place = place
        head = pages(place.header_bytes)
        segment.read([head], place.offset)
        self.header: RecordHeader = check_header(head, key, namespace, segment, place)

    def read(self, first: int, count: int, out: memoryview) -> None:
        """Stripes `first` to `first + count`, side by side, into `out` (page-aligned). Raises ValueError for others."""
        header = self.header
        if first < 0 or count < 1 or first + count > header.num_stripes:
            raise ValueError(f"stripes {first} to {first + count} of {header.num_stripes}")
        lengths = header.stripes["length"]
        size = int(lengths[first : first + count].sum())
        if len(out) < size:
            raise ValueError(f"buffer of {len(out)} bytes for stripes of {size}")
        begin = self._place.offset + self._place.header_bytes + int(lengths[:first].sum())
        self._segment.read([out[:size]], begin)
        wrong = check_stripes(header, out[:size], first, count)
        if wrong is not None:
            raise CorruptRecord(f"segment {self._place.segment} at {self._place.offset}: {wrong.detail}")

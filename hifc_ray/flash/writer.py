"""Appending: records of several blocks side by side, one write for as many as fit."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from hifc_ray import points
from hifc_ray.flash.address import Place
from hifc_ray.flash.device import pages, scratch_pages
from hifc_ray.flash.entries import EntryArray, entry, join_rows
from hifc_ray.flash.record import EncodedBlock, write_header
from hifc_ray.flash.segment import Segment
from hifc_ray.flash.traffic import Traffic, pieces
from hifc_ray.layout import PAGE_BYTES

READ_FIRST_S = 0.005  # the longest that a piece of a write waits for reads
# Longer writes gain no bandwidth, and hold the device's queue against readers.
_MAX_RUN_BYTES = 16 << 20


def take(pending: Sequence[EncodedBlock], room_bytes: int) -> list[EncodedBlock]:
    """The longest head of `pending` that goes into one write; at least one block."""
    taken: list[EncodedBlock] = []
    size = 0
    for block in pending:
        size += block.record_bytes
        if taken and size > min(room_bytes, _MAX_RUN_BYTES):
            break
        taken.append(block)
    return taken


def write(segment: Segment, offset: int, run: Sequence[EncodedBlock], traffic: Traffic) -> EntryArray:
    """Write a run of records at a place that is theirs alone, reads first; their rows for the index.

    The header of one large block comes last, since its checksums are made meanwhile. After an OSError none of them
    counts: their headers are wiped, as far as the device lets us, so that no later scan finds what nobody was told is
    there.
    """
    places = _places(segment, offset, run)
    try:
        if len(run) == 1 and run[0].hashing is not None:
            _put(segment, offset + run[0].header_bytes, run[0].pieces, traffic)
            _put(segment, offset, _heads(segment, run, places), traffic)
        else:
            heads = _heads(segment, run, places)
            buffers = [part for head, block in zip(heads, run, strict=True) for part in (head, *block.pieces)]
            _put(segment, offset, buffers, traffic)
    except OSError:
        blank = pages(PAGE_BYTES)
        for place in places:
            with contextlib.suppress(OSError):
                segment.write([blank], place.offset)
        raise
    rows = zip(run, places, strict=True)
    return join_rows([entry(block.key, block.namespace, block.owner, block.position, place) for block, place in rows])


def _put(segment: Segment, offset: int, buffers: Sequence[memoryview], traffic: Traffic) -> None:
    for piece in pieces(buffers, lambda: traffic.yield_to_reads(READ_FIRST_S)):
        segment.write(piece, offset)
        offset += sum(map(len, piece))
        points.reach("flash.append.part")


def _places(segment: Segment, offset: int, run: Sequence[EncodedBlock]) -> list[Place]:
    places = []
    for block in run:
        places.append(Place(segment.number, offset, block.header_bytes, block.payload_bytes))
        offset += block.record_bytes
    return places


def _heads(segment: Segment, run: Sequence[EncodedBlock], places: Sequence[Place]) -> list[memoryview]:
    left = scratch_pages("write", sum(block.header_bytes for block in run))
    heads = []
    for block, place in zip(run, places, strict=True):
        head, left = left[: block.header_bytes], left[block.header_bytes :]
        write_header(block.header(segment.sequence, segment.uuid, place.offset), head)
        heads.append(head)
    return heads

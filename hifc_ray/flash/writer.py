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

    After an OSError none of them counts: their headers are wiped, as far as the device lets us, so that no later scan
    finds what nobody was told is there.
    """
    buffers, rows, places = _lay_out(segment, offset, run)
    try:
        at = offset
        for piece in pieces(buffers, lambda: traffic.yield_to_reads(READ_FIRST_S)):
            segment.write(piece, at)
            at += sum(map(len, piece))
            points.reach("flash.append.part")
    except OSError:
        blank = pages(PAGE_BYTES)
        for place in places:
            with contextlib.suppress(OSError):
                segment.write([blank], place.offset)
        raise
    return join_rows(rows)


def _lay_out(
    segment: Segment, offset: int, run: Sequence[EncodedBlock]
) -> tuple[list[memoryview], list[EntryArray], list[Place]]:
    heads = scratch_pages("write", sum(block.header_bytes for block in run))
    buffers: list[memoryview] = []
    rows: list[EntryArray] = []
    places: list[Place] = []
    for block in run:
        head, heads = heads[: block.header_bytes], heads[block.header_bytes :]
        write_header(block.header(segment.sequence, segment.uuid, offset), head)
        place = Place(segment.number, offset, block.header_bytes, block.payload_bytes)
        buffers += [head, *block.pieces]
        rows.append(entry(block.key, block.namespace, block.owner, block.position, place))
        places.append(place)
        offset = place.end
    return buffers, rows, places

"""Rows of a simulation as a table for people."""

from __future__ import annotations

from collections.abc import Iterable

from hifc_ray.sim.run import Row

COLUMNS = (
    "trace",
    "flash",
    "eviction",
    "admission",
    "hits %",
    "ideal %",
    "loss",
    "write amp.",
    "admitted GiB",
    "written GiB",
    "refused",
    "read/written",
    "useful %",
    "÷ in place",
    "÷ once",
)
NOTES = """\
hits: blocks whose whole prefix is in host memory or flash; ideal: the same host memory before a plain LRU store of the
  same flash bytes; loss: ideal - hits, in points
write amp.: bytes written to the device (headers, footers, hints, carry-over) / block bytes admitted
refused: blocks that left host memory and were not written, by the policy + for want of budget
useful: of the blocks written, those read back at least once; no admission can save more without losing hits
÷ in place: flash pages of 4 KiB that a store programs which rewrites a block in place each time that a request has used
  it, over those written here; ÷ once: the same for a store that writes only what it lacks (the ideal). Garbage
  collection within the drive is left out of all, to the advantage of writes in place. To be read beside the loss."""
TRACE_LETTERS = 14  # of a trace's name


def table(rows: Iterable[Row]) -> list[tuple[object, ...]]:
    """One line of `COLUMNS` a row."""
    return [_line(row) for row in rows]


def _line(row: Row) -> tuple[object, ...]:
    refused = row.refused_blocks
    return (
        row.trace[:TRACE_LETTERS],
        f"{row.flash_share:.3g}",
        row.eviction,
        row.admission,
        f"{100 * row.hit_ratio:.2f}",
        f"{100 * row.ideal_hit_ratio:.2f}",
        f"{row.hit_loss_points:.2f}",
        f"{row.write_amplification:.3f}",
        f"{row.admitted_bytes / (1 << 30):.0f}",
        f"{row.device_written_bytes / (1 << 30):.0f}",
        f"{refused['policy']}+{refused['budget']}" if refused["budget"] else str(refused["policy"]),
        f"{row.read_back_per_written:.2f}",
        f"{100 * row.useful_share:.0f}",
        f"{row.writes_reduction:.2f}x",
        f"{row.writes_reduction_once:.2f}x",
    )

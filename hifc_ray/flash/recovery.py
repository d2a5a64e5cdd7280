"""What a restart finds on a volume: refuse what is not ours, believe good hints, scan the rest, cut what is torn."""

from __future__ import annotations

from dataclasses import dataclass

from hifc_ray.errors import CorruptRecord, ForeignFiles
from hifc_ray.flash import hint
from hifc_ray.flash.device import Device
from hifc_ray.flash.entries import EntryArray
from hifc_ray.flash.format import hint_name, hint_of, is_ours, is_temp, segment_name, segment_of
from hifc_ray.flash.index import Index
from hifc_ray.flash.log import SegmentLog
from hifc_ray.flash.purges import Purges
from hifc_ray.flash.scan import scan
from hifc_ray.flash.segment import Segment, load
from hifc_ray.stats import Stats
from hifc_ray.types import Tier


@dataclass(frozen=True)
class RecoveryReport:
    """What was found and what was cut."""

    num_segments: int = 0
    num_blocks: int = 0
    num_hinted: int = 0  # segments whose hint was believed
    num_scanned: int = 0  # segments that were read instead
    num_cut: int = 0  # segments that lost a torn tail, or all of it with their header
    cut_bytes: int = 0
    num_removed: int = 0  # leftovers of ours: temporary files, hints without a segment, segments never begun

    def __add__(self, other: RecoveryReport) -> RecoveryReport:
        names = self.__dataclass_fields__
        return RecoveryReport(*(getattr(self, name) + getattr(other, name) for name in names))


def refuse_foreign(device: Device) -> None:
    """Raises `ForeignFiles` if anything here is not ours. Touches nothing."""
    foreign = sorted(name for name in device.sizes() if not is_ours(name))
    if foreign:
        shown = ", ".join(foreign[:3]) + (" ..." if len(foreign) > 3 else "")
        raise ForeignFiles(
            f"flash directory {device.path} holds {len(foreign)} files that are not the cache's ({shown}); "
            "allowed: an empty directory, or one that the cache has used"
        )


class Recovery:
    """One pass over a locked device. Opens and judges everything before it deletes or writes anything.

    With `read_only` nothing is deleted or written at all: a scanned segment is served as it is.
    """

    def __init__(
        self, device: Device, log: SegmentLog, index: Index, stats: Stats, purges: Purges, volume: int, read_only: bool
    ) -> None:
        self._device = device
        self._log = log
        self._index = index
        self._stats = stats
        self._purges = purges
        self._volume = volume
        self._read_only = read_only
        self._names = device.sizes()
        self._segments: list[Segment] = []
        self._damaged: list[int] = []
        self._scanned = self._cut = self._cut_bytes = self._removed = 0

    def run(self) -> RecoveryReport:
        """All segments in the log, sealed, and their blocks in the index. Raises `NewerFormat` with nothing touched."""
        before = len(self._index)
        try:
            self._open_segments()
            hinted = {segment.number: self._hinted(segment) for segment in self._segments}
            if not self._read_only:
                self._remove_leftovers()
            found = {s.number: self._scanned_entries(s) for s in self._segments if hinted[s.number] is None}
        except BaseException:
            for segment in self._segments:
                segment.extent.close()
            raise
        self._log.adopt(self._segments, self._device.sizes())
        blocks = {**found, **{number: rows for number, rows in hinted.items() if rows is not None}}
        self._index.reserve(sum(map(len, blocks.values())))
        for segment in self._segments:  # the later segment counts as asked for later
            self._index.add(blocks.pop(segment.number))
        self._settle(found)
        num_blocks = len(self._index) - before
        self._stats.add("recovered_blocks", num_blocks, tier=Tier.FLASH)
        self._stats.add("cut_bytes", self._cut_bytes, tier=Tier.FLASH)
        return RecoveryReport(
            len(self._log.segments), num_blocks, len(hinted) - len(found), self._scanned, self._cut, self._cut_bytes,
            self._removed,
        )  # fmt: skip

    def _settle(self, scanned: dict[int, EntryArray]) -> None:
        """Seal what was scanned; what holds nothing that counts goes."""
        for segment in self._segments:
            if segment.number in scanned and not self._read_only:
                self._device.delete(hint_name(segment.sequence))
                self._log.seal_recovered(segment)
            segment.full = segment.sealed = True
            if not self._read_only and self._index.live(segment.number) == (0, 0):
                self._log.drop(segment)

    def _open_segments(self) -> None:
        sequences = sorted(sequence for sequence in map(segment_of, self._names) if sequence is not None)
        for sequence in sequences:
            name = segment_name(sequence)
            extent = self._device.open(name)
            segment = None
            try:
                segment = load(sequence, extent, f"{self._device.path}/{name}", self._volume)
            except CorruptRecord:
                self._damaged.append(sequence)
                self._stats.add("corrupt", tier=Tier.FLASH, reason="segment")
            finally:
                if segment is None:
                    extent.close()
            if segment is not None:
                self._segments.append(segment)

    def _hinted(self, segment: Segment) -> EntryArray | None:
        name = hint_name(segment.sequence)
        if name not in self._names:
            return None
        try:
            segment.end, entries = hint.decode(self._device.get(name), segment)
        except (CorruptRecord, OSError):
            self._stats.add("corrupt", tier=Tier.FLASH, reason="hint")
            return None
        return self._purges.kept(entries, segment.sequence)

    def _remove_leftovers(self) -> None:
        kept = {segment.sequence for segment in self._segments}
        for name, size in self._names.items():
            of_segment = segment_of(name)
            sequence = hint_of(name) if of_segment is None else of_segment
            if is_temp(name) or (sequence is not None and sequence not in kept):
                self._device.delete(name)
                if of_segment in self._damaged:
                    self._cut += 1
                    self._cut_bytes += size
                else:
                    self._removed += 1

    def _scanned_entries(self, segment: Segment) -> EntryArray:
        found = scan(segment)
        self._scanned += 1
        self._cut += found.cut_bytes > 0
        self._cut_bytes += found.cut_bytes
        segment.end = found.end
        return self._purges.kept(found.entries, segment.sequence)

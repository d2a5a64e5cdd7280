"""What a restart finds: refuse what is not ours, believe good hints, scan the rest, cut what is torn."""

from __future__ import annotations

from dataclasses import dataclass

from hifc_ray.errors import CorruptRecord, ForeignFiles
from hifc_ray.flash import hint
from hifc_ray.flash.device import Device
from hifc_ray.flash.format import hint_name, hint_of, is_ours, is_temp, segment_name, segment_of
from hifc_ray.flash.index import Entry, Index
from hifc_ray.flash.scan import scan
from hifc_ray.flash.segment import Segment, load
from hifc_ray.stats import Stats
from hifc_ray.types import Tier


@dataclass(frozen=True)
class RecoveryReport:
    """What was found and what was cut."""

    num_segments: int
    num_blocks: int
    num_hinted: int  # segments whose hint was believed
    num_scanned: int  # segments that were read instead
    num_cut: int  # segments that lost a torn tail, or all of it with their header
    cut_bytes: int
    num_removed: int  # leftovers of ours: temporary files, hints without a segment, segments never begun


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
    """One pass over a locked device. Opens and judges everything before it deletes or writes anything."""

    def __init__(self, device: Device, index: Index, stats: Stats) -> None:
        self._device = device
        self._index = index
        self._stats = stats
        self._names = device.sizes()
        self._segments: list[Segment] = []
        self._damaged: list[int] = []
        self._scanned = self._cut = self._cut_bytes = self._removed = 0

    def run(self) -> tuple[list[Segment], RecoveryReport]:
        """All segments, sealed, and their blocks in the index. Raises `NewerFormat` with nothing touched."""
        try:
            self._open_segments()
            hinted = {segment.sequence: self._hinted(segment) for segment in self._segments}
            self._remove_leftovers()
            for segment in list(self._segments):
                self._index.add(hinted[segment.sequence] or self._scanned_entries(segment))
        except BaseException:
            for segment in self._segments:
                segment.extent.close()
            raise
        self._stats.add("recovered_blocks", len(self._index), tier=Tier.FLASH)
        self._stats.add("cut_bytes", self._cut_bytes, tier=Tier.FLASH)
        return self._segments, self._report(sum(entries is not None for entries in hinted.values()))

    def _report(self, num_hinted: int) -> RecoveryReport:
        return RecoveryReport(
            len(self._segments), len(self._index), num_hinted, self._scanned, self._cut, self._cut_bytes, self._removed
        )

    def _open_segments(self) -> None:
        sequences = sorted(sequence for sequence in map(segment_of, self._names) if sequence is not None)
        for sequence in sequences:
            name = segment_name(sequence)
            extent = self._device.open(name)
            segment = None
            try:
                segment = load(sequence, extent, f"{self._device.path}/{name}")
            except CorruptRecord:
                self._damaged.append(sequence)
                self._stats.add("corrupt", tier=Tier.FLASH, reason="segment")
            finally:
                if segment is None:
                    extent.close()
            if segment is not None:
                self._segments.append(segment)

    def _hinted(self, segment: Segment) -> list[Entry] | None:
        name = hint_name(segment.sequence)
        if name not in self._names:
            return None
        try:
            segment.end, entries = hint.decode(self._device.get(name), segment)
        except (CorruptRecord, OSError):
            self._stats.add("corrupt", tier=Tier.FLASH, reason="hint")
            return None
        segment.sealed = True
        return entries

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

    def _scanned_entries(self, segment: Segment) -> list[Entry]:
        """Scan a segment and seal it; one that holds nothing is removed."""
        found = scan(segment)
        self._scanned += 1
        self._cut += found.cut_bytes > 0
        self._cut_bytes += found.cut_bytes
        segment.sealed, segment.end = True, found.end
        name = hint_name(segment.sequence)
        self._device.delete(name)
        if not found.entries:
            self._device.delete(segment_name(segment.sequence))
            segment.extent.close()
            self._segments.remove(segment)
            return []
        try:
            hint.seal(self._device, segment, found.entries)
        except OSError:
            self._stats.add("write_refused", tier=Tier.FLASH, reason="hint")
        return found.entries

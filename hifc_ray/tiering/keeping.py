"""What a tier has learned, kept beside the log: access history of both tiers, ghosts of admission, budgets, weights.

Blocks are named by the first 8 bytes of their key, and times are ages, so that history costs 28 bytes a block. A
restart takes up what it finds of blocks that are still here; what it does not find is learned again.

A budget is never taken up fuller than it was: what was written after the checkpoint is found in the log, and counts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from hifc_ray.flash import Volume, checkpoint
from hifc_ray.flash.budget import DAY_S
from hifc_ray.hotness import Hotness
from hifc_ray.messages import Weights
from hifc_ray.tiering.errands import Errands
from hifc_ray.tiering.shared import Shared
from hifc_ray.types import AnyArray, FingerprintArray, IntArray, Tier

log = logging.getLogger(__name__)

BUDGET_SHARE = 0.01  # the most of what may be written a day that checkpoints take
_CHUNK = 1 << 16  # rows that are copied while the lock is held
_ALL = 1 << 62  # rows: a restart has nobody waiting for the lock
_ARRAY_BYTES = 1024  # at most, of the file's own around each array and the notes
_COLUMNS: dict[str, type] = {
    "age": np.int32,
    "previous_age": np.int32,
    "frequency": np.float32,
    "attention": np.float16,
    "position": np.int32,
    "turn": np.int16,
}


class Keeper:
    """Saves and takes up checkpoints. For one thread."""

    def __init__(self, shared: Shared, errands: Errands) -> None:
        assert shared.flash is not None
        self._shared = shared
        self._flash = shared.flash
        self._errands = errands
        self._last_bytes = 0
        self._last_s = shared.clock.now()

    @property
    def due(self) -> bool:
        """Is it time, by the configured interval and by what checkpoints may take of the write budget?"""
        per_day = sum(volume.budget.bytes_per_day for volume in self._flash.volumes)
        interval_s = self._shared.config.flash.checkpoint_interval_s
        if per_day:
            interval_s = max(interval_s, self._last_bytes / (BUDGET_SHARE * per_day) * DAY_S)
        return self._shared.clock.now() - self._last_s >= interval_s

    def save(self, weights: Weights) -> bool:
        """Put a checkpoint on the first device that takes it in time; False, counted, if none does."""
        shared = self._shared
        self._last_s = shared.clock.now()
        notes = self._notes(weights)
        arrays = {f"host_{name}": column for name, column in self._host().items()}
        arrays |= {f"flash_{name}": column for name, column in self._on_flash().items()}
        with shared.lock:
            arrays |= {f"admission_{name}": column for name, column in shared.admission.state().items()}
        notes["bytes"] = sum(array.nbytes for array in arrays.values()) + _ARRAY_BYTES * (len(arrays) + len(notes))
        for volume in self._flash.volumes:
            if volume.state == "ok" and self._put(volume, arrays, notes):
                shared.stats.add("checkpoints", tier=Tier.FLASH)
                return True
        return False

    def take_up(self) -> Weights | None:
        """Go on from the newest checkpoint that can be believed; the weights that were in use then."""
        max_age_s = self._shared.config.flash.history_max_age_s
        found = [
            (loaded, volume)
            for volume in self._flash.volumes
            if (loaded := checkpoint.load(volume.files, max_age_s, time.time(), self._shared.stats)) is not None
        ]
        known: set[str] = set()
        weights = None
        if found:
            newest, its_volume = min(found, key=lambda one: one[0].age_s)
            try:
                weights = Weights(**newest.notes["weights"])
                known = self._restore_budgets(newest)
                its_volume.budget.charge(int(newest.notes["bytes"]))  # it was written after it was made
                self._restore_history(newest)
                self._shared.stats.add("checkpoints_restored", tier=Tier.FLASH)
            except (LookupError, TypeError, ValueError) as error:
                self._shared.stats.add("checkpoint_refused", tier=Tier.FLASH, reason="content")
                log.warning("a checkpoint was not taken up: %r", error)
        for volume in self._flash.volumes:
            if volume.path not in known:  # what lies here may all have been written today
                volume.budget.charge(min(volume.log.bytes_since(0, 0), int(volume.budget.bytes_per_day)))
        return weights

    def _notes(self, weights: Weights) -> dict[str, Any]:
        """Position before state: what is written between the two counts twice, and never not at all."""
        return {
            "admission": self._shared.admission.name,
            "weights": asdict(weights),
            "budgets": {
                volume.path: {"position": volume.log.position, "state": volume.budget.state()}
                for volume in self._flash.volumes
            },
        }

    def _put(self, volume: Volume, arrays: Mapping[str, AnyArray], notes: Mapping[str, Any]) -> bool:
        def put() -> None:
            self._last_bytes = checkpoint.save(volume.files, arrays, notes, time.time())

        try:
            if self._errands.run(volume.path, put, volume.stalled):
                return True
            reason = "late"
        except OSError as error:
            reason = type(error).__name__
            log.info("no checkpoint on %s: %s", volume.path, error)
        self._shared.stats.add("checkpoint_failures", tier=Tier.FLASH, reason=reason)
        return False

    def _host(self) -> dict[str, AnyArray]:
        books = self._shared.books
        with self._shared.lock:
            rows = books.published()
            return _exported(books.hotness, rows, books.table.fingerprint[rows])

    def _on_flash(self) -> dict[str, AnyArray]:
        parts = [
            _exported(index.hotness, rows, index.fingerprints(rows)) for index, rows in self._flash.history_rows(_CHUNK)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}

    def _restore_budgets(self, newest: checkpoint.Checkpoint) -> set[str]:
        """Returns the paths of the volumes whose budget was known."""
        budgets = newest.notes["budgets"]
        volumes = [volume for volume in self._flash.volumes if volume.path in budgets]
        for volume in volumes:
            noted = budgets[volume.path]
            sequence, offset = noted["position"]
            volume.budget.restore(noted["state"], newest.age_s)
            volume.budget.charge(volume.log.bytes_since(int(sequence), int(offset)))
        return {volume.path for volume in volumes}

    def _restore_history(self, newest: checkpoint.Checkpoint) -> None:
        shared, books, arrays = self._shared, self._shared.books, newest.arrays
        with shared.lock:
            rows = books.published()
            _take(books.hotness, rows, books.table.fingerprint[rows], _named(arrays, "host_"))
            if newest.notes["admission"] == shared.admission.name:
                shared.admission.restore(_named(arrays, "admission_"))
        for index, rows in self._flash.history_rows(_ALL):
            _take(index.hotness, rows, index.fingerprints(rows), _named(arrays, "flash_"))


def _exported(hotness: Hotness, rows: IntArray, fingerprints: FingerprintArray) -> dict[str, AnyArray]:
    columns = hotness.export(rows)
    limit = np.iinfo(np.int32).max
    for name in ("age", "previous_age"):
        columns[name] = np.minimum(columns[name], limit)
    columns["turn"] = np.clip(columns["turn"], 0, np.iinfo(np.int16).max)
    return {"fingerprint": fingerprints.copy(), **{name: columns[name].astype(kind) for name, kind in _COLUMNS.items()}}


def _take(hotness: Hotness, rows: IntArray, fingerprints: FingerprintArray, saved: Mapping[str, AnyArray]) -> None:
    """Give these rows the history that was saved under their fingerprints."""
    if not saved or not len(rows):
        return
    order = np.argsort(saved["fingerprint"])
    known = saved["fingerprint"][order]
    at = np.minimum(np.searchsorted(known, fingerprints), max(0, len(known) - 1))
    hit = known[at] == fingerprints if len(known) else np.zeros(len(rows), np.bool_)
    source = order[at[hit]]
    wide = {"age": np.int64, "previous_age": np.int64, "position": np.int64, "turn": np.int64}
    hotness.restore(rows[hit], {n: saved[n][source].astype(wide.get(n, np.float32)) for n in _COLUMNS})


def _named(arrays: Mapping[str, AnyArray], prefix: str) -> dict[str, AnyArray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

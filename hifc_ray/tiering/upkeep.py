"""Upkeep of flash: checkpoints, health, devices that are out or drain, purges to be finished. Nothing waits for it.

What may hang goes on a thread of its own (`Errands`), so that a device that hangs holds up the others once, for no
longer than its write deadline.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

import numpy as np

from hifc_ray.flash import WriteBudget
from hifc_ray.health.devices import read_device
from hifc_ray.health.endurance import budgets_bytes_per_day
from hifc_ray.health.report import HealthReport
from hifc_ray.health.smart import SmartReading
from hifc_ray.health.watch import HealthWatch
from hifc_ray.messages import Weights
from hifc_ray.tiering.errands import Errands
from hifc_ray.tiering.keeping import Keeper
from hifc_ray.tiering.shared import Shared
from hifc_ray.types import Tier

log = logging.getLogger(__name__)

PAUSE_S = 1.0  # between steps: everything that may be due is due in seconds or more
PROBES = 2_000  # random keys asked of the filter for its false-positive rate: 20 false ones at 0.01, give or take 5


class Upkeep:
    """`step` looks after everything that is due; from `start` to `close` a thread does so each `PAUSE_S`."""

    def __init__(self, shared: Shared, weights: Callable[[], Weights], finish_purges: Callable[[], None]) -> None:
        assert shared.flash is not None
        config = shared.config.flash
        self._errands = Errands(config.write_deadline_s)
        self.keeper = Keeper(shared, self._errands)
        self.health = HealthReport()
        self._shared = shared
        self._flash = shared.flash
        self._watch = HealthWatch(
            config.directories, drive_writes_per_day=config.drive_writes_per_day, clock=shared.clock
        )
        self._weights = weights
        self._finish_purges = finish_purges
        self._next_look_s = 0.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hifc-upkeep", daemon=True)

    def take_up(self) -> Weights | None:
        """Budgets by what the drives are, then all that was learned before; the weights among it are returned."""
        config = self._shared.config.flash
        if config.directories:
            readings = [read_device(directory, SmartReading) for directory in config.directories]
            placements, sizes = [r.placement for r in readings], [r.capacity_bytes for r in readings]
            budgets = budgets_bytes_per_day(config, placements, sizes)
            for volume, bytes_per_day in zip(self._flash.volumes, budgets, strict=True):
                volume.budget = WriteBudget(bytes_per_day, self._shared.clock)
        return self.keeper.take_up()

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """End, with a last checkpoint; False if something takes longer than that."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if not self._shared.config.flash.read_only:
            self.keeper.save(self._weights())
        return self._errands.wait(timeout_s)

    def step(self) -> None:
        """Whatever is due now. Never raises for a fault of a device."""
        now = self._shared.clock.now()
        if now >= self._next_look_s:
            self._next_look_s = now + self._shared.config.flash.health_interval_s
            self._heed(self._watch.look())
        for volume in self._flash.volumes:
            if volume.state == "out":
                self._errands.run(volume.path, volume.probe, volume.stalled)
            elif volume.state == "draining":
                self._errands.run(volume.path, partial(self._flash.drain, volume))
        self._flash.refresh_filter()
        self._errands.run("purges", self._finish_purges)
        if self.keeper.due and not self._shared.config.flash.read_only:
            self.keeper.save(self._weights())

    def summary(self) -> dict[str, object]:
        """What is on flash, how it wears, how its devices are, and the filter by which other nodes know what is here.

        `filter.data` is for `flash.Summary.from_bytes`, at most 2 bytes a block; rates are None where nothing was
        written yet.
        """
        flash, get = self._flash, self._shared.stats.get
        written, stored = get("device_written_bytes"), get("stored_bytes", tier=Tier.FLASH)
        lives = {str(device.path): device.projected_life_days for device in self.health.devices}
        filter_ = flash.filter
        flash.refresh_filter()
        return {
            "blocks": flash.num_blocks,
            "used_bytes": flash.used_bytes,
            "limit_bytes": flash.limit_bytes,
            "device_written_bytes": written,
            "write_amplification": written / stored if stored else None,
            "read_back_per_written": get("loaded_bytes", tier=Tier.FLASH) / written if written else None,
            "devices": [
                {
                    "path": volume.path,
                    "state": volume.state,
                    "direct": volume.direct,
                    "used_bytes": volume.log.used_bytes,
                    "limit_bytes": volume.log.limit_bytes,
                    "budget_bytes_per_day": volume.budget.bytes_per_day,
                    "budget_level": volume.budget.level,
                    "written_bytes_per_day": volume.budget.written_per_day,
                    "projected_life_days": lives.get(volume.path),
                }
                for volume in flash.volumes
            ],
            "filter": {
                "data": filter_.to_bytes(),
                "version": filter_.version,
                "age_s": filter_.age_s,
                "false_positive_rate": filter_.measured_fpr(PROBES, np.random.default_rng()),
            },
            "health": self.health.metrics(),
        }

    def _heed(self, report: HealthReport) -> None:
        """Tell what is new, and act on it: a drive that should not be written to is not, and gives its blocks away."""
        self.health = report
        for verdict in report.new:
            log.warning("%s: %s; %s", verdict.name, verdict.what, verdict.advice)
        for verdict in report.gone:
            log.info("%s: no longer %s", verdict.name, verdict.what)
        worn = {str(device.path): device for device in report.devices if device.read_only}
        for volume in self._flash.volumes:
            device = worn.get(volume.path)
            volume.retire(drain=device.drain) if device is not None else volume.reinstate()

    def _run(self) -> None:
        while not self._ending.wait(PAUSE_S):
            try:
                self.step()
            except Exception as error:
                log.exception("upkeep of flash failed")
                self._shared.stats.add("upkeep_failures", reason=type(error).__name__)

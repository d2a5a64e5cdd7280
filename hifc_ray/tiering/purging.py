"""Purging: what is of one tenant, one conversation or one namespace leaves both tiers, and is not served meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hifc_ray import points
from hifc_ray.errors import FlashFault, StorageError
from hifc_ray.messages import Purge, PurgeReport
from hifc_ray.tiering.shared import Shared
from hifc_ray.types import GenerationArray, SlotArray, Tier

_STEP_S = 0.001  # how often a purge looks whether writes that were under way have returned


@dataclass(frozen=True, eq=False)
class _Started:
    """A purge, and the I/O that was under way on its blocks: a write among them may yet put one on flash."""

    what: Purge
    slots: SlotArray
    generations: GenerationArray


class Purger:
    """First host memory, then the writes that are under way, then flash; flash is barred to lookups until that is done.

    A write that hangs is not waited for longer than its deadline: the bar then stays until it has returned. Of flash
    that is read-only nothing can be purged, and the bar stays for good.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._unfinished: list[_Started] = []  # guarded by shared.lock

    def purge(self, what: Purge) -> PurgeReport:
        """See `TieredCache.purge`."""
        shared = self._shared
        with shared.lock:
            if shared.closed:
                raise StorageError(f"the tier of arena {shared.arena.path} is closed; nothing was purged")
            slots = self._withdraw(what)
            busy = shared.books.in_flight(what)
            started = _Started(what, busy, shared.books.table.generation[busy])
            if shared.flash is not None:
                shared.barred.append(what)
        shared.stats.add("purged_blocks", len(slots), tier=Tier.HOST)
        points.reach("tier.purge.withdrawn")
        if shared.flash is None:
            return PurgeReport(len(slots))
        if shared.config.flash.read_only:
            shared.stats.add("purges_refused", tier=Tier.FLASH, reason="read-only")
            raise StorageError(
                "flash is read-only (tier.flash.read_only), so nothing on it was purged; this tier no longer serves "
                "what it finds of it there; allowed: a purge by the tier that writes it"
            )
        end = time.monotonic() + shared.config.flash.write_deadline_s
        while not (settled := self._settled(started)) and time.monotonic() < end:
            time.sleep(_STEP_S)
        num_blocks = num_bytes = 0
        try:
            num_blocks, num_bytes = self._purge_flash(what)
        except TimeoutError:  # behind a write that hangs: barred until that has returned
            settled = False
        except BaseException:
            settled = False
            raise
        finally:
            self._end(started, settled)
        return PurgeReport(len(slots), num_blocks, num_bytes, unfinished=not settled)

    def finish(self) -> None:
        """Go on with purges whose writes had not returned in time, or whose flash had failed."""
        with self._shared.lock:
            ready = [started for started in self._unfinished if self._settled_now(started)]
            self._unfinished = [started for started in self._unfinished if started not in ready]
        for started in ready:
            done = False
            try:
                self._purge_flash(started.what)
                done = True
            except (FlashFault, OSError) as error:
                self._shared.stats.add("purge_failures", tier=Tier.FLASH, reason=type(error).__name__)
            finally:
                self._end(started, done)

    def _withdraw(self, what: Purge) -> SlotArray:
        """Out of host memory. With the lock."""
        shared = self._shared
        slots = shared.books.select(what)
        shared.fates.forget(shared.keys(slots.tolist()))
        shared.books.purge(slots)
        return slots

    def _purge_flash(self, what: Purge) -> tuple[int, int]:
        flash = self._shared.flash
        assert flash is not None
        return flash.purge(tenant=what.tenant, session=what.session, namespace=what.namespace)

    def _settled(self, started: _Started) -> bool:
        with self._shared.lock:
            return self._settled_now(started)

    def _settled_now(self, started: _Started) -> bool:
        books = self._shared.books
        same = books.table.generation[started.slots] == started.generations
        return not (same & (books.outstanding[started.slots] > 0)).any()

    def _end(self, started: _Started, done: bool) -> None:
        with self._shared.lock:
            if done:
                self._shared.barred.remove(started.what)
            else:
                self._unfinished.append(started)

"""Two tiers under a trace: host memory before flash, with the rules of `TieredCache` and the policies that ship.

A request looks its chain up; its hits are the blocks up to the first that is in neither tier. Whatever of the chain is
in a tier is touched there. Hits on flash are promoted and keep their copy; all other blocks of the chain are computed
and stored in host memory, in windows, as the engine does it. Under its low watermark host memory evicts to the high
one: a block that flash has is dropped, the others are written there if admission and the write budget allow.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from hifc_ray.clock import ManualClock
from hifc_ray.config import HostConfig
from hifc_ray.flash.budget import DAY_S, WriteBudget
from hifc_ray.hotness import Hotness
from hifc_ray.policies.ghost import mixed
from hifc_ray.policy import AdmissionPolicy, EvictionPolicy
from hifc_ray.sim.flash import SimFlash
from hifc_ray.sim.traces import Trace
from hifc_ray.types import FingerprintArray, IntArray

BURST_SHARE = 0.02  # of the whole budget: what its bucket holds


@dataclass
class Counts:
    """What a replay saw, in blocks."""

    accesses: int = 0
    host_hits: int = 0
    flash_hits: int = 0  # each read back from flash
    computed: int = 0
    useful_writes: int = 0  # blocks written to flash and read from there at least once
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def hit_ratio(self) -> float:
        return (self.host_hits + self.flash_hits) / max(1, self.accesses)


class Host:
    """`capacity` blocks of host memory. Names those that leave; the caller decides what becomes of them."""

    def __init__(self, capacity: int, num_blocks: int, eviction: EvictionPolicy) -> None:
        config = HostConfig()
        self.here = np.zeros(num_blocks, np.bool_)
        self.hotness = Hotness(num_blocks, half_life=8.0 * capacity)
        self.window = max(1, int(config.window_share * capacity))  # the most blocks that a request holds at once
        self._eviction = eviction
        self._free = capacity
        self._low = int(config.low_watermark * capacity)
        self._high = int(config.high_watermark * capacity)

    def add(self, blocks: IntArray, positions: IntArray, turn: int) -> None:
        self.hotness.born(blocks, positions, turn)
        self.here[blocks] = True
        self._free -= len(blocks)

    def make_room(self, num_blocks: int, held: IntArray) -> IntArray:
        """Blocks that leave, the first first, so that so many fit and the watermarks are kept; none of those `held`."""
        if self._free - num_blocks >= self._low:
            return held[:0]
        candidates = self.here.copy()
        candidates[held] = False
        rows = np.flatnonzero(candidates)
        leaving = rows[self._eviction.victims(self.hotness.features(rows), num_blocks + self._high - self._free)]
        self.here[leaving] = False
        self._free += len(leaving)
        return leaving


class Budget:
    """The write budget that ships. It flows in evenly over the accesses of a trace, so that a lull saves up nothing."""

    def __init__(self, total_bytes: float, num_accesses: int) -> None:
        self._clock = ManualClock()
        self._bucket = WriteBudget(total_bytes / num_accesses * DAY_S, self._clock, BURST_SHARE * num_accesses / DAY_S)

    @property
    def level(self) -> float:
        return self._bucket.level

    def asked_for(self, num_blocks: int) -> None:
        self._clock.advance(num_blocks)

    def draw(self, num_bytes: int) -> bool:
        return self._bucket.draw(num_bytes)


def fingerprints(num_blocks: int) -> FingerprintArray:
    """[num_blocks], as a hash would give them."""
    return mixed(np.arange(1, num_blocks + 1, dtype=np.uint64))


class TwoTiers:
    """Plays traces through a host and a flash; `record_bytes` is what a block draws from `budget`, if there is one."""

    def __init__(
        self,
        host: Host,
        flash: SimFlash,
        admission: AdmissionPolicy,
        budget: Budget | None = None,
        record_bytes: int = 1,
    ) -> None:
        self._host, self._flash, self._admission, self._budget = host, flash, admission, budget
        self._record_bytes = record_bytes
        self._names = fingerprints(len(host.here))
        self._unread = np.zeros(len(host.here), np.bool_)  # on flash, and not read since they were written

    def replay(self, trace: Trace) -> Counts:
        counts = Counts()
        for request in range(len(trace)):
            chain, turn = trace.chain(request), int(trace.turns[request])
            if self._budget is not None:
                self._budget.asked_for(len(chain))
            self._look_up(chain, turn, counts)
            for start in range(0, len(chain), self._host.window):
                self._fill(chain[start : start + self._host.window], start, turn, counts)
        return counts

    def _look_up(self, chain: IntArray, turn: int, counts: Counts) -> None:
        in_host, on_flash = self._host.here[chain], self._flash.holds(chain)
        known = in_host | on_flash
        num_hits = len(chain) if known.all() else int(known.argmin())
        num_host = int(in_host[:num_hits].sum())
        counts.accesses += len(chain)
        counts.host_hits += num_host
        counts.flash_hits += num_hits - num_host
        counts.computed += len(chain) - num_hits
        read = chain[:num_hits][~in_host[:num_hits]]
        counts.useful_writes += int(self._unread[read].sum())
        self._unread[read] = False
        self._host.hotness.touch(chain[in_host], turn)
        self._flash.touch(chain[on_flash], turn)
        self._admission.observe(self._names[chain])

    def _fill(self, window: IntArray, start: int, turn: int, counts: Counts) -> None:
        """Bring a window of a chain into host memory, computed or promoted."""
        held = self._host.here[window]
        new = np.flatnonzero(~held)
        if len(new):
            self._demote(self._host.make_room(len(new), window[held]), turn, counts)
            self._host.add(window[new], start + new, turn)

    def _demote(self, leaving: IntArray, turn: int, counts: Counts) -> None:
        dirty = leaving[~self._flash.holds(leaving)]
        if not len(dirty):
            return
        features = self._host.hotness.features(dirty, self._names[dirty])
        level = self._budget.level if self._budget is not None else 1.0
        admitted = self._admission.admit(features, self._flash.incumbents(), level)
        counts.refused["policy"] += int((~admitted).sum())
        wanted = np.flatnonzero(admitted)
        if self._budget is not None:
            afforded = [row for row in wanted.tolist() if self._budget.draw(self._record_bytes)]
            counts.refused["budget"] += len(wanted) - len(afforded)
            wanted = np.array(afforded, np.int64)
        self._flash.append(dirty[wanted], features.position[wanted], turn)
        self._unread[dirty[wanted]] = True

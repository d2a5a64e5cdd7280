"""Protocols of the policies. They see arrays of features and return choices; never bytes, clocks, locks or Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hifc_ray.messages import Weights
from hifc_ray.types import AnyArray, BoolArray, FingerprintArray, FloatArray, IntArray


@dataclass(frozen=True)
class Features:
    """What is known of n blocks, a row each. Times are in block accesses, so that nothing depends on the wall clock."""

    last_access: IntArray  # [n], count of accesses of the tier when this block was last asked for
    previous_access: IntArray  # [n], the access before that; -1: none (LRU-2)
    frequency: FloatArray  # [n], decayed count of accesses, as of now
    attention: FloatArray  # [n], share of softmax mass relative to an even share; NaN: unknown
    position: IntArray  # [n], index of the block in its sequence
    turn: IntArray  # [n], conversation turn that last asked for it
    foreign: BoolArray  # [n], of a namespace that no live engine uses: leaves first
    now: int  # count of accesses of the tier
    fingerprint: FingerprintArray = None  # type: ignore[assignment]  # [n], first 8 bytes of the key; zeros: not given

    def __post_init__(self) -> None:
        if self.fingerprint is None:
            object.__setattr__(self, "fingerprint", np.zeros(len(self), np.uint64))

    def __len__(self) -> int:
        return len(self.last_access)

    @classmethod
    def join(cls, parts: Sequence[Features]) -> Features:
        """The features of all parts, of which there is one at least, as of the last one's now."""
        names = [field.name for field in fields(cls) if field.name != "now"]
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return cls(**columns, now=parts[-1].now)

    def take(self, rows: IntArray | BoolArray) -> Features:
        """The features of these rows, in this order."""
        return Features(
            last_access=self.last_access[rows],
            previous_access=self.previous_access[rows],
            frequency=self.frequency[rows],
            attention=self.attention[rows],
            position=self.position[rows],
            turn=self.turn[rows],
            foreign=self.foreign[rows],
            now=self.now,
            fingerprint=self.fingerprint[rows],
        )


class Valuing(Protocol):
    """Says what blocks are worth, as every eviction policy does."""

    def values(self, features: Features) -> npt.NDArray[np.float64]:
        """[n], what each block is worth keeping: the higher, the longer it stays."""


@runtime_checkable
class EvictionPolicy(Protocol):
    """Chooses which resident blocks leave a tier."""

    name: str

    def values(self, features: Features) -> npt.NDArray[np.float64]:
        """[n], what each block is worth keeping: the higher, the longer it stays. Foreign or not makes no odds."""

    def victims(self, features: Features, count: int) -> IntArray:
        """At most `count` distinct rows, the first to leave first.

        Rows of a foreign namespace come before others; then those with the lowest `values`.
        """

    def use(self, weights: Weights) -> None:
        """Take newer weights; a policy without weights takes no notice."""


@runtime_checkable
class AdmissionPolicy(Protocol):
    """Decides which blocks that leave host memory may be written to flash. The caller holds the lock."""

    name: str

    def observe(self, fingerprints: FingerprintArray) -> None:
        """These blocks were looked up, in this order, whatever came of it."""

    def admit(self, candidates: Features, incumbents: Features, budget_level: float) -> BoolArray:
        """[len(candidates)], True where the block may be written.

        `incumbents` are blocks on flash that would leave next, a sample of them; empty while flash has room.
        `budget_level` is how full the bucket of the write budget is, in [0, 1]; 1.0 without a budget.
        """

    def state(self) -> Mapping[str, AnyArray]:
        """What it has learned, as copies of arrays, for a checkpoint."""

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Go on from a checkpoint; one of another size or policy is left aside as if there were none."""

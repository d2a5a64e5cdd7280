"""Protocols of the policies. They see arrays of features and return choices; never bytes, clocks, locks or Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hifc_ray.messages import Weights
from hifc_ray.types import BoolArray, FloatArray, IntArray


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

    def __len__(self) -> int:
        return len(self.last_access)


@runtime_checkable
class EvictionPolicy(Protocol):
    """Chooses which resident blocks leave a tier."""

    name: str

    def victims(self, features: Features, count: int) -> IntArray:
        """At most `count` distinct rows, the first to leave first. Rows of a foreign namespace come before others."""

    def use(self, weights: Weights) -> None:
        """Take newer weights; a policy without weights takes no notice."""


@runtime_checkable
class AdmissionPolicy(Protocol):
    """Decides which blocks that leave host memory may be written to flash."""

    name: str

    def admit(self, features: Features) -> BoolArray:
        """[n], True where the block may be written."""

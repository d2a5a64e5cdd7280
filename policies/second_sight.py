"""Second sight: a block is written when it is seen for the second time.

A block that leaves host memory is written if it was asked for again while it was there. If not, it is refused, and a
ghost remembers it; when it comes back (it was computed again) within as many refusals as flash has blocks, it is
written (the "reject first" admission of CacheLib: Berg et al., OSDI 2020). Good where most blocks are never asked for
again; wrong where most reuse is the first reuse.
"""

from __future__ import annotations

from collections.abc import Mapping

from hifc_ray.policies.ghost import Ghost
from hifc_ray.policy import Features
from hifc_ray.types import AnyArray, BoolArray, FingerprintArray


class SecondSight:
    """`AdmissionPolicy` with a ghost of as many blocks as flash has room for."""

    name = "second-sight"

    def __init__(self, num_blocks: int) -> None:
        self._ghost = Ghost(num_blocks)

    def observe(self, fingerprints: FingerprintArray) -> None:
        """Host memory counts what is asked for while it is there, the ghost what was refused; nothing else counts."""

    def admit(self, candidates: Features, incumbents: Features, budget_level: float) -> BoolArray:
        admitted = (candidates.previous_access >= 0) | self._ghost.seen(candidates.fingerprint)
        self._ghost.add(candidates.fingerprint[~admitted])
        return admitted

    def state(self) -> Mapping[str, AnyArray]:
        return self._ghost.state()

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        self._ghost.restore(dict(state))

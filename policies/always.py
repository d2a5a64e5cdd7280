"""Admission of every block: flash then holds what left host memory last, and its byte limit alone bounds it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hifc_ray.policy import Features
from hifc_ray.types import AnyArray, BoolArray, FingerprintArray


class Always:
    """`AdmissionPolicy` that keeps nothing off flash."""

    name = "always"

    def observe(self, fingerprints: FingerprintArray) -> None:
        """Nothing that is seen changes the answer."""

    def admit(self, candidates: Features, incumbents: Features, budget_level: float) -> BoolArray:
        return np.ones(len(candidates), np.bool_)

    def state(self) -> Mapping[str, AnyArray]:
        return {}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Nothing is learned."""

"""Admission: which blocks that leave host memory may be written to flash.

`always` admits every block: flash then holds what left host memory last, and the byte limit alone bounds it.
"""

from __future__ import annotations

import numpy as np

from hifc_ray.policy import Features
from hifc_ray.types import BoolArray


class Always:
    """`AdmissionPolicy` that keeps nothing off flash."""

    name = "always"

    def admit(self, features: Features) -> BoolArray:
        return np.ones(len(features), np.bool_)

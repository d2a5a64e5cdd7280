"""Names to policies. Read by the roof and by actors only: what uses a policy gets it handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from hifc_ray.errors import ConfigError
from hifc_ray.policies.always import Always
from hifc_ray.policies.budgeted import Budgeted
from hifc_ray.policies.lru import Lru
from hifc_ray.policies.retention import Retention
from hifc_ray.policies.second_sight import SecondSight
from hifc_ray.policies.tinylfu import TinyLfu
from hifc_ray.policy import AdmissionPolicy, EvictionPolicy

F = TypeVar("F")

EVICTION: Mapping[str, Callable[[], EvictionPolicy]] = {"lru": Lru, "retention": Retention}
ADMISSION: Mapping[str, Callable[[EvictionPolicy, int], AdmissionPolicy]] = {
    "always": lambda eviction, num_blocks: Always(),
    "second-sight": lambda eviction, num_blocks: SecondSight(num_blocks),
    "tinylfu": lambda eviction, num_blocks: TinyLfu(num_blocks),
    "budgeted": lambda eviction, num_blocks: Budgeted(eviction),
}
USUAL_BLOCKS = 1 << 16  # of flash, where its size is not known


def eviction(name: str) -> EvictionPolicy:
    """A new eviction policy. Raises `ConfigError` that lists the names there are."""
    return _known(EVICTION, name, "policy.eviction")()


def admission(name: str, eviction: EvictionPolicy | None = None, num_blocks: int = USUAL_BLOCKS) -> AdmissionPolicy:
    """A new admission policy for a flash of `num_blocks` blocks, valued by `eviction` (by default LRU).

    Raises `ConfigError` that lists the names there are.
    """
    return _known(ADMISSION, name, "policy.admission")(eviction or Lru(), num_blocks)


def _known(factories: Mapping[str, F], name: str, what: str) -> F:
    if name not in factories:
        raise ConfigError(f"{what} is {name!r}; allowed: {', '.join(sorted(factories))}")
    return factories[name]

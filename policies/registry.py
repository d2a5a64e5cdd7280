"""Names to policies. Read by the roof and by actors only: what uses a policy gets it handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from hifc_ray.errors import ConfigError
from hifc_ray.policies.always import Always
from hifc_ray.policies.lru import Lru
from hifc_ray.policies.retention import Retention
from hifc_ray.policy import AdmissionPolicy, EvictionPolicy

P = TypeVar("P")

EVICTION: Mapping[str, Callable[[], EvictionPolicy]] = {"lru": Lru, "retention": Retention}
ADMISSION: Mapping[str, Callable[[], AdmissionPolicy]] = {"always": Always}


def eviction(name: str) -> EvictionPolicy:
    """A new eviction policy. Raises `ConfigError` that lists the names there are."""
    return _make(EVICTION, name, "policy.eviction")


def admission(name: str) -> AdmissionPolicy:
    """A new admission policy. Raises `ConfigError` that lists the names there are."""
    return _make(ADMISSION, name, "policy.admission")


def _make(factories: Mapping[str, Callable[[], P]], name: str, what: str) -> P:
    if name not in factories:
        raise ConfigError(f"{what} is {name!r}; allowed: {', '.join(sorted(factories))}")
    return factories[name]()

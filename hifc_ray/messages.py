"""What crosses between actors: frozen, versioned values. Reports and weights between tiers and the policy actor,
calls between engines and tiers, and what is purged."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from hifc_ray.types import KEY_BYTES, GenerationArray, Namespace, Owner, SlotArray

PROTOCOL_VERSION = 2  # rises when an engine and a tier of different releases would misunderstand each other


@dataclass(frozen=True)
class Weights:
    """(α, β, γ) of the retention value: access frequency, attention weight, position decay. Version 0: the defaults."""

    alpha: float = 1.0
    beta: float = 0.0
    gamma: float = 0.1
    version: int = 0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"weight {name} is {value}; it must be finite and not negative")


@dataclass(frozen=True)
class Report:
    """Statistics of one node since its start; the policy actor keeps the newest of each node."""

    node: str
    incarnation: int
    sequence: int  # rises with each report of an incarnation
    accesses: int
    hits: int
    evictions: int
    weights_version: int


@dataclass(frozen=True)
class Held:
    """What a holder has at the moment of a call: leased in a lookup, reserved in a call about grants.

    Slots of that holder that are not named here are taken back.
    """

    slots: SlotArray = field(default_factory=lambda: np.empty(0, np.int64))
    generations: GenerationArray = field(default_factory=lambda: np.empty(0, np.uint64))


@dataclass(frozen=True)
class CallHeader:
    """Goes with each mutating call. Calls of a holder are numbered; one that arrives after a later one is refused."""

    holder: int  # from `TierInfo`
    incarnation: int  # of the tier, as the holder knows it
    sequence: int


@dataclass(frozen=True)
class GrantName:
    """Which grant a commit is for."""

    incarnation: int
    sequence: int


@dataclass(frozen=True)
class TierInfo:
    """What a tier tells an engine that attaches."""

    protocol: int
    incarnation: int
    holder: int  # names the caller in its calls, as long as it is attached to this incarnation
    arena_path: str
    holder_path: str  # the holder keeps an flock on this file for life
    node: str
    window: int  # the most slots that one lookup leases


@dataclass(frozen=True)
class Purge:
    """What is to be forgotten: all of one tenant, of one conversation (tags that `keys` makes) or of one namespace.

    A block that several conversations begin with is of the one that stored it. Raises `ValueError` unless it is one.
    """

    tenant: int | None = None
    session: int | None = None
    namespace: Namespace | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("tenant", "session", "namespace") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"a purge names {' and '.join(given) or 'nothing'}; allowed: tenant, session or namespace")
        for tag in (self.tenant, self.session):
            if tag is not None and not 0 <= tag < 1 << 64:
                raise ValueError(f"tag {tag} is not a uint64")
        if self.session == 0:
            raise ValueError("session 0 is no conversation; allowed: the tag of a name")
        if self.namespace is not None and len(self.namespace) != KEY_BYTES:
            raise ValueError(f"a namespace has {KEY_BYTES} bytes; this one has {len(self.namespace)}")

    def covers(self, namespace: Namespace, owner: Owner) -> bool:
        """Is a block of this namespace and owner to be forgotten?"""
        if self.namespace is not None:
            return namespace == self.namespace
        return owner.session == self.session if self.tenant is None else owner.tenant == self.tenant


@dataclass(frozen=True)
class PurgeReport:
    """What a purge took out of a node's tiers."""

    host_blocks: int = 0
    flash_blocks: int = 0
    flash_bytes: int = 0
    unfinished: bool = False  # a write to flash hangs: not served, but a restart before it returns may bring some back

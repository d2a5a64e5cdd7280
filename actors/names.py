"""Names of actors and of shared memory. What is of a node is named by its id: hosts and sessions can be shared."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from hifc_ray import env
from hifc_ray.actors.calls import translated

NAMESPACE = "hifc"
ROLE_LABEL = "hifc.io/role"
TIER_ROLES = ("gpu", "cache")

POLICY = "hifc-policy"
MANAGER = "hifc-manager"
ENGINE_PREFIX = "hifc-engine-"


def tier(node_id: str) -> str:
    """Actor name of a node's cache tier."""
    return f"hifc-tier-{node_id}"


def engine(model: str, number: int) -> str:
    """Actor name of an inference actor."""
    return f"{ENGINE_PREFIX}{model.strip('/').replace('/', '-')}-{number}"


def arena_path(session: str, namespace: str, node_id: str) -> Path:
    """The arena of a node: the same after a restart of its actor, another for every cluster, namespace and node."""
    cluster = blake2b(f"{session}\0{namespace}".encode(), digest_size=4).hexdigest()
    return env.shm_dir() / f"hifc-{cluster}-{node_id[:12]}"


def find(name: str, namespace: str) -> Any | None:
    """Handle of a live named actor, or None. Raises `TierUnavailable` if the cluster's head cannot say."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None
    except RayError as error:  # the head does not answer: it may know the actor, but nobody can say
        raise translated(error) from error

"""One Ray for the session, and a stage for each test: a namespace of its own, whose actors end with the test."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

    from tests.fakes.stage import Stage

# Node death is noticed in seconds; no cluster is started by a call that comes too late.
_SETTINGS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_TMPDIR": "",
}


@pytest.fixture(scope="session")
def ray_cluster(shm_dir_of_the_session: Path) -> Iterator[Cluster]:
    import ray
    from ray.cluster_utils import Cluster

    before = {name: os.environ.get(name) for name in _SETTINGS}
    short = tempfile.mkdtemp(prefix="hr", dir="/tmp")
    os.environ.update(_SETTINGS | {"RAY_TMPDIR": short})
    head = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray.init(address=cluster.address, namespace="tests", logging_level="error", log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(short, ignore_errors=True)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a tiny random model with a tokenizer."""
    from tests.fakes.model_folder import save_model

    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def stage(ray_cluster: Cluster, model: str, tmp_path: Path) -> Iterator[Stage]:
    yield from _stage(model, tmp_path)


@pytest.fixture(scope="module")
def shared_stage(ray_cluster: Cluster, model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One stage for a whole module: engines take seconds to start."""
    yield from _stage(model, tmp_path_factory.mktemp("stage"))


def _stage(model: str, directory: Path) -> Iterator[Stage]:
    from tests.fakes.stage import Stage

    stage = Stage(f"t{secrets.token_hex(4)}", directory, model)
    try:
        yield stage
    finally:
        stage.clear()

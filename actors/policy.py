"""The policy actor: takes the nodes' reports, keeps the newest of each, and answers with the weights of the moment."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import ray

from hifc_ray.messages import Report, Weights
from hifc_ray.policies import learner
from hifc_ray.reports import reports_from_arrow


class PolicyActor:
    """A mailbox around the learner. Nothing waits for it; what it knows comes back with the next reports."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, Report] = {}
        self._weights = Weights()

    def __repr__(self) -> str:
        return "Policy"

    @ray.method(concurrency_group="control")
    def weights(self) -> Weights:
        """The weights of the moment."""
        return self._weights

    @ray.method(concurrency_group="control")
    def nodes(self) -> dict[str, Any]:
        """The newest report of each node."""
        with self._lock:
            return dict(self._newest)

    def report(self, batch: pa.RecordBatch) -> Weights:
        """Take a batch of reports; returns the weights to use. Raises `ConfigError` for a batch of another shape."""
        reports = reports_from_arrow(batch)
        with self._lock:
            newest = learner.newest(self._newest, reports)
            self._weights = learner.learn(self._weights, self._newest, newest)
            self._newest = newest
            return self._weights

"""From reports of nodes to weights: pure functions, so that the policy actor is only a mailbox around them.

In this release nothing is learned yet: the numbers stay what they are, and only their version rises when a node has
reported something new. What reports and weights travel through is real, so that a learner has one place to go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hifc_ray.messages import Report, Weights


def newest(known: Mapping[str, Report], arrived: Iterable[Report]) -> dict[str, Report]:
    """The newest report of each node, `arrived` in the order of arrival.

    Reports of one incarnation are ordered by their sequence. Incarnations have no order: the one heard last is alive.
    """
    result = dict(known)
    for report in arrived:
        held = result.get(report.node)
        if held is None or held.incarnation != report.incarnation or held.sequence < report.sequence:
            result[report.node] = report
    return result


def learn(weights: Weights, before: Mapping[str, Report], after: Mapping[str, Report]) -> Weights:
    """The weights after the newest reports of the nodes went from `before` to `after`.

    The new version is above every version that a node says it uses: a policy actor that lost its memory then goes on
    from there, and nodes take its weights.
    """
    if all(before.get(node) == report for node, report in after.items()):
        return weights
    in_use = max(report.weights_version for report in after.values())
    return replace(weights, version=1 + max(weights.version, in_use))

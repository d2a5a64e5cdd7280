"""The learner as pure functions: which report is the newest, and when the version rises."""

from __future__ import annotations

from hifc_ray.messages import Report, Weights
from hifc_ray.policies.learner import learn, newest


def report(node: str = "a", incarnation: int = 7, sequence: int = 1, weights_version: int = 0) -> Report:
    return Report(node, incarnation, sequence, accesses=10, hits=4, evictions=2, weights_version=weights_version)


def test_the_newest_of_each_node_is_kept() -> None:
    known = newest({}, [report("a", sequence=2), report("a", sequence=1), report("b")])
    assert known == {"a": report("a", sequence=2), "b": report("b")}


def test_a_restarted_node_is_heard_whatever_its_number() -> None:
    known = newest({"a": report(incarnation=7, sequence=90)}, [report(incarnation=3, sequence=1)])
    assert known["a"].incarnation == 3


def test_what_was_known_is_left_as_it_is() -> None:
    known = {"a": report()}
    newest(known, [report(sequence=5), report("b")])
    assert known == {"a": report()}


def test_the_version_rises_with_news_and_the_numbers_stay() -> None:
    weights = Weights(0.5, 0.2, 0.3, version=4)
    assert learn(weights, {}, {"a": report()}) == Weights(0.5, 0.2, 0.3, version=5)


def test_without_news_nothing_changes() -> None:
    weights = Weights(version=4)
    assert learn(weights, {}, {}) is weights
    assert learn(weights, {"a": report()}, {"a": report()}) is weights


def test_a_learner_that_forgot_its_version_goes_on_above_the_one_in_use() -> None:
    assert learn(Weights(), {}, {"a": report(weights_version=41), "b": report("b")}).version == 42

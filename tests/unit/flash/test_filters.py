from __future__ import annotations

import struct

import numpy as np
import pytest

from hifc_ray.clock import ManualClock
from hifc_ray.errors import CorruptRecord, NewerFormat
from hifc_ray.flash import filters
from hifc_ray.flash.filters import KeyFilter, load_segment_filter, segment_filter
from hifc_ray.flash.format import put_checksum, stamp
from hifc_ray.flash.key_table import KeyArray
from hifc_ray.flash.node_filter import NodeFilter, Summary

UUID = bytes(range(16))


def keys(num_keys: int, seed: int = 0) -> KeyArray:
    return np.random.default_rng(seed).integers(0, 1 << 64, (num_keys, 4), np.uint64)


@pytest.mark.parametrize("num_keys", [0, 1, 1000, filters._BATCH + 5])
def test_a_filter_never_denies_what_it_holds(num_keys: int) -> None:
    found = load_segment_filter(segment_filter(keys(num_keys), 0.01, UUID, 7), UUID, 7)
    assert found.num_keys == num_keys
    assert found.may_hold(keys(num_keys)).tolist() == [True] * num_keys


@pytest.mark.parametrize("rate", [0.1, 0.01, 0.001])
def test_a_filter_keeps_to_its_rate_and_size(rate: float) -> None:
    data = segment_filter(keys(20_000), rate, UUID, 7)
    assert len(data) % 4096 == 0
    assert len(data) <= 20_000 * -np.log(rate) / np.log(2) ** 2 / 8 + 4096 + 200
    wrong = load_segment_filter(data, UUID, 7).may_hold(keys(100_000, seed=1)).mean()
    assert 0.7 * rate < wrong < 1.3 * rate


def test_the_first_16_bytes_decide_with_their_sign() -> None:
    """As `int.from_bytes(key[:16], "little", signed=True)`: filters are read by other nodes and later releases."""
    rows = keys(200)
    found = KeyFilter.of_size(200, 1e-9)
    found.add(rows)
    numbers = [int.from_bytes(row.tobytes()[:16], "little", signed=True) for row in rows]
    assert min(numbers) < 0 < max(numbers)
    assert all(number in found.bloom for number in numbers)
    other_tails = rows.copy()
    other_tails[:, 2:] += np.uint64(1)
    assert found.may_hold(other_tails).all()
    for half in (0, 1):
        other = rows.copy()
        other[:, half] += np.uint64(1)
        assert not found.may_hold(other).any()


def test_only_the_segments_own_filter_is_believed() -> None:
    data = segment_filter(keys(10), 0.01, UUID, 7)
    with pytest.raises(CorruptRecord, match="it is that of segment 7"):
        load_segment_filter(data, UUID, 8)
    with pytest.raises(CorruptRecord, match="it is that of segment 7"):
        load_segment_filter(data, bytes(16), 7)


def test_every_damaged_byte_is_noticed() -> None:
    data = segment_filter(keys(10), 0.01, UUID, 7)
    for at in range(0, len(data), 13):
        with pytest.raises((CorruptRecord, NewerFormat)):
            load_segment_filter(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], UUID, 7)
    for length in (0, 8, 40, 4088, 4095):
        with pytest.raises(CorruptRecord):
            load_segment_filter(data[:length], UUID, 7)


@pytest.mark.parametrize("body_bytes", [0, 7, 8, 1 << 40])
def test_a_length_that_cannot_be_is_refused_under_a_good_checksum(body_bytes: int) -> None:
    data = bytearray(segment_filter(keys(10), 0.01, UUID, 7))
    struct.pack_into("<Q", data, 16 + 16 + 8 + 8, body_bytes)
    put_checksum(memoryview(data))
    with pytest.raises(CorruptRecord):
        load_segment_filter(memoryview(data), UUID, 7)


def test_a_head_without_the_rest_is_refused_under_a_good_checksum() -> None:
    data = bytearray(stamp(filters.MAGIC) + bytes(8))
    put_checksum(memoryview(data))
    with pytest.raises(CorruptRecord, match="only 24 bytes"):
        load_segment_filter(memoryview(data), UUID, 7)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(50.0)


@pytest.fixture
def node(clock: ManualClock) -> NodeFilter:
    return NodeFilter(0.01, clock)


def test_a_new_node_holds_nothing(node: NodeFilter) -> None:
    assert not node.may_hold(keys(1000)).any()
    assert not node.needs_rebuild
    assert (node.version, node.num_keys, node.num_dead) == (0, 0, 0)


def test_it_is_rebuilt_when_it_is_over_its_size(node: NodeFilter, clock: ManualClock) -> None:
    rows = keys(8001)
    node.rebuild(lambda: rows[:4])
    node.add(rows[4:64])
    assert not node.needs_rebuild
    node.add(rows[64:65])
    assert node.needs_rebuild
    clock.advance(9.0)
    assert node.age_s == 9.0
    node.rebuild(lambda: rows[:6400])
    assert (node.version, node.num_keys, node.age_s) == (2, 6400, 0.0)
    node.add(rows[6400:8000])
    assert not node.needs_rebuild
    node.add(rows[8000:])
    assert node.needs_rebuild
    assert node.may_hold(rows).all()


def test_it_is_rebuilt_when_a_tenth_is_dead(node: NodeFilter) -> None:
    rows = keys(1000)
    node.rebuild(lambda: rows)
    node.remove(99)
    assert not node.needs_rebuild
    node.remove(1)
    assert node.needs_rebuild
    node.rebuild(lambda: rows[100:])
    assert not node.needs_rebuild
    assert node.num_dead == 0
    assert node.may_hold(rows[:100]).mean() < 0.1
    assert node.may_hold(rows[100:]).all()


def test_what_is_added_during_a_rebuild_is_in_it(node: NodeFilter) -> None:
    rows = keys(300)
    node.add(rows[:50])

    def living() -> KeyArray:
        found = rows[:50]  # a copy of the index, and only then another thread stores
        node.add(rows[50:])
        node.remove(3)
        return found

    node.rebuild(living)
    assert node.may_hold(rows).all()
    assert (node.num_keys, node.num_dead, node.version) == (300, 3, 1)
    node.rebuild(lambda: rows[:50])
    assert node.num_keys == 50, "what came late is not kept for ever"


def test_one_rebuild_at_a_time(node: NodeFilter) -> None:
    def living() -> KeyArray:
        node.rebuild(lambda: pytest.fail("a second one"))
        return keys(5)

    node.rebuild(living)
    assert node.version == 1


def test_a_rebuild_that_fails_leaves_the_old_one(node: NodeFilter) -> None:
    node.add(keys(10))
    with pytest.raises(RuntimeError):
        node.rebuild(lambda: (_ for _ in ()).throw(RuntimeError))
    assert node.may_hold(keys(10)).all()
    node.rebuild(lambda: keys(10))
    assert node.version == 1


def test_another_node_gets_it_in_two_bytes_a_block(node: NodeFilter) -> None:
    rows = keys(20_000)
    node.rebuild(lambda: rows)
    node.remove(1999)  # as far as it goes without a rebuild
    data = node.to_bytes()
    assert len(data) <= 2 * (20_000 - 1999)
    summary = Summary.from_bytes(data)
    assert summary.version == 1
    assert summary.may_hold(rows).all()
    assert summary.may_hold(keys(50_000, seed=3)).mean() < 0.013
    node.add(keys(1, seed=9))
    assert not summary.may_hold(keys(200, seed=9)[:1]).all(), "what was sent stays as it was"


def test_a_summary_is_no_segments_filter(node: NodeFilter) -> None:
    with pytest.raises(CorruptRecord):
        Summary.from_bytes(segment_filter(keys(10), 0.01, UUID, 7))
    with pytest.raises(CorruptRecord):
        load_segment_filter(node.to_bytes(), bytes(16), 0)
    data = bytearray(node.to_bytes())
    data[60] ^= 4
    with pytest.raises(CorruptRecord, match="checksum"):
        Summary.from_bytes(memoryview(data))


def test_its_rate_of_false_positives_is_measured(node: NodeFilter) -> None:
    rng = np.random.default_rng(77)
    assert node.measured_fpr(1000, rng) == 0.0
    node.rebuild(lambda: keys(8000))
    node.add(keys(2000, seed=1))
    assert 0.005 < node.measured_fpr(50_000, rng) < 0.013
    node.add(keys(20_000, seed=2))
    assert node.measured_fpr(50_000, rng) > 0.1, "far over its size it shows"

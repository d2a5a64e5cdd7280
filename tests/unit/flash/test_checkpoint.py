from __future__ import annotations

import errno
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from hifc_ray.flash import FaultyDevice, FileDevice, MemoryDevice, checkpoint
from hifc_ray.flash.format import CHECKPOINT_NAME, FORMAT_VERSION, TEMP_SUFFIX, is_ours, is_temp, put_checksum, stamp
from hifc_ray.stats import Stats
from hifc_ray.types import AnyArray, Tier

NOW_S = 1.7e9
DAY_S = 86_400.0
ARRAYS: dict[str, AnyArray] = {
    "fingerprints": np.arange(1000, dtype=np.uint64),
    "values": np.linspace(0, 1, 7, dtype=np.float32).reshape(7, 1),
    "flags": np.array([True, False]),
    "keys": np.array([b"a" * 32, b"b" * 32]),
    "none": np.zeros(0, np.int64),
}
NOTES = {"budget": {"share": 0.25}, "weights": [0.5, 0.0, 0.5], "version": 3}


@pytest.fixture
def device() -> FaultyDevice:
    return FaultyDevice(MemoryDevice())


@pytest.fixture
def stats() -> Stats:
    return Stats()


def refused(stats: Stats) -> dict[str, float]:
    return stats.snapshot()


def test_what_is_saved_is_loaded(tmp_path: Path, stats: Stats) -> None:
    written = checkpoint.save(FileDevice(tmp_path), ARRAYS, NOTES, NOW_S)
    assert written == (tmp_path / CHECKPOINT_NAME).stat().st_size
    found = checkpoint.load(FileDevice(tmp_path), DAY_S, NOW_S + 60, stats)
    assert found is not None
    assert found.notes == NOTES
    assert found.age_s == 60
    assert set(found.arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert found.arrays[name].dtype == array.dtype
        assert np.array_equal(found.arrays[name], array)
    assert refused(stats) == {}


def test_without_one_nothing_is_refused(device: FaultyDevice, stats: Stats) -> None:
    assert checkpoint.load(device, DAY_S, NOW_S, stats) is None
    assert refused(stats) == {}


@pytest.mark.parametrize(
    ("age_s", "reason"),
    [(DAY_S, None), (DAY_S + 1, "old"), (0.0, None), (-299.0, None), (-301.0, "future"), (-10 * DAY_S, "future")],
)
def test_it_is_bounded_in_age(device: FaultyDevice, stats: Stats, age_s: float, reason: str | None) -> None:
    checkpoint.save(device, ARRAYS, NOTES, NOW_S)
    found = checkpoint.load(device, DAY_S, NOW_S + age_s, stats)
    assert (found is None) == (reason is not None)
    assert refused(stats) == ({f"checkpoint_refused{{flash,{reason}}}": 1} if reason else {})


def test_an_age_that_is_no_number_is_refused(device: FaultyDevice, stats: Stats) -> None:
    checkpoint.save(device, ARRAYS, NOTES, float("nan"))
    assert checkpoint.load(device, DAY_S, NOW_S, stats) is None


def test_every_damage_is_noticed(device: FaultyDevice, stats: Stats) -> None:
    size = checkpoint.save(device, {"a": np.arange(20)}, {}, NOW_S)
    data = device.get(CHECKPOINT_NAME)
    damaged = [data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :] for at in range(0, size, 7)]
    damaged += [data[:length] for length in (0, 1, 16, 30, 48, size // 2, size - 1)]
    damaged += [data + b"\0", bytes(size)]
    for bad in damaged:
        device.put(CHECKPOINT_NAME, bad)
        assert checkpoint.load(device, DAY_S, NOW_S, stats) is None
    assert refused(stats) == {"checkpoint_refused{flash,corrupt}": len(damaged)}


@pytest.mark.parametrize("at", [24, 32])
def test_lengths_that_do_not_add_up_are_damage_under_a_good_checksum(
    device: FaultyDevice, stats: Stats, at: int
) -> None:
    checkpoint.save(device, ARRAYS, NOTES, NOW_S)
    data = bytearray(device.get(CHECKPOINT_NAME))
    struct.pack_into("<Q", data, at, 1 << 40)
    put_checksum(memoryview(data))
    device.put(CHECKPOINT_NAME, bytes(data))
    assert checkpoint.load(device, DAY_S, NOW_S, stats) is None
    assert stats.get("checkpoint_refused", reason="corrupt") == 1


def test_a_head_without_the_rest_is_damage_under_a_good_checksum(device: FaultyDevice, stats: Stats) -> None:
    data = bytearray(stamp(checkpoint.MAGIC) + bytes(8))
    put_checksum(memoryview(data))
    device.put(CHECKPOINT_NAME, bytes(data))
    assert checkpoint.load(device, DAY_S, NOW_S, stats) is None
    assert stats.get("checkpoint_refused", reason="corrupt") == 1


def test_that_of_a_newer_release_is_left_alone(device: FaultyDevice, stats: Stats) -> None:
    checkpoint.save(device, ARRAYS, NOTES, NOW_S)
    data = bytearray(device.get(CHECKPOINT_NAME))
    newer = FORMAT_VERSION + 1
    struct.pack_into("<II", data, 8, newer, newer ^ 0xFFFFFFFF)
    device.put(CHECKPOINT_NAME, bytes(data))
    assert checkpoint.load(device, DAY_S, NOW_S, stats) is None
    assert stats.get("checkpoint_refused", tier=Tier.FLASH, reason="newer") == 1


def test_a_device_that_cannot_read_costs_only_history(device: FaultyDevice, stats: Stats) -> None:
    checkpoint.save(device, ARRAYS, NOTES, NOW_S)
    device.fail("get", errno.EIO)
    assert checkpoint.load(device, DAY_S, NOW_S, stats) is None
    assert stats.get("checkpoint_refused", reason="io") == 1
    assert checkpoint.load(device, DAY_S, NOW_S, stats) is not None


def test_one_that_cannot_be_written_leaves_the_last(device: FaultyDevice, stats: Stats) -> None:
    checkpoint.save(device, ARRAYS, {"n": 1}, NOW_S)
    device.no_space()
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(device, ARRAYS, {"n": 2}, NOW_S)
    found = checkpoint.load(device, DAY_S, NOW_S, stats)
    assert found is not None
    assert found.notes == {"n": 1}


def test_no_objects_go_in_and_none_come_out(device: FaultyDevice, stats: Stats) -> None:
    with pytest.raises(ValueError, match="'things' of a checkpoint is of object; allowed"):
        checkpoint.save(device, {"things": np.array([{}, None], dtype=object)}, {}, NOW_S)
    assert device.calls["put"] == 0
    checkpoint.save(device, {"a": np.zeros(2)}, {}, NOW_S)
    pickled = pickle.dumps(ARRAYS)
    data = bytearray(device.get(CHECKPOINT_NAME)[:40] + pickled + bytes(8))
    struct.pack_into("<QQ", data, 24, 0, len(pickled))
    put_checksum(memoryview(data))
    device.put(CHECKPOINT_NAME, bytes(data))
    assert checkpoint.load(device, DAY_S, NOW_S, stats) is None
    assert stats.get("checkpoint_refused", reason="corrupt") == 1


def test_the_file_is_ours_and_so_is_half_of_it() -> None:
    assert is_ours(CHECKPOINT_NAME)
    assert is_temp(CHECKPOINT_NAME + TEMP_SUFFIX)
    assert not is_ours("my.checkpoint")

from __future__ import annotations

import base64
import errno
import json
import threading
from dataclasses import replace

import pytest

from hifc_ray.clock import ManualClock
from hifc_ray.flash import FaultyDevice, MemoryDevice
from hifc_ray.flash.format import FAULTS_NAME, TEMP_SUFFIX, is_ours, is_temp
from hifc_ray.flash.quarantine import MAX_BYTES, MAX_FAULTS, MAX_TEXT, Fault, Quarantine, page_text

FAULT = Fault(
    wall_s=1.7e9,
    segment=3,
    uuid="ab" * 16,
    offset=8192,
    header_bytes=4096,
    payload_bytes=12288,
    key="cd" * 32,
    namespace="ef" * 32,
    reason="stripe",
    detail="stripe 2 does not match",
    header=page_text(bytes(range(256)) * 16),
    stripe=page_text(b"\1" * 4096),
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def device() -> FaultyDevice:
    return FaultyDevice(MemoryDevice())


def numbered(count: int) -> list[Fault]:
    return [replace(FAULT, segment=number) for number in range(count)]


def test_a_fault_is_there_after_a_kill(device: FaultyDevice, clock: ManualClock) -> None:
    Quarantine(device, clock).note(FAULT)
    assert Quarantine(device, clock).all() == [FAULT]


def test_people_can_read_it(device: FaultyDevice, clock: ManualClock) -> None:
    Quarantine(device, clock).note(FAULT)
    (row,) = json.loads(device.get(FAULTS_NAME))
    assert (row["segment"], row["offset"], row["key"]) == (3, 8192, "cd" * 32)
    assert base64.b64decode(row["header"]) == bytes(range(256)) * 16


def test_only_the_newest_are_kept(device: FaultyDevice, clock: ManualClock) -> None:
    quarantine = Quarantine(device, clock)
    for fault in numbered(MAX_FAULTS + 5):
        quarantine.note(fault)
    quarantine.flush()
    for kept in (quarantine, Quarantine(device, clock)):
        assert [fault.segment for fault in kept.all()] == list(range(5, MAX_FAULTS + 5))


def test_many_faults_are_few_writes(device: FaultyDevice, clock: ManualClock) -> None:
    quarantine = Quarantine(device, clock)
    for fault in numbered(10):
        quarantine.note(fault)
    assert device.calls["put"] == 1
    clock.advance(10.0)
    quarantine.note(FAULT)
    assert device.calls["put"] == 2
    assert len(Quarantine(device, clock).all()) == 11
    quarantine.note(FAULT)
    quarantine.flush()
    quarantine.flush()
    assert device.calls["put"] == 3
    assert len(Quarantine(device, clock).all()) == 12


@pytest.mark.parametrize("character", ["x", "\1", "é", "😀", "\ud800", '"'])
def test_the_file_stays_small(device: FaultyDevice, clock: ManualClock, character: str) -> None:
    long, page = character * 10_000, "A" * 10_000
    quarantine = Quarantine(device, clock)
    for _ in range(MAX_FAULTS):
        quarantine.note(Fault(1.7e9, 1 << 60, long, 1 << 60, 1 << 60, 1 << 60, long, long, long, long, page, page))
    quarantine.flush()
    assert len(quarantine.all()[0].detail) == MAX_TEXT
    assert len(device.get(FAULTS_NAME)) <= MAX_BYTES
    assert len(Quarantine(device, clock).all()) == MAX_FAULTS


def test_a_page_is_cut_to_its_first(device: FaultyDevice) -> None:
    assert base64.b64decode(page_text(memoryview(b"\7" * 5000))) == b"\7" * 4096
    assert page_text(b"") == ""


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_device_that_fails_costs_nothing_but_the_file(
    device: FaultyDevice, clock: ManualClock, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    device.fail("put", error)
    device.fail("get", error)
    quarantine = Quarantine(device, clock)
    quarantine.note(FAULT)
    assert quarantine.all() == [FAULT]
    assert "not written" in caplog.text
    quarantine.flush()
    assert Quarantine(device, clock).all() == [FAULT], "tried again"


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"{}{", b"3", b"null", b"[3]", b'[{"segment": 3}]', b'["a"]', b"[" * 100_000],
)
def test_a_damaged_file_is_none(device: FaultyDevice, clock: ManualClock, data: bytes) -> None:
    device.put(FAULTS_NAME, data)
    quarantine = Quarantine(device, clock)
    assert quarantine.all() == []
    quarantine.note(FAULT)
    assert Quarantine(device, clock).all() == [FAULT]


def test_a_value_of_another_type_is_damage(device: FaultyDevice, clock: ManualClock) -> None:
    Quarantine(device, clock).note(FAULT)
    rows = json.loads(device.get(FAULTS_NAME))
    rows[0]["offset"] = "8192"
    device.put(FAULTS_NAME, json.dumps(rows).encode())
    assert Quarantine(device, clock).all() == []


@pytest.mark.timeout(30)
def test_a_device_that_hangs_holds_up_one_thread(device: FaultyDevice, clock: ManualClock) -> None:
    quarantine = Quarantine(device, clock)
    with device.hang("put") as hang:
        thread = threading.Thread(target=quarantine.note, args=(FAULT,))
        thread.start()
        assert hang.entered.wait(20)
        clock.advance(60.0)
        quarantine.note(replace(FAULT, segment=4))
        quarantine.flush()
        assert [fault.segment for fault in quarantine.all()] == [3, 4]
        hang.let_go()
        thread.join(20)
    quarantine.flush()
    assert [fault.segment for fault in Quarantine(device, clock).all()] == [3, 4]


def test_the_file_is_ours_and_so_is_half_of_it() -> None:
    assert is_ours(FAULTS_NAME)
    assert is_temp(FAULTS_NAME + TEMP_SUFFIX)
    assert not is_ours("other.json")
    assert not is_ours("other.json" + TEMP_SUFFIX)

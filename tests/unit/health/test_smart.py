"""SMART logs as recorded from nvme-cli, and as nobody would want them.

Those of nvme-cli 2.3 were printed by that tool over log pages made up for it; the others follow its sources.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hifc_ray.health.command import Outcome
from hifc_ray.health.smart import CriticalWarning, SmartReading, parse_smart_log, read_smart

DATA = Path(__file__).parent / "data"
UNIT = 512_000


def recorded(name: str) -> str:
    return (DATA / f"{name}.json").read_text()


@pytest.mark.parametrize("name", ["nvme-cli-2.3", "nvme-cli-2.3-human"])
def test_a_log_with_counters_in_strings(name: str) -> None:
    assert parse_smart_log("nvme0n1", recorded(name)) == SmartReading(
        "nvme0n1",
        percentage_used=3,
        available_spare=100,
        spare_threshold=10,
        media_errors=0,
        written_bytes=56_318_272 * UNIT,
        read_bytes=48_211_907 * UNIT,
        critical_warning=CriticalWarning(0),
        temperature_c=38.0,
    )


def test_a_log_with_counters_as_numbers() -> None:
    reading = parse_smart_log("nvme0n1", recorded("nvme-cli-1.9"))
    assert (reading.written_bytes, reading.percentage_used) == (1_474_968_593 * UNIT, 15)
    assert (reading.spare_threshold, reading.temperature_c, reading.known) == (5, 28.0, True)


def test_warnings() -> None:
    worn = parse_smart_log("nvme0n1", recorded("nvme-cli-2.11"))
    assert worn.critical_warning == CriticalWarning.RELIABILITY
    failing = parse_smart_log("nvme0n1", recorded("nvme-cli-2.3-failing"))
    assert failing.critical_warning == CriticalWarning.READ_ONLY
    assert (failing.available_spare, failing.percentage_used, failing.media_errors) == (3, 104, 12)


def test_a_log_of_zeros_is_hidden_and_not_healthy() -> None:
    reading = parse_smart_log("nvme0n1", recorded("nvme-cli-2.3-hidden"))
    assert reading == SmartReading("nvme0n1", problem="the drive hides its SMART log")
    assert not reading.known


def test_counters_of_128_bits() -> None:
    assert parse_smart_log("nvme0n1", recorded("nvme-cli-2.3-huge")).written_bytes == (2**128 - 1) * UNIT


def changed(**values: Any) -> SmartReading:
    return parse_smart_log("nvme0n1", json.dumps({**json.loads(recorded("nvme-cli-2.3")), **values}))


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (7, 7),
        (7.0, 7),
        ("7", 7),
        ("1,007", 1007),
        ("7 (3.58 MB)", 7),
        ({"value": 7}, 7),
        ({"hi": 0, "lo": 7}, 7),
        ({"hi": 1, "lo": 7}, 2**64 + 7),
        ({"hi": "1", "lo": 7}, None),
        ({"value": {"value": 7}}, None),
        (-7, None),
        (True, None),
        (None, None),
        ([7], None),
        ("", None),
        ("seven", None),
        ("٧", None),
        ("9" * 41, None),
        (2**128, None),
        (1e300, None),
        (float("inf"), None),
        (float("nan"), None),
    ],
)
def test_a_counter_in_any_shape(value: Any, count: int | None) -> None:
    assert changed(media_errors=value).media_errors == count
    written = changed(data_units_written=value).written_bytes
    assert written == (None if count is None else count * UNIT)


@pytest.mark.parametrize(("kelvin", "celsius"), [(311, 38.0), (273, 0.0), (0, None), (25, None), (65535, None)])
def test_temperatures(kelvin: int, celsius: float | None) -> None:
    assert changed(temperature=kelvin).temperature_c == celsius


def test_a_percentage_has_one_byte() -> None:
    assert changed(percent_used=255).percentage_used == 255
    assert changed(percent_used=256).percentage_used is None
    assert changed(avail_spare="97%").available_spare == 97


def test_no_spare_without_a_threshold_or_a_warning_is_unknown() -> None:
    assert changed(avail_spare=0, spare_thresh=0).available_spare is None
    assert changed(avail_spare=0, spare_thresh=0, critical_warning=1).available_spare == 0
    assert changed(avail_spare=0).available_spare == 0


def test_nothing_written_and_nothing_read_is_unknown() -> None:
    reading = changed(data_units_written="0", data_units_read="0", percent_used=0)
    assert (reading.written_bytes, reading.read_bytes, reading.percentage_used) == (None, None, None)
    assert reading.available_spare == 100


@pytest.mark.parametrize(
    "output",
    [
        "",
        "{",
        "{}",
        "[]",
        "null",
        "not json",
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"avail_spare": null}',
        '{"avail_spare": ' + "9" * 10_000 + "}",
        "{\x00}",
    ],
)
def test_garbage(output: str) -> None:
    reading = parse_smart_log("nvme0n1", output)
    assert not reading.known
    assert reading.problem


def test_a_log_in_a_wrapping_and_after_a_remark() -> None:
    wrapped = "warning: old firmware\n" + json.dumps({"nvme0n1": json.loads(recorded("nvme-cli-2.3"))})
    assert parse_smart_log("nvme0n1", wrapped) == parse_smart_log("nvme0n1", recorded("nvme-cli-2.3"))


class Tool:
    def __init__(self, outcome: Outcome) -> None:
        self.outcome, self.commands = outcome, list[list[str]]()

    def __call__(self, command: Sequence[str]) -> Outcome:
        self.commands.append(list(command))
        return self.outcome


def test_the_tool_is_asked_for_json(tmp_path: Path) -> None:
    tool = Tool(Outcome(recorded("nvme-cli-2.3")))
    assert read_smart("nvme1n1", tool, tmp_path).percentage_used == 3
    assert tool.commands == [["nvme", "smart-log", "-o", "json", "/dev/nvme1n1"]]


@pytest.mark.parametrize("folder", ["hwmon3", "hwmon/hwmon3", "device/hwmon/hwmon3", "nvme1/hwmon3"])
def test_without_the_tool_there_is_a_temperature(tmp_path: Path, folder: str) -> None:
    sensor = tmp_path / "class/block/nvme1n1/device" / folder
    sensor.mkdir(parents=True)
    (sensor / "temp1_input").write_text("41850\n")
    reading = read_smart("nvme1n1", Tool(Outcome(problem="nvme is not installed")), tmp_path)
    assert reading == SmartReading("nvme1n1", temperature_c=41.85, problem="nvme is not installed")
    assert not reading.known


@pytest.mark.parametrize("content", ["", "hot", "-5", "0", "9" * 12])
def test_a_sensor_that_makes_no_sense(tmp_path: Path, content: str) -> None:
    sensor = tmp_path / "class/block/sda/device/hwmon/hwmon0"
    sensor.mkdir(parents=True)
    (sensor / "temp1_input").write_text(content)
    assert read_smart("sda", Tool(Outcome()), tmp_path).temperature_c is None


def test_other_drives_are_not_asked(tmp_path: Path) -> None:
    tool = Tool(Outcome(recorded("nvme-cli-2.3")))
    assert read_smart("vda", tool, tmp_path) == SmartReading("vda", problem="not an NVMe drive")
    assert tool.commands == []


def test_a_hidden_log_says_so(tmp_path: Path) -> None:
    reading = read_smart("nvme1n1", Tool(Outcome(recorded("nvme-cli-2.3-hidden"))), tmp_path)
    assert reading.problem == "the drive hides its SMART log"


def test_what_is_unknown_is_as_it_was() -> None:
    before = changed(avail_spare=3)
    now = SmartReading("nvme0n1", temperature_c=50.0, problem="nvme gave no answer within 5 s")
    both = now.or_else(before)
    assert (both.available_spare, both.temperature_c, both.problem) == (3, 50.0, now.problem)
    assert changed(avail_spare=4).or_else(before).available_spare == 4
    assert now.or_else(None) == now
    assert now.or_else(SmartReading("nvme9n1", available_spare=3)) == now


def test_this_machine() -> None:
    reading = read_smart("nvme0n1")
    assert reading.known or reading.problem

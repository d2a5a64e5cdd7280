"""NVML: what cards count, what they do not, and cards that are lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from hifc_ray.health import gpus
from hifc_ray.health.gpu_checks import check_gpu
from hifc_ray.health.gpus import Gpu, GpuMemory
from hifc_ray.health.verdict import Level

NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
LOST = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


class FakeNvml:
    """Two cards: 0 counts everything that was given, 1 nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
        self.answers, self.shutdowns = answers, 0
        for name in dir(pynvml):
            if name.startswith("nvmlDeviceGet"):
                monkeypatch.setattr(pynvml, name, self._question(name))
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlShutdown", self._shutdown)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", self._handle)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: b"A100")
        monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: SimpleNamespace(total=80, free=70))

    def _handle(self, index: int) -> int:
        if index in self.answers.get("lost", ()):
            raise LOST
        return index

    def _question(self, name: str) -> Any:
        def answer(handle: int, *arguments: int) -> Any:
            known = self.answers.get(name.removeprefix("nvmlDeviceGet"))
            if handle != 0 or known is None:
                raise NOT_SUPPORTED
            return known[arguments] if isinstance(known, dict) else known

        return answer

    def _shutdown(self) -> None:
        self.shutdowns += 1


def test_all_that_an_old_and_a_new_card_count(monkeypatch: pytest.MonkeyPatch) -> None:
    single, double, corrected, uncorrected, since, ever = 0, 1, 0, 1, 0, 1
    nvml = FakeNvml(
        monkeypatch,
        RetiredPages={(single,): [1, 2, 3], (double,): [4]},
        RetiredPagesPendingStatus=1,
        RemappedRows=(5, 6, 1, 0),
        TotalEccErrors={
            (corrected, since): 7,
            (uncorrected, since): 8,
            (corrected, ever): 9,
            (uncorrected, ever): 10,
        },
    )
    first, second = gpus.read_gpus().gpus
    assert (first.name, first.total_bytes, first.free_bytes) == ("A100", 80, 70)
    assert first.memory == GpuMemory(3, 1, True, 5, 6, True, False, 7, 8, 9, 10)
    assert second.memory == GpuMemory()
    assert nvml.shutdowns == 1


def test_each_question_may_be_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(monkeypatch, RetiredPages={(0,): [], (1,): []})
    first, _ = gpus.read_gpus().gpus
    assert first.memory == GpuMemory(retired_single_bit=0, retired_double_bit=0)
    assert check_gpu(first) == []


def test_a_lost_card_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(monkeypatch, lost=(0,))
    first, second = gpus.read_gpus().gpus
    assert "lost" in first.problem.lower()
    assert second.name == "A100"
    (verdict,) = check_gpu(first)
    assert (verdict.level, verdict.gpu, verdict.restart) == (Level.FAIL, 0, False)


def test_a_driver_that_ends_badly_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(monkeypatch)

    def fails() -> None:
        raise NOT_SUPPORTED

    monkeypatch.setattr(pynvml, "nvmlShutdown", fails)
    assert len(gpus.read_gpus().gpus) == 2


@pytest.mark.parametrize(
    ("memory", "level", "words"),
    [
        (GpuMemory(retirement_pending=True, retired_double_bit=2), Level.WARN, "pages wait for a reset"),
        (GpuMemory(remap_pending=True), Level.WARN, "row waits for a reset"),
        (GpuMemory(ecc_uncorrected=3), Level.WARN, "3 uncorrected"),
    ],
)
def test_what_a_restart_heals(memory: GpuMemory, level: Level, words: str) -> None:
    (verdict,) = check_gpu(Gpu(2, "A100", 80, 70, memory))
    assert (verdict.level, verdict.gpu, verdict.restart) == (level, 2, True)
    assert words in verdict.what
    assert "restart this GPU's actor soon" in verdict.advice


def test_what_a_restart_does_not_heal() -> None:
    (verdict,) = check_gpu(Gpu(0, "H100", 80, 70, GpuMemory(remap_failed=True)))
    assert (verdict.level, verdict.restart) == (Level.FAIL, False)


def test_counts_alone_are_no_fault() -> None:
    memory = GpuMemory(5, 1, False, 3, 1, False, False, 900, 0, 9000, 4)
    assert check_gpu(Gpu(0, "A100", 80, 70, memory)) == []

"""GPUs, asked of NVML: a machine without one, or without its driver, has none, which is no error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml


@dataclass(frozen=True)
class GpuMemory:
    """Faults of a GPU's memory. None: this card does not count them (or did not answer), which is not 0.

    Cards before Ampere retire pages, later ones remap rows; either waits for a reset to take effect.
    """

    retired_single_bit: int | None = None  # pages, for repeated corrected errors
    retired_double_bit: int | None = None  # pages, for one uncorrected error
    retirement_pending: bool | None = None
    remapped_corrected: int | None = None  # rows
    remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    ecc_corrected: int | None = None  # since the driver was loaded
    ecc_uncorrected: int | None = None
    ecc_corrected_ever: int | None = None
    ecc_uncorrected_ever: int | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU and its memory; `problem` says why it no longer answers."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    memory: GpuMemory = field(default_factory=GpuMemory)
    problem: str = ""


@dataclass(frozen=True)
class GpuReading:
    """The GPUs there are; `problem` says why NVML could not tell although a driver is there."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


def read_gpus() -> GpuReading:
    """Never raises. NVML may hang with its driver: who must not, asks through `Patience`."""
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return GpuReading()
    except pynvml.NVMLError as error:
        return GpuReading(problem=str(error))
    try:
        return GpuReading(tuple(_read(index) for index in range(pynvml.nvmlDeviceGetCount())))
    except pynvml.NVMLError as error:
        return GpuReading(problem=str(error))
    finally:
        _ask(pynvml.nvmlShutdown)


def _read(index: int) -> Gpu:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        name = pynvml.nvmlDeviceGetName(handle)
    except pynvml.NVMLError as error:  # "GPU is lost": the others still answer
        return Gpu(index, "", 0, 0, problem=str(error))
    name = name.decode() if isinstance(name, bytes) else str(name)  # bytes in older bindings
    return Gpu(index, name, int(memory.total), int(memory.free), _read_memory(handle))


def _read_memory(handle: Any) -> GpuMemory:
    single = pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS
    double = pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR
    corrected, uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    since, ever = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
    rows = _ask(pynvml.nvmlDeviceGetRemappedRows, handle) or (None, None, None, None)
    return GpuMemory(
        retired_single_bit=_len(_ask(pynvml.nvmlDeviceGetRetiredPages, handle, single)),
        retired_double_bit=_len(_ask(pynvml.nvmlDeviceGetRetiredPages, handle, double)),
        retirement_pending=_bool(_ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)),
        remapped_corrected=rows[0],
        remapped_uncorrected=rows[1],
        remap_pending=_bool(rows[2]),
        remap_failed=_bool(rows[3]),
        ecc_corrected=_ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, corrected, since),
        ecc_uncorrected=_ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, since),
        ecc_corrected_ever=_ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, corrected, ever),
        ecc_uncorrected_ever=_ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, ever),
    )


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where this card or driver has none."""
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


def _len(pages: Any) -> int | None:
    return None if pages is None else len(pages)


def _bool(state: Any) -> bool | None:
    return None if state is None else bool(state)

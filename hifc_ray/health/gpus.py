"""GPUs, asked of NVML: a machine without one, or without its driver, has none, which is no error."""

from __future__ import annotations

from dataclasses import dataclass

import pynvml


@dataclass(frozen=True)
class Gpu:
    """One GPU and its memory."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class GpuReading:
    """The GPUs there are; `problem` says why NVML could not tell although a driver is there."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


def read_gpus() -> GpuReading:
    """Never raises."""
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
        pynvml.nvmlShutdown()


def _read(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(index, str(pynvml.nvmlDeviceGetName(handle)), int(memory.total), int(memory.free))

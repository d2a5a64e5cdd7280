"""What NVML says of GPUs' memory, to verdicts: pure functions."""

from __future__ import annotations

from hifc_ray.health.gpus import Gpu
from hifc_ray.health.verdict import GpuVerdict, Level

_RESTART = "restart this GPU's actor soon, and reset the GPU while nothing uses it"
_REPLACE = "stop using this GPU and have it replaced"


def check_gpu(gpu: Gpu) -> list[GpuVerdict]:
    """What is wrong with one GPU; nothing of what its card does not count."""
    name, memory = f"gpu {gpu.index}", gpu.memory
    if gpu.problem:
        return [GpuVerdict(name, Level.FAIL, gpu.problem, "see dmesg for its Xid; reset it or the node", gpu.index)]
    verdicts = []
    if memory.remap_failed:
        verdicts.append(GpuVerdict(f"{name} rows", Level.FAIL, "it could not remap a bad row", _REPLACE, gpu.index))
    if memory.remap_pending:
        what = f"a bad row waits for a reset to be remapped ({_count(memory.remapped_uncorrected)} are)"
        verdicts.append(_restart(f"{name} remap", what, gpu))
    if memory.retirement_pending:
        retired = (memory.retired_single_bit or 0) + (memory.retired_double_bit or 0)
        verdicts.append(_restart(f"{name} pages", f"pages wait for a reset to be retired ({retired} are)", gpu))
    if memory.ecc_uncorrected:
        what = f"{memory.ecc_uncorrected} uncorrected memory errors since the driver was loaded"
        verdicts.append(_restart(f"{name} memory", what, gpu))
    return verdicts


def _restart(name: str, what: str, gpu: Gpu) -> GpuVerdict:
    return GpuVerdict(name, Level.WARN, what, _RESTART, gpu.index, restart=True)


def _count(rows: int | None) -> str:
    return "?" if rows is None else str(rows)

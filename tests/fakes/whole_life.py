"""One life of everything, as a program: Ray, tier and engine start, answer prompts, and end in good order.

python -m tests.fakes.whole_life MODEL FLASH_DIRECTORY SHORT_DIRECTORY   prints one JSON object
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hifc_ray.actors import cluster, connection
from hifc_ray.actors.calls import ask
from hifc_ray.config import EngineConfig, FlashConfig, HostConfig, TierConfig
from hifc_ray.engine.sampling import SamplingParams
from tests.fakes.stage import BLOCK_BYTES

NUM_BLOCKS = 8
NAMESPACE = "hifc-life"


def live(model: str, flash: Path, short: Path) -> dict[str, Any]:
    """In a Ray that starts and ends with it."""
    connection.start_local(NAMESPACE, short)
    try:
        return live_here(model, flash, NAMESPACE)
    finally:
        connection.leave()


def live_here(model: str, flash: Path, namespace: str) -> dict[str, Any]:
    """In the Ray of this process: answer two prompts of `NUM_BLOCKS` full blocks and a bit, and take all down."""
    try:
        tier = TierConfig(HostConfig(arena_bytes=40 * BLOCK_BYTES), FlashConfig(flash, 16 << 20))
        cluster.up(tier, BLOCK_BYTES, namespace)
        config = EngineConfig(model, gpu_bytes=20 * BLOCK_BYTES, block_tokens=16, threads=1)
        engine, _ = cluster.start_engine(config, 0, namespace)
        prompts = [np.random.default_rng(seed).integers(1, 200, NUM_BLOCKS * 16 + 5).tolist() for seed in (1, 2)]
        params = SamplingParams(max_new_tokens=6, ignore_eos=True)
        results = [ask(engine.generate.remote(prompt, params), 60.0) for prompt in prompts]
        ask(engine.drain.remote(), 60.0)
        return {"tokens": [r.tokens for r in results], "blocks": [r.blocks for r in results]}
    finally:
        cluster.down(namespace)


if __name__ == "__main__":
    json.dump(live(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])), sys.stdout)

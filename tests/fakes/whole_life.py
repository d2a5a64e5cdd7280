"""One life of everything, as a program: Ray, tier and engine start, answer prompts, and end in good order.

python -m tests.fakes.whole_life MODEL FLASH_DIRECTORY SHORT_DIRECTORY < prompts.json   prints one JSON object
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hifc_ray.actors import cluster, connection
from hifc_ray.actors.calls import ask
from hifc_ray.config import EngineConfig, FlashConfig, HostConfig, TierConfig
from hifc_ray.engine.sampling import SamplingParams
from tests.fakes.stage import BLOCK_BYTES

NAMESPACE = "hifc-life"
NUM_TOKENS = 6  # of each answer
ROOT = Path(__file__).parents[2]


def live(model: str, flash: Path, short: Path, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Tokens of the answers, and where the prompts' blocks came from, in a Ray of this process's own."""
    connection.start_local(NAMESPACE, short)
    try:
        tier = TierConfig(HostConfig(arena_bytes=64 * BLOCK_BYTES), FlashConfig((flash,), 16 << 20))
        cluster.up(tier, BLOCK_BYTES, NAMESPACE)
        config = EngineConfig(model, gpu_bytes=40 * BLOCK_BYTES, block_tokens=16, threads=1)
        engine, _ = cluster.start_engine(config, 0, NAMESPACE)
        params = SamplingParams(max_new_tokens=NUM_TOKENS, ignore_eos=True)
        results = [ask(engine.generate.remote(prompt, params), 60.0) for prompt in prompts]
        ask(engine.drain.remote(), 60.0)
        return {"tokens": [r.tokens for r in results], "blocks": [r.blocks for r in results]}
    finally:
        cluster.down(NAMESPACE)
        connection.leave()


def live_elsewhere(model: str, flash: Path, short: Path, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "tests.fakes.whole_life", model, str(flash), str(short)]
    asked = json.dumps(prompts)
    done = subprocess.run(command, cwd=ROOT, input=asked, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    json.dump(live(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), json.load(sys.stdin)), sys.stdout)

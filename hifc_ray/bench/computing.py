"""An engine that computes without pause, to measure other things beside it."""

from __future__ import annotations

import threading

import numpy as np

from hifc_ray.config import EngineConfig
from hifc_ray.engine.loop import Engine
from hifc_ray.engine.sampling import SamplingParams

_NUM_PROMPTS, _PROMPT_TOKENS, _NEW_TOKENS = 4, 500, 16  # it prefills, then decodes, then again


class Computing:
    """Runs a model with `num_threads` threads until its process ends."""

    def __init__(self, model: str, num_threads: int) -> None:
        self._engine = Engine(EngineConfig(model=model, threads=num_threads))
        self._num_steps = 0
        self._thread = threading.Thread(target=self._run, name="hifc-bench-computing", daemon=True)
        self._thread.start()

    def num_steps(self) -> int:
        """Chunks of prompts and steps of decode done so far."""
        return self._num_steps

    def _run(self) -> None:
        rng = np.random.default_rng(0)
        params = SamplingParams(max_new_tokens=_NEW_TOKENS, ignore_eos=True, cache="off")
        while True:
            prompts = rng.integers(0, self._engine.loaded.vocab_size, (_NUM_PROMPTS, _PROMPT_TOKENS)).tolist()
            numbers = [self._engine.submit(prompt, params) for prompt in prompts]
            while self._engine.step():
                self._num_steps += 1
            for number in numbers:
                self._engine.result(number)

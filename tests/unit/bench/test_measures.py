"""Each measure runs, on tiny blocks and a tiny model, and measures what it says: the values are not judged here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hifc_ray.bench import blocks, copies, flash, lookup, places, ttft
from hifc_ray.bench import engine as engine_bench
from hifc_ray.bench.report import Figure
from hifc_ray.config import EngineConfig
from hifc_ray.device.copies import ThreadCopies
from hifc_ray.engine.loop import Engine
from hifc_ray.engine.models import LoadedModel, load_model
from hifc_ray.engine.sampling import SamplingParams
from hifc_ray.errors import TierUnavailable
from hifc_ray.layout import BlockLayout
from tests.fakes.model_folder import save_model

LAYOUT = BlockLayout(layers=2, kv_heads=1, head_dim=16, block_tokens=64)

pytestmark = pytest.mark.timeout(120)


def quiet(_: str) -> None:
    pass


def named(figures: list[Figure]) -> dict[str, int]:
    """Names and numbers of samples; all samples are above 0."""
    assert all(sample > 0 for figure in figures for sample in figure.samples)
    return {figure.name: len(figure.samples) for figure in figures}


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A directory on a disk that takes O_DIRECT."""
    if places._why_not(tmp_path, 0):
        pytest.skip(f"{tmp_path}: {places._why_not(tmp_path, 0)}")
    return tmp_path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LoadedModel, EngineConfig]]:
    """A model of a folder, and the configuration of an engine for it; one thread, so that busy cores cost little."""
    before = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("model")
    config = EngineConfig(model=save_model(folder), gpu_bytes=32 << 20, threads=1)
    yield load_model(config), config
    torch.set_num_threads(before)


def test_host_copies() -> None:
    assert named(copies.measure(LAYOUT, torch.device("cpu"), quiet, 2)) == {"host_copy_ratio": 2}


def test_a_copy_that_went_elsewhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ThreadCopies.copy_in
    monkeypatch.setattr(
        ThreadCopies, "copy_in", lambda self, slot, block: whole(self, slot, (block + 1) % self._pool.num_blocks)
    )
    with pytest.raises(AssertionError, match="did not arrive"):
        copies.measure(LAYOUT, torch.device("cpu"), quiet, 1)


def test_flash_reads(disk: Path) -> None:
    (figure,) = flash.measure(LAYOUT, disk, quiet, 2)
    assert named([figure]) == {"flash_read_ratio": 2}
    assert set(figure.parts) == {"shipped_bytes_per_s", "bare_bytes_per_s"}


def test_blocks_that_flash_lost_are_noticed(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = blocks.store
    monkeypatch.setattr(blocks, "store", lambda tier, layout, keys, content: stored(tier, layout, keys[:-1], content))
    with pytest.raises(TierUnavailable, match="31 of 32 blocks"):
        flash.measure(LAYOUT, disk, quiet, 1)


def test_keys_a_second(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With blocks this small a gigabyte a second would turn the arena over between two lookups of a starved thread.
    monkeypatch.setattr(lookup, "_STORED_BYTES_PER_S", 200.0 * LAYOUT.block_bytes)
    figures = lookup.measure(LAYOUT, disk, quiet, 2, 0.3)
    assert named(figures) == {"lookup_keys_per_s": 2, "lookup_keys_per_s_alone": 2}
    assert figures[0].parts["demoted_bytes_per_s"] > 0


def test_time_to_first_token(disk: Path, tiny: tuple[LoadedModel, EngineConfig]) -> None:
    figures = ttft.measure(*tiny, disk, quiet, 1)
    assert named(figures) == {f"ttft_speedup{rest}.{tier}": 1 for rest in ("", "_1500") for tier in ("host", "flash")}


def test_a_prefix_that_comes_from_elsewhere_does_not_count(
    disk: Path, tiny: tuple[LoadedModel, EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "forget_pool", lambda self: 0)
    with pytest.raises(TierUnavailable, match=r"6 blocks should have come from host; they came from .'gpu': 6"):
        ttft.measure(*tiny, disk, quiet, 1)


def test_engine_beside_transformers(tiny: tuple[LoadedModel, EngineConfig]) -> None:
    assert named(engine_bench.measure(*tiny, quiet, 1)) == {
        "engine_ratio.prefill": 1,
        "engine_ratio.decode_1": 1,
        "engine_ratio_whole.batch_1": 1,
        "engine_ratio.decode_8": 1,
        "engine_ratio_whole.batch_8": 1,
    }


def test_both_engines_answer_the_same(tiny: tuple[LoadedModel, EngineConfig]) -> None:
    loaded, config = tiny
    reference: Any = engine_bench.Reference(loaded, config)
    with Engine(config, model=loaded.model, tokenizer=loaded.tokenizer) as engine:
        prompt = list(range(1, 40))
        params = SamplingParams(max_new_tokens=8, ignore_eos=True, cache="off")
        ours = engine.generate([prompt], params)[0].tokens
    ids = torch.tensor([prompt])
    theirs = reference._model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    assert theirs[0, len(prompt) :].tolist() == ours

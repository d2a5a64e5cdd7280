"""`hifc generate`: answer one prompt in this process, without Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from hifc_ray.cli import options
from hifc_ray.cli.options import ConfigFile, Device, FlashBytes, FlashDirs, GpuBytes, HostBytes, Model
from hifc_ray.cli.output import Json, results_on_stdout, say, to_json

if TYPE_CHECKING:
    from hifc_ray.config import Config
    from hifc_ray.engine.loop import Engine
    from hifc_ray.engine.sequence import Result

CLOSE_S = 30.0  # for filled blocks to be stored

Prompt = Annotated[str, typer.Option("--prompt", help="What to answer.")]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the text as it is, instead of answering it as a chat.")]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", help="The longest answer.")]
Temperature = Annotated[float, typer.Option("--temperature", help="0: always the best token.")]
TopP = Annotated[float, typer.Option("--top-p", help="Draw from the best tokens that have this share of probability.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the draws.")]
CacheMode = Annotated[str, typer.Option("--cache", help="off; read: use what is cached; on: also keep the prompt.")]


def generate(
    prompt: Prompt,
    raw: Raw = False,
    max_new_tokens: MaxNewTokens = 64,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    cache: CacheMode = "on",
    config_file: ConfigFile = None,
    model: Model = None,
    device: Device = None,
    gpu_bytes: GpuBytes = None,
    host_bytes: HostBytes = None,
    flash_bytes: FlashBytes = None,
    flash_dir: FlashDirs = None,
    as_json: Json = False,
) -> None:
    """Answer one prompt. With --flash-dir or --host-bytes (or --config) its blocks are kept and found again."""
    settings = options.settings(
        config_file,
        model=model,
        device=device,
        gpu_bytes=gpu_bytes,
        host_bytes=host_bytes,
        flash_bytes=flash_bytes,
        flash_dirs=flash_dir,
    )
    with_tier = any(value is not None for value in (config_file, host_bytes, flash_dir or None))
    with results_on_stdout(as_json) as results:
        from hifc_ray.engine import chat
        from hifc_ray.engine.sampling import SamplingParams

        params = SamplingParams(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            cache=cache,  # type: ignore[arg-type]
        )
        with contextlib.ExitStack() as stack:
            engine = _engine(settings, with_tier, stack)
            chatting = not raw and engine.tokenizer is not None and chat.has_template(engine.tokenizer)
            tokens = chat.first_turn(engine.tokenizer, [{"role": "user", "content": prompt}]) if chatting else prompt
            if as_json:
                print(to_json(_answer(engine.generate([tokens], params)[0])), file=results)
            else:
                _print_stream(engine.stream(tokens, params), results)
            if cache == "on" and not engine.drain(CLOSE_S):
                say("hifc: not all of the prompt's blocks could be stored")


def _engine(settings: Config, with_tier: bool, stack: contextlib.ExitStack) -> Engine:
    from hifc_ray.engine.loop import Engine
    from hifc_ray.engine.preview import preview
    from hifc_ray.policies import registry
    from hifc_ray.tiering import TieredCache

    client = None
    if with_tier:
        tier = settings.tier
        slot_bytes = preview(settings.engine, say).block_bytes
        eviction = registry.eviction(tier.policy.eviction)
        admission = registry.admission(tier.policy.admission, eviction, tier.flash.limit_bytes // slot_bytes)
        client = TieredCache(tier, slot_bytes, eviction, admission)
        stack.callback(client.close)
    engine: Engine = stack.enter_context(Engine(settings.engine, client, progress=say))
    return engine


def _print_stream(pieces: Iterator[tuple[int, str]], results: TextIO) -> None:
    for _, text in pieces:
        print(text, end="", flush=True, file=results)
    print(file=results)


def _answer(result: Result) -> dict[str, Any]:
    missed = result.missed
    return {
        "text": result.text,
        "tokens": result.tokens,
        "finish_reason": result.finish_reason,
        "num_prompt_tokens": result.num_prompt_tokens,
        "ttft_s": result.ttft_s,
        "blocks": result.blocks,
        "loaded_bytes": result.loaded_bytes,
        "loaded_s": result.loaded_s,
        "missed": None if missed is None else {"block": missed.index, "fate": missed.fate.name.lower()},
        "min_margin": result.min_margin,
    }

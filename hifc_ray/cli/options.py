"""Options that several commands share; `config.load` puts them on top of a file, by dotted name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path | None, typer.Option("--config", help="YAML file with the configuration.")]
GpuBytes = Annotated[str | None, typer.Option("--gpu-bytes", help="Size of the block pool, such as 512MiB.")]
HostBytes = Annotated[str | None, typer.Option("--host-bytes", help="Size of the host arena, such as 1GiB.")]
FlashBytes = Annotated[str | None, typer.Option("--flash-bytes", help="The most that may lie on flash, such as 4GiB.")]
FlashDir = Annotated[Path | None, typer.Option("--flash-dir", help="Directory of its own for blocks on flash.")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Model = Annotated[str | None, typer.Option("--model", help="smollm2, a path, or a model of the Hugging Face hub.")]
Address = Annotated[str | None, typer.Option("--address", help="host:port of a Ray cluster; default: RAY_ADDRESS.")]
Namespace = Annotated[str, typer.Option("--namespace", help="Ray namespace of the actors.")]

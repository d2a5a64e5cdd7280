"""The demo's texts: desks, each with a document in its assistant's system prompt, and what people ask there."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import yaml

_DATA = files("hifc_ray.demo") / "data"


@dataclass(frozen=True)
class Desk:
    """One shared system prompt. Questions come in threes that follow each other."""

    name: str
    system: str
    questions: tuple[str, ...]


def desks() -> list[Desk]:
    """All desks, in the order of the file."""
    entries = yaml.safe_load((_DATA / "questions.yaml").read_text(encoding="utf-8"))
    return [
        Desk(
            name,
            f"{entry['assistant']}\n\n{(_DATA / entry['document']).read_text(encoding='utf-8').strip()}",
            tuple(entry["questions"]),
        )
        for name, entry in entries.items()
    ]

"""Small files of /proc and /sys: read whole, bounded, and None where there is nothing to be had from them."""

from __future__ import annotations

from pathlib import Path

PROC, SYS = Path("/proc"), Path("/sys")
_MOST_BYTES = 8 << 20  # a node with thousands of mounts has a large mountinfo


def text(path: Path) -> str | None:
    """The stripped content; None if it is missing, not permitted, too large or empty."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError):
        return None
    if len(content) > _MOST_BYTES:
        return None
    return content.decode("utf-8", "replace").strip("\0 \t\r\n") or None


def number(path: Path) -> int | None:
    """A whole number of at most 20 digits, alone in its file."""
    content = text(path)
    return int(content) if content is not None and is_number(content) else None


def is_number(word: str) -> bool:
    """Decimal digits that fit into 64 bits, or nearly so."""
    return word.isascii() and word.isdigit() and len(word) <= 20


def uptime_s(proc: Path = PROC) -> float | None:
    """Seconds since the boot."""
    word = (text(proc / "uptime") or "").partition(" ")[0]
    whole, _, rest = word.partition(".")
    return float(word) if is_number(whole) and (not rest or is_number(rest)) and float(word) > 0 else None

"""Named points at which tests hold, fail or count a thread. In production a point is one falsy test.

with points.at("flash.append.header", hook):   # hook() runs in the thread that reaches the point
    ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_hooks: dict[str, Callable[[], None]] = {}


def reach(name: str) -> None:
    """Run the hook that a test has put at this point, if any; what it raises is raised here."""
    if _hooks:
        hook = _hooks.get(name)
        if hook is not None:
            hook()


@contextmanager
def at(name: str, hook: Callable[[], None]) -> Iterator[None]:
    """Within the block, `hook` runs whenever any thread reaches the point `name`."""
    if name in _hooks:
        raise ValueError(f"point {name!r} has a hook already")
    _hooks[name] = hook
    try:
        yield
    finally:
        del _hooks[name]

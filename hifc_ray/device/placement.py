"""Which free blocks a sequence gets: neighbours, so that attention reads them as one strided view. No torch."""

from __future__ import annotations

from collections.abc import Collection


def choose(free: Collection[int], count: int, after: int | None = None) -> list[int]:
    """`count` of the `free` indices, ascending: those that follow `after`, or the shortest run that holds them all.

    Where no run holds them all, the longest runs.
    """
    runs = _runs(sorted(free))
    chosen: list[int] = []
    while len(chosen) < count:
        need = count - len(chosen)
        following = [run for run in runs if after is not None and run[0] <= after + 1 <= run[-1]]
        if following and following[0][-1] - after >= need:  # type: ignore[operator]
            run = following[0]
            start = run.index(after + 1)  # type: ignore[operator]
            chosen += run[start : start + need]
            break
        fitting = [run for run in runs if len(run) >= need]
        run = min(fitting, key=len) if fitting else max(runs, key=len)
        chosen += run[:need]
        runs.remove(run)
        after = None
    return sorted(chosen)


def even_runs(blocks: list[int]) -> list[range]:
    """`blocks` cut, in their order, into evenly spaced ascending runs, each as long as it can be."""
    runs: list[range] = []
    start = 0
    while start < len(blocks):
        end, step = start + 1, 1
        if end < len(blocks) and blocks[end] > blocks[start]:
            step = blocks[end] - blocks[start]
            while end < len(blocks) and blocks[end] - blocks[end - 1] == step:
                end += 1
        runs.append(range(blocks[start], blocks[end - 1] + 1, step))
        start = end
    return runs


def _runs(ascending: list[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for index in ascending:
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs

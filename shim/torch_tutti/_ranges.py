"""Numbers of ranks and ports as text."""
from __future__ import annotations

from collections.abc import Iterable


def format_ranges(numbers: Iterable[int]) -> str:
    """Returns numbers as text, neighbours as a range: "0, 2-5"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def format_ranks(ranks: Iterable[int]) -> str:
    """Returns ranks as text: "rank 1", "ranks 0, 2-5"."""
    numbers = list(ranks)
    return f"rank{'s' * (len(numbers) != 1)} {format_ranges(numbers)}"

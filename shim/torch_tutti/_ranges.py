"""Numbers of ranks and ports as text, and times of a command line."""
from __future__ import annotations

import argparse
import math
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


def positive_seconds(text: str) -> float:
    """Returns the seconds of an argument of a command. Raises argparse.ArgumentTypeError for other than a positive
    number."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is no positive number of seconds")
    return seconds

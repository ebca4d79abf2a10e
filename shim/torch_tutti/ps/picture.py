"""Draws runs of a parameter server in several modes: steps per second, and the loss over time. Each situation has a row
of axes. Needs matplotlib."""
from __future__ import annotations

from typing import Any, NamedTuple, Sequence

WINDOW = 25                             # steps of a moving mean of the loss


class Run(NamedTuple):
    """A run in one mode. title: its situation. losses: (seconds since the start, loss) of every step of all workers, in
    any order."""
    title: str
    mode: str
    steps_per_second: float
    losses: Sequence[tuple[float, float]]


def smooth(losses: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Returns the times in order, and for each the mean loss of the last WINDOW steps, or of fewer at the beginning."""
    times, values = zip(*sorted(losses))
    means = [sum(values[max(0, end - WINDOW): end]) / min(WINDOW, end) for end in range(1, len(values) + 1)]
    return list(times), means


def draw(runs: Sequence[Run], path: str) -> None:
    """Writes the picture to `path`, in the format of its ending. Raises ImportError without matplotlib, and ValueError
    without runs."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from None
    titles, modes = (list(dict.fromkeys(names)) for names in ([run.title for run in runs], [run.mode for run in runs]))
    if not titles:
        raise ValueError("there is nothing to plot: no mode has run")
    figure = Figure(figsize=(11, 0.3 + 3.2 * len(titles)), layout="constrained")
    for title, (bars, lines) in zip(titles, figure.subplots(len(titles), 2, squeeze=False, width_ratios=(1, 2))):
        for run in (run for run in runs if run.title == title):
            colour = f"C{modes.index(run.mode)}"
            _bar(bars, modes.index(run.mode), run.steps_per_second, colour)
            lines.plot(*smooth(run.losses), color=colour, linewidth=1.2, label=run.mode)
        bars.set(xticks=range(len(modes)), xticklabels=modes, ylabel="steps/s, all workers", title=title)
        lines.set(xlabel="seconds", ylabel=f"loss, mean of {WINDOW} steps", yscale="log")
        lines.grid(True, which="major", linewidth=0.4)
        lines.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def _bar(axes: Any, place: int, height: float, colour: str) -> None:
    """Draws a bar with its height as text. place: its position on the x axis."""
    axes.bar_label(axes.bar(place, height, color=colour), fmt="%.0f", fontsize=8)

"""The picture of runs of a parameter server in several modes: steps in a second, and the loss over time; a row of axes
for each situation. Needs matplotlib."""
from __future__ import annotations

from typing import Any, NamedTuple, Sequence

WINDOW = 25                             # losses, of which the mean is drawn


class Run(NamedTuple):
    """title: of the situation. losses: (seconds since the begin, loss) of every step of all workers, in any order."""
    title: str
    mode: str
    steps_per_second: float
    losses: Sequence[tuple[float, float]]


def smooth(losses: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Times, and the mean loss of the WINDOW steps that end there; of fewer at the beginning."""
    times, values = zip(*sorted(losses))
    means = [sum(values[max(0, at - WINDOW): at]) / min(WINDOW, at) for at in range(1, len(values) + 1)]
    return list(times), means


def draw(runs: Sequence[Run], path: str) -> None:
    """Writes the picture to `path`, in the format that its ending names. Raises ImportError without matplotlib, and
    ValueError where there is nothing to draw."""
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
    axes.bar_label(axes.bar(place, height, color=colour), fmt="%.0f", fontsize=8)

"""Draws `tutti plan --picture`: for each strategy the parts of a step's time and of a device's memory, and the roofline
of the best one. Needs matplotlib."""
from __future__ import annotations

from torch_tutti._planning.report import LEVELS, roofs_of
from torch_tutti._planning.step import PARTS, Estimate, Job
from torch_tutti._planning.strategy import Ranking

_COLOURS = {"compute": "#9dc3e6", "bubble": "#d9d9d9", "tensor": "#f4b183", "experts": "#ffd966", "pipeline": "#7f6000",
            "data": "#c55a11", "update": "#a9d18e"}
_KEPT = {"kept": "#2e75b6", "passing": "#a9d18e"}
_NAMES = {"compute": "computing", "tensor": "tp", "experts": "ep", "pipeline": "pp, messages",
          "data": "dp, not hidden",
          "kept": "parameters, gradients, optimizer", "passing": "activations"}


def label_of(estimate: Estimate) -> str:
    """Returns the degrees of a strategy as text."""
    strategy = estimate.strategy
    experts = f" ep {strategy.ep}" if strategy.ep > 1 else ""
    return f"tp {strategy.tp} pp {strategy.pp} dp {strategy.dp}{experts} zero {strategy.zero}"


def draw(name: str, job: Job, ranking: Ranking, path: str) -> None:
    """Draws a ranking into the file `path`. name: that of the model, for the title. Raises ImportError without
    matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from None
    rows = ranking.best + ranking.others
    figure = Figure(figsize=(13, 4.2 + 0.3 * len(rows)), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(0.5 + 0.3 * len(rows), 2.6))
    times, kept, roofline = (figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1]),
                             figure.add_subplot(grid[1, :]))
    _bars(times, rows, PARTS, _COLOURS, 1.0)
    times.set(xlabel="seconds of a step", yticks=range(len(rows)))
    times.set_yticklabels([label_of(one) for one in rows], fontsize=8)
    _bars(kept, rows, ("kept", "passing"), _KEPT, 1e9)
    kept.axvline(job.cluster.device.memory / 1e9, color="#c00000", linewidth=1)
    kept.set(xlabel="GB of a device, and what it has", yticks=[])
    _roofline(roofline, job, ranking.best[0])
    figure.suptitle(f"{name}: {job.cluster.devices} devices on {job.cluster.hosts} hosts, {job.tokens / 1e6:.3g} M "
                    "tokens a step", fontsize=11)
    figure.savefig(path, dpi=110)


def _bars(axes, rows: list[Estimate], parts: tuple[str, ...], colours: dict[str, str], unit: float) -> None:
    """Draws a stacked bar for each estimate, of the attributes named in `parts`, divided by `unit`."""
    left = [0.0] * len(rows)
    for part in parts:
        values = [getattr(estimate, part) / unit for estimate in rows]
        if any(values):
            axes.barh(range(len(rows)), values, left=left, color=colours[part], label=_NAMES.get(part, part))
        left = [a + b for a, b in zip(left, values)]
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.legend(fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))


def _roofline(axes, job: Job, best: Estimate) -> None:
    """Draws the operations per second that a device can reach over operations per sent byte, and marks the best
    strategy's."""
    found, peak = roofs_of(job, best), job.cluster.device.flops
    for level, colour in (("local", "#2e75b6"), ("across", "#c55a11")):
        at_level = [roof for roof in found if roof.level == level]
        if not at_level:
            continue
        ridge = job.cluster.ridge(level)
        ends = [ridge / 1e3, ridge, max(ridge * 1e3, *(roof.intensity * 2 for roof in at_level))]
        axes.plot(ends, [peak * min(1.0, x / ridge) / 1e12 for x in ends], color=colour, label=LEVELS[level])
        axes.plot([roof.intensity for roof in at_level], [peak * min(1.0, roof.ratio) / 1e12 for roof in at_level], "o",
                  color=colour)
    for index, roof in enumerate(sorted(found, key=lambda roof: roof.intensity)):        # neighbours at other heights
        axes.annotate(roof.kind, (roof.intensity, peak * min(1.0, roof.ratio) / 1e12), textcoords="offset points",
                      xytext=(3, -14 - 11 * (index % 3)), fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="operations for each byte that is sent", ylabel="TFLOP/s of a device")
    axes.grid(True, which="major", linewidth=0.4)
    if found:
        axes.legend(fontsize=8)

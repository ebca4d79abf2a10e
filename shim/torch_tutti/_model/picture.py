"""Draws `tutti model --plot`: time over size, a colour for each algorithm, dashed lines for predicted and solid lines
for measured times, and a ring around the chosen algorithm. Needs matplotlib."""
from __future__ import annotations

from typing import Any

from torch_tutti._model.report import Document, between_hosts

STYLES = {"predicted": "--", "measured": "-"}


def require() -> None:
    """Raises ImportError, which says what to do, if there is no matplotlib."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ImportError("--plot needs matplotlib: pip install matplotlib, or save with -J instead") from None


def lines(document: Document) -> dict[tuple[str, str], dict[int, float]]:
    """Returns {(algorithm, "predicted" or "measured"): {size: microseconds}}. An algorithm without predicted times has
    no such line."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in document["results"]:
        for name, cell in row["algorithms"].items():
            for kind in STYLES:
                if cell[kind]:
                    found.setdefault((name, kind), {})[row["size"]] = cell[kind]
    return found


def colours_of(names: list[str]) -> dict[str, Any]:
    """Returns a colour for each name."""
    from matplotlib import colormaps
    palette = colormaps["tab10" if len(names) <= 10 else "tab20"].colors
    return {name: palette[index % len(palette)] for index, name in enumerate(names)}


def draw(document: Document, path: str) -> None:
    """Draws the document into the file `path`."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    axes = figure.subplots()
    drawn = lines(document)
    colours = colours_of(list(dict.fromkeys(name for name, _ in drawn)))
    for (name, kind), line in drawn.items():
        axes.plot(list(line), list(line.values()), linestyle=STYLES[kind], color=colours[name], linewidth=1.2,
                  marker=".", label=name if kind == "measured" else None)
    rings = [(row["size"], row["algorithms"][row["chosen"]]["measured"]) for row in document["results"]
             if row["chosen"] in row["algorithms"]]
    if rings:
        axes.plot(*zip(*rings), linestyle="", marker="o", markersize=9, markerfacecolor="none", color="black",
                  label="chosen")
    config, group = document["config"], document["group"]
    hosts = len(group["ranks_of_host"])
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="median time, µs",
             title=f"{config['collective']} of {config['nranks']} ranks on {hosts} host{'s' * (hosts > 1)}: "
                   "measured (solid) and predicted (dashed)")
    axes.set_xscale("log", base=2)
    axes.grid(True, which="major", linewidth=0.4)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.supxlabel(f"{document['machine']['processor']}; torch {document['versions']['torch']}"
                     + (f"\nbetween hosts {between_hosts(group)}" if hosts > 1 else ""), fontsize=8)
    figure.savefig(path, dpi=150)

"""`tutti grid`: which ranks would work together, before any of them runs, and a picture of it. No torch here."""
from __future__ import annotations

import argparse
import colorsys
from typing import Any

from torch_tutti._arguments import PICTURES, picture, whole
from torch_tutti._grid import ORDER, Layout, check_inside, layouts

MOST_RANKS, MOST_DRAWN = 1 << 20, 1024
COLUMNS, PANELS = 8, 3                  # of a picture: ranks in a row, of which a host begins a new one; in a row


def _ranges(ranks: list[int]) -> str:
    """0, 4, 8 … of one distance as 0-8/4."""
    steps = {b - a for a, b in zip(ranks, ranks[1:])}
    if len(ranks) < 4 or len(steps) > 1:
        return " ".join(map(str, ranks))
    step = steps.pop()
    return f"{ranks[0]}-{ranks[-1]}" + (f"/{step}" if step > 1 else "")


def _lines(layout: Layout, names: list[str], hosts: list[int], most: int) -> list[str]:
    lines = []
    for name in names:
        groups = layout.groups(name)
        if len(groups[0]) == 1:
            continue
        spread = layout.straddles(name, hosts)[1]
        where = "" if max(hosts) == 0 else ", inside a host" if spread == 1 else f", on up to {spread} hosts"
        lines.append(f"{name}: {len(groups)} groups of {len(groups[0])}{where}")
        lines += [f"  {_ranges(group)}" for group in groups[:most]]
        if len(groups) > most:
            lines.append(f"  … and {len(groups) - most} more (--all)")
    return lines


def planned(options: argparse.Namespace) -> tuple[Layout, Layout | None, list[int]]:
    """Ranks, their experts' grid if there are any, and the host of each rank."""
    if options.ranks % options.hosts:
        raise ValueError(f"grid: {options.ranks} ranks are not the same number on each of {options.hosts} hosts")
    sizes = {name: getattr(options, name) for name in ("tp", "cp", "dp", "pp")}
    layout, experts = layouts(options.ranks, options.order, sizes, options.ep, options.expert_tp)
    if options.ranks > MOST_RANKS:
        raise ValueError(f"grid: {options.ranks} ranks; at most {MOST_RANKS} can be shown")
    hosts = [rank * options.hosts // options.ranks for rank in range(options.ranks)]
    if options.inside:
        check_inside(layout, experts, options.inside, hosts)
    return layout, experts, hosts


def report(options: argparse.Namespace) -> list[str]:
    layout, experts, hosts = planned(options)
    most = options.ranks if options.all else 4
    shown = [name for name in layout.names if name != "ep"]
    wide = [names for names in ("dp-cp", "tp-cp", "tp-pp") if all(layout.sizes[n] > 1 for n in names.split("-"))]
    lines = [f"{options.ranks} ranks as " + " x ".join(f"{name} {layout.sizes[name]}" for name in shown)
             + f", the first varies fastest; {options.hosts} host{'s' * (options.hosts > 1)}", "",
             *_lines(layout, [*shown, *wide], hosts, most)]
    if experts is not None:
        lines += ["", "experts: " + " x ".join(f"{name} {experts.sizes[name]}" for name in experts.names
                                                if name != "cp"), ""]
        lines += _lines(experts, [name for name in experts.names if name not in ("cp", "pp")], hosts, most)
    return lines


# ---- the picture ----
def panels(layout: Layout, experts: Layout | None) -> dict[str, list[list[int]]]:
    """Groups of each kind that has more than one rank; those of experts where they are others."""
    kinds = {name: layout.groups(name) for name in layout.names if name != "ep"}
    if experts is not None:
        kinds |= {f"{name} of experts": experts.groups(name) for name in experts.names if name not in ("cp", "pp")}
    found: dict[str, list[list[int]]] = {}
    for name, groups in kinds.items():
        if len(groups[0]) > 1 and groups not in found.values():
            found[name] = groups
    return found or {"ranks": [list(range(layout.ranks))]}


def _colour(group: int) -> tuple[float, float, float]:
    """Pale, and unlike those of the groups before it."""
    return colorsys.hsv_to_rgb(group * 0.618 % 1, 0.45, 0.95)


def draw(options: argparse.Namespace) -> None:
    """Raises ImportError without matplotlib, ValueError for more ranks than can be seen."""
    layout, experts, _ = planned(options)
    if layout.ranks > MOST_DRAWN:
        raise ValueError(f"grid: {layout.ranks} ranks; a picture has room for {MOST_DRAWN}")
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from None
    of_host = layout.ranks // options.hosts
    columns, deep = min(of_host, COLUMNS), -(-of_host // COLUMNS)
    shown = panels(layout, experts)
    down, across = deep * options.hosts, min(len(shown), PANELS)
    rows = -(-len(shown) // across)
    figure = Figure(figsize=(0.4 + 0.4 * columns * across, (0.5 + 0.4 * down) * rows), layout="constrained")
    places = figure.subplots(rows, across, squeeze=False).flatten()
    for axes in places:
        axes.axis("off")
    for axes, (name, groups) in zip(places, shown.items()):
        for group, ranks in enumerate(groups):
            for rank in ranks:
                x, y = rank % of_host % COLUMNS, rank // of_host * deep + rank % of_host // COLUMNS
                axes.add_patch(Rectangle((x, y), 1, 1, facecolor=_colour(group), edgecolor="white"))
                axes.text(x + 0.5, y + 0.5, str(rank), ha="center", va="center", fontsize=8)
        for host in range(options.hosts):
            axes.add_patch(Rectangle((0, host * deep), columns, deep, fill=False, linewidth=1.5))
        axes.set(xlim=(-0.1, columns + 0.1), ylim=(down + 0.1, -0.1), aspect="equal")
        axes.set_title(f"{name}: {len(groups)} of {len(groups[0])}", fontsize=9)
    figure.savefig(options.picture, dpi=150)


def _run(options: argparse.Namespace) -> int:
    print("\n".join(report(options)))
    if options.picture:
        draw(options)
    return 0


def add_parser(commands: Any) -> None:
    grid = commands.add_parser(
        "grid", help="show which ranks work together in tensor, pipeline, data and expert parallelism",
        allow_abbrev=False,
        description="Prints the groups that torch_tutti.grid would make. Assumes the same number of consecutive "
                    "ranks on each host.")
    grid.add_argument("--ranks", type=whole(1), required=True, help="ranks of the job")
    grid.add_argument("--hosts", type=whole(1), default=1, help="number of hosts (default: %(default)s)")
    for name, what in (("tp", "share a layer"), ("pp", "have different layers"), ("cp", "share a sequence"),
                       ("ep", "have different experts")):
        grid.add_argument(f"--{name}", type=whole(1), default=1, help=f"ranks that {what} (default: %(default)s)")
    grid.add_argument("--expert-tp", type=whole(1), help="ranks that share an expert (default: as tp)")
    grid.add_argument("--dp", type=whole(1), help="ranks that have different batches (default: the remaining factor)")
    grid.add_argument("--order", default=ORDER, help="names, the fastest varying first (default: %(default)s)")
    grid.add_argument("--inside", metavar="NAMES", help="fail unless these groups stay on their host, as in tp")
    grid.add_argument("--all", action="store_true", help="show all groups, not only the first four of each kind")
    grid.add_argument("--picture", type=picture, metavar="FILE", help="draw the ranks, coloured by group and host "
                                                                      f"({', '.join(PICTURES)})")
    grid.set_defaults(run=_run)

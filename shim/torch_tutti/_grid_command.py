"""`tutti grid`: prints and draws which ranks would work together, before any of them runs. Needs no torch."""
from __future__ import annotations

import argparse
import colorsys
from typing import Any

from torch_tutti._arguments import PICTURES, picture, whole
from torch_tutti._grid import ORDER, Layout, check_inside, layouts

MOST_RANKS, MOST_DRAWN = 1 << 20, 1024
# In the picture: ranks in a row (each host begins a new row), and panels in a row.
COLUMNS, PANELS = 8, 3


def _ranges(ranks: list[int]) -> str:
    """Returns ranks as text: four or more at equal distances as "0-8/4" (first-last/distance), or "0-3" for distance 1;
    others one by one."""
    distances = {following - rank for rank, following in zip(ranks, ranks[1:])}
    if len(ranks) < 4 or len(distances) > 1:
        return " ".join(map(str, ranks))
    distance = distances.pop()
    return f"{ranks[0]}-{ranks[-1]}" + (f"/{distance}" if distance > 1 else "")


def _lines(layout: Layout, names: list[str], host_of: list[int], most_groups: int) -> list[str]:
    """Returns for each of these (combinations of) axes a line with the number and size of its groups, and lines with
    the first `most_groups` groups. Axes whose groups have one rank are left out. host_of: the number of the host of
    each rank."""
    lines = []
    for name in names:
        groups = layout.groups(name)
        if len(groups[0]) == 1:
            continue
        most_hosts = layout.straddles(name, host_of)[1]
        where = "" if max(host_of) == 0 else ", inside a host" if most_hosts == 1 else f", on up to {most_hosts} hosts"
        lines.append(f"{name}: {len(groups)} groups of {len(groups[0])}{where}")
        lines += [f"  {_ranges(group)}" for group in groups[:most_groups]]
        if len(groups) > most_groups:
            lines.append(f"  … and {len(groups) - most_groups} more (--all)")
    return lines


def plan(options: argparse.Namespace) -> tuple[Layout, Layout | None, list[int]]:
    """Returns the grid of all ranks, the grid of experts or None, and the number of the host of each rank. Raises
    ValueError for options that do not fit."""
    if options.ranks % options.hosts:
        raise ValueError(f"grid: {options.ranks} ranks are not the same number on each of {options.hosts} hosts")
    sizes = {name: getattr(options, name) for name in ("tp", "cp", "dp", "pp")}
    layout, experts = layouts(options.ranks, options.order, sizes, options.ep, options.expert_tp)
    if options.ranks > MOST_RANKS:
        raise ValueError(f"grid: {options.ranks} ranks; at most {MOST_RANKS} can be shown")
    host_of = [rank * options.hosts // options.ranks for rank in range(options.ranks)]
    if options.inside:
        check_inside(layout, experts, options.inside, host_of)
    return layout, experts, host_of


def report(options: argparse.Namespace) -> list[str]:
    """Returns the lines to print: the groups of each axis and of pairs of axes, then those of the experts. The grid of
    all ranks has no ep, and that of experts no cp."""
    layout, experts, host_of = plan(options)
    most_groups = options.ranks if options.all else 4
    axes = [name for name in layout.names if name != "ep"]
    pairs = [names for names in ("dp-cp", "tp-cp", "tp-pp") if all(layout.sizes[name] > 1 for name in names.split("-"))]
    lines = [f"{options.ranks} ranks as " + " x ".join(f"{name} {layout.sizes[name]}" for name in axes)
             + f", the first varies fastest; {options.hosts} host{'s' * (options.hosts > 1)}", "",
             *_lines(layout, [*axes, *pairs], host_of, most_groups)]
    if experts is not None:
        lines += ["", "experts: " + " x ".join(f"{name} {experts.sizes[name]}" for name in experts.names
                                                if name != "cp"), ""]
        lines += _lines(experts, [name for name in experts.names if name not in ("cp", "pp")], host_of, most_groups)
    return lines


# ---- the picture ----
def panels(layout: Layout, experts: Layout | None) -> dict[str, list[list[int]]]:
    """Returns the groups to draw, by title: of each axis whose groups have several ranks, also of the grid of experts.
    Axes with equal groups share a panel. If no axis qualifies, one panel has all ranks as one group."""
    groups_of = {name: layout.groups(name) for name in layout.names if name != "ep"}
    if experts is not None:
        groups_of |= {f"{name} of experts": experts.groups(name) for name in experts.names if name not in ("cp", "pp")}
    groups_to_draw: dict[str, list[list[int]]] = {}
    for name, groups in groups_of.items():
        if len(groups[0]) > 1 and groups not in groups_to_draw.values():
            groups_to_draw[name] = groups
    return groups_to_draw or {"ranks": [list(range(layout.ranks))]}


def _colour(group: int) -> tuple[float, float, float]:
    """Returns a pale colour (red, green, blue) that differs from the colours of the groups before this one."""
    return colorsys.hsv_to_rgb(group * 0.618 % 1, 0.45, 0.95)


def draw(options: argparse.Namespace) -> None:
    """Draws a panel for each kind of group into options.picture: every rank is a square with the colour of its group,
    and a frame surrounds the ranks of each host. Raises ImportError without matplotlib, and ValueError for more than
    MOST_DRAWN ranks."""
    layout, experts, _ = plan(options)
    if layout.ranks > MOST_DRAWN:
        raise ValueError(f"grid: {layout.ranks} ranks; a picture has room for {MOST_DRAWN}")
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from None
    ranks_of_host = layout.ranks // options.hosts
    columns, rows_of_host = min(ranks_of_host, COLUMNS), -(-ranks_of_host // COLUMNS)
    drawn = panels(layout, experts)
    rows_of_hosts, panels_across = rows_of_host * options.hosts, min(len(drawn), PANELS)
    panels_down = -(-len(drawn) // panels_across)
    figure = Figure(figsize=(0.4 + 0.4 * columns * panels_across, (0.5 + 0.4 * rows_of_hosts) * panels_down),
                    layout="constrained")
    all_axes = figure.subplots(panels_down, panels_across, squeeze=False).flatten()
    for axes in all_axes:
        axes.axis("off")
    for axes, (name, groups) in zip(all_axes, drawn.items()):
        for group, ranks in enumerate(groups):
            for rank in ranks:
                x = rank % ranks_of_host % COLUMNS
                y = rank // ranks_of_host * rows_of_host + rank % ranks_of_host // COLUMNS
                axes.add_patch(Rectangle((x, y), 1, 1, facecolor=_colour(group), edgecolor="white"))
                axes.text(x + 0.5, y + 0.5, str(rank), ha="center", va="center", fontsize=8)
        for host in range(options.hosts):
            axes.add_patch(Rectangle((0, host * rows_of_host), columns, rows_of_host, fill=False, linewidth=1.5))
        axes.set(xlim=(-0.1, columns + 0.1), ylim=(rows_of_hosts + 0.1, -0.1), aspect="equal")
        axes.set_title(f"{name}: {len(groups)} of {len(groups[0])}", fontsize=9)
    figure.savefig(options.picture, dpi=150)


def _run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    print("\n".join(report(options)))
    if options.picture:
        draw(options)
    return 0


def add_parser(commands: Any) -> None:
    """Adds `grid` to the commands of `tutti`. commands: the subparsers of argparse."""
    grid = commands.add_parser(
        "grid", help="show which ranks work together in tensor, pipeline, data and expert parallelism",
        allow_abbrev=False,
        description="Prints the groups that torch_tutti.grid would make. Assumes the same number of consecutive "
                    "ranks on each host.")
    grid.add_argument("--ranks", type=whole(1), required=True, help="ranks of the job")
    grid.add_argument("--hosts", type=whole(1), default=1, help="number of hosts (default: %(default)s)")
    for name, meaning in (("tp", "share a layer"), ("pp", "have different layers"), ("cp", "share a sequence"),
                       ("ep", "have different experts")):
        grid.add_argument(f"--{name}", type=whole(1), default=1, help=f"ranks that {meaning} (default: %(default)s)")
    grid.add_argument("--expert-tp", type=whole(1), help="ranks that share an expert (default: as tp)")
    grid.add_argument("--dp", type=whole(1), help="ranks that have different batches (default: the remaining factor)")
    grid.add_argument("--order", default=ORDER, help="names, the fastest varying first (default: %(default)s)")
    grid.add_argument("--inside", metavar="NAMES",
                      help="axes, such as tp: fail if one of their groups is on several hosts")
    grid.add_argument("--all", action="store_true", help="show all groups, not only the first four of each kind")
    grid.add_argument("--picture", type=picture, metavar="FILE", help="draw the ranks, coloured by group and host "
                                                                      f"({', '.join(PICTURES)})")
    grid.set_defaults(run=_run)

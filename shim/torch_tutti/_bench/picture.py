"""The picture of `tutti bench --plot`: time and bus bandwidth over size, a row of axes for each collective, a line for
each backend, and two measures of both from the same run: one memcpy of the same bytes, and the limit of the memory,
which is every byte that is sent read once and every byte that is received written once. Needs matplotlib.

Neither is drawn for small sizes: there the limit is the exchange of one cache line between two cores, which cannot be
timed from Python; the picture says so.
"""
from __future__ import annotations

from typing import Any

from torch_tutti._bench.report import PLACEMENTS, Document, cells

STYLES = {"out_of_place": "--", "in_place": "-"}
Line = dict[int, dict[str, Any]]


def require() -> None:
    """Raises ImportError, with what to do, when there is no matplotlib."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ImportError("--plot needs matplotlib: pip install matplotlib, or save with -J and plot elsewhere with "
                          "tutti bench compare A.json B.json --plot FILE") from None


def lines(documents: list[tuple[str, Document]]) -> dict[str, dict[tuple[str, str], Line]]:
    """By collective, by (label, placement), by size: what was measured. Labels say only what differs."""
    found: dict[str, dict[tuple[str, str], Line]] = {}
    rows = [(label, row) for label, document in documents for row in document["results"]]
    varying = [name for name in ("type", "redop", "root") if any(
        len({row[name] for _, row in rows if row["collective"] == collective}) > 1
        for collective in {row["collective"] for _, row in rows})]
    for label, row in rows:
        name = " ".join([row["backend"], *(str(row[name]) for name in varying)]) + (f" ({label})" if label else "")
        for placement, cell in cells(row).items():
            line = found.setdefault(row["collective"], {}).setdefault((name, placement), {})
            line[row["size"]] = cell
    return found


def copies(documents: list[tuple[str, Document]], collective: str) -> dict[str, dict[int, float]]:
    """By label, by size: microseconds of one memcpy, where it was measured."""
    return {label: found for label, document in documents if (found := {
        row["size"]: row["memcpy"] for row in document["results"]
        if row["collective"] == collective and row["memcpy"]})}


def limits(documents: list[tuple[str, Document]], collective: str) -> dict[tuple[str, str], dict[int, float]]:
    """By (label, placement), by size: microseconds in which the memory could do it."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for label, document in documents:
        for row in document["results"]:
            for placement, cell in cells(row).items():
                if row["collective"] == collective and cell.get("limit"):
                    found.setdefault((label, placement), {})[row["size"]] = cell["limit"]
    return found


def median_bandwidth(cell: dict[str, Any]) -> float:
    """The bus bandwidth at the median time, as the time axes show it; that of the table is at the mean."""
    return cell["bus_bw"] * cell["time"] / cell["median"] if cell["median"] else 0.0


def draw(documents: list[tuple[str, Document]], path: str) -> None:
    """Writes the picture. documents: with a label each, empty where there is one only."""
    from matplotlib.figure import Figure
    found = lines(documents)
    if not found:
        raise ValueError("there is nothing to plot: no backend supports any of the operations")
    figure = Figure(figsize=(12, 4.5 * len(found) + 0.6), layout="constrained")
    all_axes = figure.subplots(len(found), 2, squeeze=False)
    for (collective, of_collective), (time_axes, bandwidth_axes) in zip(found.items(), all_axes):
        colours: dict[str, str] = {}
        for (name, placement), line in of_collective.items():
            colour = colours.setdefault(name, f"C{len(colours) % 10}")
            sizes = sorted(line)
            style = {"linestyle": STYLES[placement], "color": colour, "marker": ".", "linewidth": 1.2,
                     "label": f"{name}, {PLACEMENTS[placement]}"}
            time_axes.plot(sizes, [line[size]["median"] for size in sizes], **style)
            bandwidth_axes.plot(sizes, [median_bandwidth(line[size]) for size in sizes], **style)
        _draw_limits(documents, collective, of_collective, time_axes, bandwidth_axes)
        time_axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="median time, µs", title=collective)
        bandwidth_axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="bus bandwidth, GB/s", title=collective)
        for axes in (time_axes, bandwidth_axes):
            axes.set_xscale("log", base=2)
            axes.grid(True, which="major", linewidth=0.4)
            axes.legend(fontsize=8)
    figure.supxlabel(_caption(documents[0][1]), fontsize=8)
    figure.savefig(path, dpi=150)


def _draw_limits(documents: list[tuple[str, Document]], collective: str, of_collective: dict[tuple[str, str], Line],
                 time_axes: Any, bandwidth_axes: Any) -> None:
    cell = next(cell for line in of_collective.values() for cell in line.values())
    factor = cell["bus_bw"] / cell["alg_bw"] if cell["alg_bw"] else 1.0
    drawn = [("one memcpy of the same bytes", label, ":", "black", line)
             for label, line in copies(documents, collective).items()]
    drawn += [(f"limit of the memory, {PLACEMENTS[placement]}", label, STYLES[placement], "grey", line)
              for (label, placement), line in limits(documents, collective).items()]
    for what, label, style, colour, line in drawn:
        look = {"color": colour, "linestyle": style, "linewidth": 1.2, "label": what + (f" ({label})" if label else "")}
        sizes = sorted(line)
        time_axes.plot(sizes, [line[size] for size in sizes], **look)
        bandwidth_axes.plot(sizes, [size / line[size] / 1e3 * factor for size in sizes], **look)


def _caption(document: Document) -> str:
    host, config = document["machine"], document["config"]
    return (f"{config['nranks']} ranks on {host['processor']}, {host['cores']} cores; torch "
            f"{document['versions']['torch']}. The memcpy runs on all ranks at once, as the operations do; the "
            "limit is that of an update in place that touches as many bytes.\nBelow 64 KiB neither is drawn: there it "
            "is the exchange of a cache line between two cores, which cannot be timed from Python.")

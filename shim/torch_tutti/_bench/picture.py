"""The picture of `tutti bench --plot`: time and bus bandwidth by size, a row of axes for each collective, and a line
for each backend. Two references from the same run are drawn, too: a memcpy of the same bytes, and the limit of the
memory, which reads every sent byte once and writes every received byte once. Needs matplotlib.

The references are not drawn for small sizes. There the limit is the exchange of one cache line between two cores, which
cannot be timed from Python; the caption says so.
"""
from __future__ import annotations

from typing import Any

from torch_tutti._bench.report import PLACEMENTS, Document, cells

# The line style of each placement.
STYLES = {"out_of_place": "--", "in_place": "-"}
# The cells of a line in the picture, by size in bytes.
Line = dict[int, dict[str, Any]]


def require() -> None:
    """Raises ImportError without matplotlib, with a text that says what to do."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ImportError("--plot needs matplotlib: pip install matplotlib, or save with -J and plot elsewhere with "
                          "tutti bench compare A.json B.json --plot FILE") from None


def lines(documents: list[tuple[str, Document]]) -> dict[str, dict[tuple[str, str], Line]]:
    """Returns the lines to draw, by collective, then by (label, placement). The label has the backend, the columns that
    differ between rows, and the label of the document. documents: (label, document)."""
    lines_of: dict[str, dict[tuple[str, str], Line]] = {}
    rows = [(label, row) for label, document in documents for row in document["results"]]
    varying = [name for name in ("type", "redop", "root") if any(
        len({row[name] for _, row in rows if row["collective"] == collective}) > 1
        for collective in {row["collective"] for _, row in rows})]
    for label, row in rows:
        name = " ".join([row["backend"], *(str(row[name]) for name in varying)]) + (f" ({label})" if label else "")
        for placement, cell in cells(row).items():
            line = lines_of.setdefault(row["collective"], {}).setdefault((name, placement), {})
            line[row["size"]] = cell
    return lines_of


def copies(documents: list[tuple[str, Document]], collective: str) -> dict[str, dict[int, float]]:
    """Returns the microseconds of one memcpy, by label of the document, then by size, where they were measured."""
    return {label: times for label, document in documents if (times := {
        row["size"]: row["memcpy"] for row in document["results"]
        if row["collective"] == collective and row["memcpy"]})}


def limits(documents: list[tuple[str, Document]], collective: str) -> dict[tuple[str, str], dict[int, float]]:
    """Returns the microseconds that the memory needs at least, by (label of the document, placement), then by size."""
    limit_of: dict[tuple[str, str], dict[int, float]] = {}
    for label, document in documents:
        for row in document["results"]:
            for placement, cell in cells(row).items():
                if row["collective"] == collective and cell.get("limit"):
                    limit_of.setdefault((label, placement), {})[row["size"]] = cell["limit"]
    return limit_of


def median_bandwidth(cell: dict[str, Any]) -> float:
    """Returns the bus bandwidth at the median time, which the time axes show; the bandwidth in the table is at the
    mean."""
    return cell["bus_bw"] * cell["time"] / cell["median"] if cell["median"] else 0.0


def draw(documents: list[tuple[str, Document]], path: str) -> None:
    """Draws the documents into a file. documents: (label, document); the label of a single document is empty. Raises
    ValueError if there is nothing to draw."""
    from matplotlib.figure import Figure
    lines_of = lines(documents)
    if not lines_of:
        raise ValueError("there is nothing to plot: no backend supports any of the operations")
    figure = Figure(figsize=(12, 4.5 * len(lines_of) + 0.6), layout="constrained")
    all_axes = figure.subplots(len(lines_of), 2, squeeze=False)
    for (collective, collective_lines), (time_axes, bandwidth_axes) in zip(lines_of.items(), all_axes):
        colours: dict[str, str] = {}
        for (name, placement), line in collective_lines.items():
            colour = colours.setdefault(name, f"C{len(colours) % 10}")
            sizes = sorted(line)
            style = {"linestyle": STYLES[placement], "color": colour, "marker": ".", "linewidth": 1.2,
                     "label": f"{name}, {PLACEMENTS[placement]}"}
            time_axes.plot(sizes, [line[size]["median"] for size in sizes], **style)
            bandwidth_axes.plot(sizes, [median_bandwidth(line[size]) for size in sizes], **style)
        _draw_limits(documents, collective, collective_lines, time_axes, bandwidth_axes)
        time_axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="median time, µs", title=collective)
        bandwidth_axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="bus bandwidth, GB/s", title=collective)
        for axes in (time_axes, bandwidth_axes):
            axes.set_xscale("log", base=2)
            axes.grid(True, which="major", linewidth=0.4)
            axes.legend(fontsize=8)
    figure.supxlabel(_caption(documents[0][1]), fontsize=8)
    figure.savefig(path, dpi=150)


def _draw_limits(documents: list[tuple[str, Document]], collective: str, collective_lines: dict[tuple[str, str], Line],
                 time_axes: Any, bandwidth_axes: Any) -> None:
    """Draws the memcpy and the limit of the memory for one collective into its two axes."""
    cell = next(cell for line in collective_lines.values() for cell in line.values())
    factor = cell["bus_bw"] / cell["alg_bw"] if cell["alg_bw"] else 1.0
    references = [("one memcpy of the same bytes", label, ":", "black", line)
                  for label, line in copies(documents, collective).items()]
    references += [(f"limit of the memory, {PLACEMENTS[placement]}", label, STYLES[placement], "grey", line)
                   for (label, placement), line in limits(documents, collective).items()]
    for what, label, style, colour, line in references:
        properties = {"color": colour, "linestyle": style, "linewidth": 1.2,
                      "label": what + (f" ({label})" if label else "")}
        sizes = sorted(line)
        time_axes.plot(sizes, [line[size] for size in sizes], **properties)
        bandwidth_axes.plot(sizes, [size / line[size] / 1e3 * factor for size in sizes], **properties)


def _caption(document: Document) -> str:
    """Returns the text below the picture: the machine, and what the references are."""
    host, config = document["machine"], document["config"]
    return (f"{config['nranks']} ranks on {host['processor']}, {host['cores']} cores; torch "
            f"{document['versions']['torch']}. The memcpy runs on all ranks at once, as the operations do; the "
            "limit is that of an update in place that touches as many bytes.\nBelow 64 KiB neither is drawn: there it "
            "is the exchange of a cache line between two cores, which cannot be timed from Python.")

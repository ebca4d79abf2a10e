"""`tutti bench compare`: the lines that two saved files have in common, side by side.

Lines belong together when they are about the same operation. Where each file has one backend only, its name does not
matter, so that one backend can be compared with another as well as with itself.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_tutti._bench import picture, report
from torch_tutti._bench.report import PLACEMENTS, Document, number

KEY = ("collective", "size", "count", "type", "redop", "root")


def compare(first: str, second: str, plot: str | None = None) -> int:
    """Prints them. Raises ValueError when a file is not ours or they have nothing in common."""
    documents = [report.load(first), report.load(second)]
    if plot:
        picture.require()
        report.check_writable(plot, "--plot")
    print("\n".join(lines(first, second, *documents)))
    if plot:
        picture.draw(list(zip(_labels(first, second), documents)), plot)
    return 0


def _labels(first: str, second: str) -> list[str]:
    """The names of the files without their folders, if that tells them apart."""
    short = [Path(path).stem for path in (first, second)]
    return short if short[0] != short[1] else [first, second]


def lines(first: str, second: str, one: Document, other: Document) -> list[str]:
    by_name = len(one["config"]["backends"]) > 1 or len(other["config"]["backends"]) > 1
    rows = [{_key(row, by_name): row for row in document["results"]} for document in (one, other)]
    common = [key for key in rows[0] if key in rows[1]]
    if not common:
        raise ValueError(f"{first} and {second} have no line in common: {_holds(one)} against {_holds(other)}")
    found = [f"# A: {first}, {_describe(one)}", f"# B: {second}, {_describe(other)}"]
    found += [f"# {what} differ: {mine} against {its}" for what, mine, its in _differences(one, other)]
    found += _header(by_name)
    found += [_line(rows[0][key], rows[1][key], by_name) for key in common]
    only = [len(mine) - len(common) for mine in rows]
    if any(only):
        found.append(f"# only in A: {only[0]} lines, only in B: {only[1]} lines")
    return found


def _key(row: dict[str, Any], by_name: bool) -> tuple[Any, ...]:
    return (*(row[name] for name in KEY), row["backend"] if by_name else "")


def _holds(document: Document) -> str:
    names = sorted({row["collective"] for row in document["results"]})
    return f"{', '.join(names) or 'nothing'} on {', '.join(document['config']['backends'])}"


def _describe(document: Document) -> str:
    made = document["versions"]
    return (f"{', '.join(document['config']['backends'])}, {document['config']['nranks']} ranks, torch "
            f"{made['torch']}, torch-tutti {made['torch-tutti']}, {document['start_time']}")


def _differences(one: Document, other: Document) -> list[tuple[str, Any, Any]]:
    """What makes the comparison doubtful."""
    pairs = [("machines", one["machine"]["name"], other["machine"]["name"]),
             ("processors", one["machine"]["processor"], other["machine"]["processor"])]
    pairs += [(name, one["config"][name], other["config"][name]) for name in ("nranks", "average")]
    pairs.append(("tensors", *("shared" if document["config"].get("shared_tensors") else "private"
                               for document in (one, other))))
    return [pair for pair in pairs if pair[1] != pair[2]]


def _header(by_name: bool) -> list[str]:
    first = "# {:>14}  {:>12}  {:>8}  {:>6}  {:>6}"
    block = "  {:>7}  {:>7}  {:>6}  {:>6}  {:>6}"
    names, units = block.format("A", "B", "B/A", "A", "B"), block.format("(us)", "(us)", "", "(GB/s)", "(GB/s)")
    titles = "".join(f"  {title + ': median, ratio, busbw':^40}" for title in PLACEMENTS.values())
    return ["#", first.format("", "", "", "", "") + titles.rstrip(),
            first.format("collective", "size", "type", "redop", "root") + names * 2 + ("  backend" if by_name else ""),
            first.format("", "(B)", "", "", "") + units * 2]


def _line(one: dict[str, Any], other: dict[str, Any], by_name: bool) -> str:
    text = f"{one['collective']:>16}  {one['size']:12}  {one['type']:>8}  {one['redop']:>6}  {one['root']:6}"
    for placement in PLACEMENTS:
        mine, its = (report.cells(row).get(placement, {}) for row in (one, other))
        ratio = its["median"] / mine["median"] if mine and its and mine["median"] else None
        values = [(mine.get("median"), 7), (its.get("median"), 7), (ratio, 6), (mine.get("bus_bw"), 6),
                  (its.get("bus_bw"), 6)]
        text += "".join("  " + number(value, width) for value, width in values)
    return text + (f"  {one['backend']}" if by_name else "")

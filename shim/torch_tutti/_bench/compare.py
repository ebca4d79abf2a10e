"""`tutti bench compare`: prints the rows that two saved files have in common, side by side.

Rows belong together when they are about the same operation. If each file has one backend only, its name is ignored, so
that two backends can be compared, or two runs of the same backend.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_tutti._bench import picture, report
from torch_tutti._bench.report import PLACEMENTS, Document, number

# The columns that identify an operation.
KEY = ("collective", "size", "count", "type", "redop", "root")


def compare(first: str, second: str, plot: str | None = None) -> int:
    """Prints the comparison of two files; plot: and draws it into this file. Returns the exit code. Raises ValueError
    when a file was not saved by tutti bench, or the files have no row in common."""
    documents = [report.load(first), report.load(second)]
    if plot:
        picture.require()
        report.check_writable(plot, "--plot")
    print("\n".join(lines(first, second, *documents)))
    if plot:
        picture.draw(list(zip(_labels(first, second), documents)), plot)
    return 0


def _labels(first: str, second: str) -> list[str]:
    """Returns labels for two files: their names without folder and ending, or their paths if these names are equal."""
    short = [Path(path).stem for path in (first, second)]
    return short if short[0] != short[1] else [first, second]


def lines(first: str, second: str, document_a: Document, document_b: Document) -> list[str]:
    """Returns the lines to print: a header, the environments that differ, the common rows, and the numbers of other
    rows. first, second: the names of the files. Raises ValueError if no row is common."""
    by_name = len(document_a["config"]["backends"]) > 1 or len(document_b["config"]["backends"]) > 1
    rows_by_key = [{_key(row, by_name): row for row in document["results"]} for document in (document_a, document_b)]
    common = [key for key in rows_by_key[0] if key in rows_by_key[1]]
    if not common:
        raise ValueError(f"{first} and {second} have no line in common: {_holds(document_a)} against "
                         f"{_holds(document_b)}")
    text = [f"# A: {first}, {_describe(document_a)}", f"# B: {second}, {_describe(document_b)}"]
    text += [f"# {what} differ: {value_a} against {value_b}"
              for what, value_a, value_b in _differences(document_a, document_b)]
    text += _header(by_name)
    text += [_line(rows_by_key[0][key], rows_by_key[1][key], by_name) for key in common]
    only_in_one = [len(rows) - len(common) for rows in rows_by_key]
    if any(only_in_one):
        text.append(f"# only in A: {only_in_one[0]} lines, only in B: {only_in_one[1]} lines")
    return text


def _key(row: dict[str, Any], by_name: bool) -> tuple[Any, ...]:
    """Returns what identifies a row; by_name: including its backend."""
    return (*(row[name] for name in KEY), row["backend"] if by_name else "")


def _holds(document: Document) -> str:
    """Returns the collectives and backends of a document as text."""
    names = sorted({row["collective"] for row in document["results"]})
    return f"{', '.join(names) or 'nothing'} on {', '.join(document['config']['backends'])}"


def _describe(document: Document) -> str:
    """Returns backends, ranks, versions and start time of a document as text."""
    versions = document["versions"]
    return (f"{', '.join(document['config']['backends'])}, {document['config']['nranks']} ranks, torch "
            f"{versions['torch']}, torch-tutti {versions['torch-tutti']}, {document['start_time']}")


def _differences(document_a: Document, document_b: Document) -> list[tuple[str, Any, Any]]:
    """Returns (name, first value, second value) for each part of the environment that differs, which makes the
    comparison doubtful."""
    pairs = [("machines", document_a["machine"]["name"], document_b["machine"]["name"]),
             ("processors", document_a["machine"]["processor"], document_b["machine"]["processor"])]
    pairs += [(name, document_a["config"][name], document_b["config"][name]) for name in ("nranks", "average")]
    pairs.append(("tensors", *("shared" if document["config"].get("shared_tensors") else "private"
                               for document in (document_a, document_b))))
    return [pair for pair in pairs if pair[1] != pair[2]]


def _header(by_name: bool) -> list[str]:
    """Returns the header of the table. by_name: with the column of the backend."""
    left_columns = "# {:>14}  {:>12}  {:>8}  {:>6}  {:>6}"
    placement_columns = "  {:>7}  {:>7}  {:>6}  {:>6}  {:>6}"
    names = placement_columns.format("A", "B", "B/A", "A", "B")
    units = placement_columns.format("(us)", "(us)", "", "(GB/s)", "(GB/s)")
    titles = "".join(f"  {title + ': median, ratio, busbw':^40}" for title in PLACEMENTS.values())
    return ["#", left_columns.format("", "", "", "", "") + titles.rstrip(),
            left_columns.format("collective", "size", "type", "redop", "root") + names * 2
            + ("  backend" if by_name else ""),
            left_columns.format("", "(B)", "", "", "") + units * 2]


def _line(row_a: dict[str, Any], row_b: dict[str, Any], by_name: bool) -> str:
    """Returns the line of two rows about the same operation."""
    text = f"{row_a['collective']:>16}  {row_a['size']:12}  {row_a['type']:>8}  {row_a['redop']:>6}  {row_a['root']:6}"
    for placement in PLACEMENTS:
        cell_a, cell_b = (report.cells(row).get(placement, {}) for row in (row_a, row_b))
        ratio = cell_b["median"] / cell_a["median"] if cell_a and cell_b and cell_a["median"] else None
        values = [(cell_a.get("median"), 7), (cell_b.get("median"), 7), (ratio, 6), (cell_a.get("bus_bw"), 6),
                  (cell_b.get("bus_bw"), 6)]
        text += "".join("  " + number(value, width) for value, width in values)
    return text + (f"  {row_a['backend']}" if by_name else "")

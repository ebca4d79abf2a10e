"""The output of `tutti bench`: the table on standard output, with the columns of nccl-tests, and the document that -J
saves, with the keys of nccl-tests and further ones. Nothing here measures, communicates or imports torch.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FORMAT = "tutti bench"
VERSION = 1
PLACEMENTS = {"out_of_place": "out-of-place", "in_place": "in-place"}
# Beginnings of the environment variables that are saved.
SHARED_SETTINGS = ("TUTTI_", "GLOO_", "NCCL_", "OMP_", "TORCH_DISTRIBUTED_DEBUG")
# The content of the file of -J.
Document = dict[str, Any]


# ---- the machine and the versions ----
def _line_of(path: str, name: str) -> str:
    """Returns the value of the first "name: value" line of a file whose name begins with `name`, or "unknown"."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "unknown")


def machine() -> dict[str, Any]:
    """Returns a description of this machine."""
    return {"name": platform.node(), "processor": _line_of("/proc/cpuinfo", "model name"), "cores": os.cpu_count(),
            "cores_allowed": len(os.sched_getaffinity(0)), "memory": _line_of("/proc/meminfo", "MemTotal"),
            "system": f"{platform.system()} {platform.release()}", "load": os.getloadavg()[0]}


def versions() -> dict[str, str | None]:
    """Returns the versions of Python, torch and torch-tutti; None: not installed."""
    result: dict[str, str | None] = {"python": platform.python_version()}
    for distribution in ("torch", "torch-tutti"):
        try:
            result[distribution] = version(distribution)
        except PackageNotFoundError:
            result[distribution] = None
    return result


def begin(options: argparse.Namespace, words: list[str], ranks: list[dict[str, Any]]) -> Document:
    """Returns the document before anything is measured. words: the arguments of `tutti`. ranks: a description of each
    rank."""
    step = {"step_factor": options.stepfactor} if options.stepfactor else {"step_bytes": options.stepbytes}
    config = {"nranks": len(ranks), "backends": options.backend, "minimum_bytes": options.minbytes,
              "maximum_bytes": options.maxbytes, **step, "warmup_iters": options.warmup_iters,
              "iterations": options.iters, "aggregated_iterations": options.agg_iters, "validation": options.check,
              "average": options.average, "shared_tensors": options.shared, "timeout": options.timeout,
              "devices": ranks}
    return {"format": FORMAT, "version": VERSION, "start_time": _now(), "args": words,
            "env": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(SHARED_SETTINGS)},
            "machine": machine(), "versions": versions(), "config": config, "results": []}


def finish(document: Document) -> None:
    """Adds the number of wrong elements, the average bandwidths and the end time to the document."""
    wrong = sum(cell["nwrong"] or 0 for row in document["results"] for cell in cells(row).values())
    document["out_of_bounds"] = {"count": wrong, "okay": wrong == 0}
    document["average_bus_bandwidth"] = {name: {"bandwidth": average_bandwidth(document["results"], name)}
                                         for name in document["config"]["backends"]}
    document["end_time"] = _now()


def _now() -> str:
    """Returns the local time as text."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


def cells(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the measured cells of a row, by placement: not those that a backend refused."""
    return {name: row[name] for name in PLACEMENTS if row[name] and "time" in row[name]}


def average_bandwidth(rows: list[dict[str, Any]], backend: str) -> float:
    """Returns the mean bus bandwidth of a backend over all rows and placements, in GB/s; 0 without any."""
    bandwidths = [cell["bus_bw"] for row in rows if row["backend"] == backend for cell in cells(row).values()]
    return sum(bandwidths) / len(bandwidths) if bandwidths else 0.0


def save(document: Document, path: str) -> None:
    """Writes the document to a file, as JSON."""
    Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def load(path: str) -> Document:
    """Returns a saved document. Raises ValueError if the file was not saved by tutti bench -J of this version."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not JSON ({error}); compare takes files written by tutti bench -J") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{path} was not written by tutti bench -J")
    if document.get("version") != VERSION:
        raise ValueError(f"{path} has format version {document.get('version')}; this tutti reads version {VERSION}")
    return document


# ---- the table ----
def number(value: float | None, width: int) -> str:
    """Returns a number as text of this width, with as many decimals, at most two, as fit, or as 1.2e+10 if it is too
    large; "N/A" for None."""
    if value is None:
        return "N/A".rjust(width)
    for decimals in (2, 1, 0):
        if len(text := f"{value:.{decimals}f}") <= width:
            return text.rjust(width)
    return f"{value:{width}.1e}" if width >= 7 else f"{value:{width}.0e}"


class Table:
    """Formats the table. stats: with columns for median, 99th percentile and best. several: for more than one backend:
    with columns for the ratio to the first backend and the backend's name."""

    def __init__(self, stats: bool, several: bool) -> None:
        self.several = several
        # (name, width, unit, key in a cell) of each column of a placement.
        self.columns = [("time", 7, "(us)", "time"), ("algbw", 6, "(GB/s)", "alg_bw"), ("busbw", 6, "(GB/s)", "bus_bw"),
                        ("#wrong", 6, "", "nwrong")]
        if stats:
            self.columns += [(name, 7, "(us)", name) for name in ("median", "p99", "best")]
        if several:
            self.columns.append(("ratio", 6, "", "ratio"))

    def header(self) -> list[str]:
        """Returns the lines above the rows."""
        titles = "".join(f"  {title:^{sum(width + 2 for _, width, _, _ in self.columns) - 2}}"
                         for title in PLACEMENTS.values())
        names = "".join(f"  {name:>{width}}" for name, width, _, _ in self.columns) * len(PLACEMENTS)
        units = "".join(f"  {unit:>{width}}" for _, width, unit, _ in self.columns) * len(PLACEMENTS)
        left_columns = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
        return ["#", left_columns.format("", "", "", "", "") + titles.rstrip(),
                left_columns.format("size", "count", "type", "redop", "root") + names
                + ("  backend" if self.several else ""),
                left_columns.format("(B)", "(elements)", "", "", "") + units.rstrip()]

    def line(self, row: dict[str, Any]) -> str:
        """Returns the line of a row."""
        text = f"{row['size']:12}  {row['count']:12}  {row['type']:>8}  {row['redop']:>6}  {row['root']:6}"
        for placement in PLACEMENTS:
            cell = row[placement] or {}
            text += "".join("  " + (f"{cell[key]:{width}}" if key == "nwrong" and cell.get(key) is not None
                                    else number(cell.get(key), width)) for _, width, _, key in self.columns)
        return text + (f"  {row['backend']}" if self.several else "")


def _operation(row: dict[str, Any]) -> str:
    """Returns the collective, type and reduction of a row as text."""
    return f"{row['collective']} of {row['type']}" + ("" if row["redop"] == "none" else f" with {row['redop']}")


class Report:
    """Prints the table on rank 0 while it is measured, and adds the rows to the document."""

    def __init__(self, options: argparse.Namespace, document: Document) -> None:
        self.document = document
        self.several = len(options.backend) > 1
        self.table = Table(options.stats, self.several)
        # The notes about refused operations that have been printed.
        self.printed_notes: set[str] = set()

    def print(self, *lines: str) -> None:
        """Prints lines at once, without buffering."""
        print(*lines, sep="\n", flush=True)

    def opening(self, collective: str) -> None:
        """Prints the lines above the rows of a collective."""
        config, host, versions = self.document["config"], self.document["machine"], self.document["versions"]
        step = (f"{config['step_factor']}(factor)" if "step_factor" in config else f"{config['step_bytes']}(bytes)")
        self.print(
            f"# tutti bench, torch-tutti {versions['torch-tutti']} torch {versions['torch']} "
            f"python {versions['python']}",
            f"# Collective test starting: {collective}",
            f"# nRanks {config['nranks']} minBytes {config['minimum_bytes']} maxBytes {config['maximum_bytes']} step: "
            f"{step} warmup iters: {config['warmup_iters']} iters: {config['iterations']} agg iters: "
            f"{config['aggregated_iterations']} validation: {config['validation']}",
            f"# {host['processor']}, {host['cores']} cores, {host['memory']}, {host['system']}, load "
            f"{host['load']:.2f}")
        if config["shared_tensors"]:
            self.print("# tensors in shared memory")
        if self.several:
            self.print(f"# backends take turns; ratio: median ÷ that of {config['backends'][0]}")
        self.print("#", "# Using devices")
        for rank in config["devices"]:
            core = f"core {rank['core']}" if rank["core"] is not None else "not bound"
            self.print(f"#  Rank {rank['rank']:2} Pid {rank['pid']:6} on {rank['hostname']:>10} device "
                       f"{rank['device']} {core}")
        self.print(*self.table.header())

    def row(self, row: dict[str, Any]) -> None:
        """Prints a row and adds it to the document. Prints a note the first time that an operation is refused."""
        self.document["results"].append(row)
        self.print(self.table.line(row))
        for placement in PLACEMENTS:
            reason = (row[placement] or {}).get("refused")
            note = f"# {row['backend']} does not support {_operation(row)}: {reason}"
            if reason and note not in self.printed_notes:
                self.printed_notes.add(note)
                self.print(note)

    def closing(self, collective: str) -> None:
        """Prints the sums below the rows of a collective."""
        rows = [row for row in self.document["results"] if row["collective"] == collective]
        wrong = sum(cell["nwrong"] or 0 for row in rows for cell in cells(row).values())
        self.print(f"# {'Out of bounds values':20} : {wrong} {'FAILED' if wrong else 'OK'}")
        for name in self.document["config"]["backends"]:
            self.print(f"# {'Avg bus bandwidth':20} : {average_bandwidth(rows, name):g}"
                       + (f" ({name})" if self.several else ""))
        self.print("#", f"# Collective test concluded: {collective}", "#")


def check_writable(path: str, flag: str) -> None:
    """Raises ValueError unless a file can be written at `path`; called before minutes are spent on measuring. flag: the
    option that names the file."""
    folder = Path(path).resolve().parent
    if Path(path).is_dir() or not folder.is_dir() or not os.access(path if Path(path).exists() else folder, os.W_OK):
        raise ValueError(f"{flag} {path} cannot be written: its folder must exist and be writable")


def warn(text: str) -> None:
    """Prints a line to standard error."""
    print(f"tutti: {text}", file=sys.stderr, flush=True)

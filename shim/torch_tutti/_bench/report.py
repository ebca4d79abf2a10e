"""What `tutti bench` tells: the table on standard output, with the columns of nccl-tests, and the document that -J
saves, with their keys and ours. Nothing here measures or communicates, or imports torch.
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
SHARED_SETTINGS = ("TUTTI_", "GLOO_", "NCCL_", "OMP_", "TORCH_DISTRIBUTED_DEBUG")      # variables worth remembering
Document = dict[str, Any]


# ---- where and with what it was measured ----
def _line_of(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "unknown")


def machine() -> dict[str, Any]:
    return {"name": platform.node(), "processor": _line_of("/proc/cpuinfo", "model name"), "cores": os.cpu_count(),
            "cores_allowed": len(os.sched_getaffinity(0)), "memory": _line_of("/proc/meminfo", "MemTotal"),
            "system": f"{platform.system()} {platform.release()}", "load": os.getloadavg()[0]}


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for distribution in ("torch", "torch-tutti"):
        try:
            found[distribution] = version(distribution)
        except PackageNotFoundError:
            found[distribution] = None
    return found


def begin(options: argparse.Namespace, words: list[str], ranks: list[dict[str, Any]]) -> Document:
    """The document before anything is measured. ranks: a description of each."""
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
    """Adds the sums."""
    wrong = sum(cell["nwrong"] or 0 for row in document["results"] for cell in cells(row).values())
    document["out_of_bounds"] = {"count": wrong, "okay": wrong == 0}
    document["average_bus_bandwidth"] = {name: {"bandwidth": average_bandwidth(document["results"], name)}
                                         for name in document["config"]["backends"]}
    document["end_time"] = _now()


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def cells(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What was measured of the row, by placement."""
    return {name: row[name] for name in PLACEMENTS if row[name] and "time" in row[name]}


def average_bandwidth(rows: list[dict[str, Any]], backend: str) -> float:
    found = [cell["bus_bw"] for row in rows if row["backend"] == backend for cell in cells(row).values()]
    return sum(found) / len(found) if found else 0.0


def save(document: Document, path: str) -> None:
    Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def load(path: str) -> Document:
    """Raises ValueError when it is no file of ours."""
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
    """With as many decimals, at most two, as the width has room for."""
    if value is None:
        return "N/A".rjust(width)
    for decimals in (2, 1, 0):
        if len(text := f"{value:.{decimals}f}") <= width:
            return text.rjust(width)
    return f"{value:{width}.1e}" if width >= 7 else f"{value:{width}.0e}"


class Table:
    """Lines for standard output. stats: with median, 99th percentile and best. several: more than one backend, so a
    ratio to the first and the backend's name end each line."""

    def __init__(self, stats: bool, several: bool) -> None:
        self.several = several
        self.columns = [("time", 7, "(us)", "time"), ("algbw", 6, "(GB/s)", "alg_bw"), ("busbw", 6, "(GB/s)", "bus_bw"),
                        ("#wrong", 6, "", "nwrong")]
        if stats:
            self.columns += [(name, 7, "(us)", name) for name in ("median", "p99", "best")]
        if several:
            self.columns.append(("ratio", 6, "", "ratio"))

    def header(self) -> list[str]:
        titles = "".join(f"  {title:^{sum(width + 2 for _, width, _, _ in self.columns) - 2}}"
                         for title in PLACEMENTS.values())
        names = "".join(f"  {name:>{width}}" for name, width, _, _ in self.columns) * len(PLACEMENTS)
        units = "".join(f"  {unit:>{width}}" for _, width, unit, _ in self.columns) * len(PLACEMENTS)
        first = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
        return ["#", first.format("", "", "", "", "") + titles.rstrip(),
                first.format("size", "count", "type", "redop", "root") + names + ("  backend" if self.several else ""),
                first.format("(B)", "(elements)", "", "", "") + units.rstrip()]

    def line(self, row: dict[str, Any]) -> str:
        text = f"{row['size']:12}  {row['count']:12}  {row['type']:>8}  {row['redop']:>6}  {row['root']:6}"
        for placement in PLACEMENTS:
            cell = row[placement] or {}
            text += "".join("  " + (f"{cell[key]:{width}}" if key == "nwrong" and cell.get(key) is not None
                                    else number(cell.get(key), width)) for _, width, _, key in self.columns)
        return text + (f"  {row['backend']}" if self.several else "")


def _operation(row: dict[str, Any]) -> str:
    return f"{row['collective']} of {row['type']}" + ("" if row["redop"] == "none" else f" with {row['redop']}")


class Report:
    """Prints while it is measured, and collects the document. Only rank 0 has one."""

    def __init__(self, options: argparse.Namespace, document: Document) -> None:
        self.document = document
        self.several = len(options.backend) > 1
        self.table = Table(options.stats, self.several)
        self.said: set[str] = set()

    def print(self, *lines: str) -> None:
        print(*lines, sep="\n", flush=True)

    def opening(self, collective: str) -> None:
        config, host, made = self.document["config"], self.document["machine"], self.document["versions"]
        step = (f"{config['step_factor']}(factor)" if "step_factor" in config else f"{config['step_bytes']}(bytes)")
        self.print(
            f"# tutti bench, torch-tutti {made['torch-tutti']} torch {made['torch']} python {made['python']}",
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
            place = f"core {rank['core']}" if rank["core"] is not None else "not bound"
            self.print(f"#  Rank {rank['rank']:2} Pid {rank['pid']:6} on {rank['hostname']:>10} device "
                       f"{rank['device']} {place}")
        self.print(*self.table.header())

    def row(self, row: dict[str, Any]) -> None:
        self.document["results"].append(row)
        self.print(self.table.line(row))
        for placement in PLACEMENTS:
            reason = (row[placement] or {}).get("refused")
            said = f"# {row['backend']} does not support {_operation(row)}: {reason}"
            if reason and said not in self.said:
                self.said.add(said)
                self.print(said)

    def closing(self, collective: str) -> None:
        rows = [row for row in self.document["results"] if row["collective"] == collective]
        wrong = sum(cell["nwrong"] or 0 for row in rows for cell in cells(row).values())
        self.print(f"# {'Out of bounds values':20} : {wrong} {'FAILED' if wrong else 'OK'}")
        for name in self.document["config"]["backends"]:
            self.print(f"# {'Avg bus bandwidth':20} : {average_bandwidth(rows, name):g}"
                       + (f" ({name})" if self.several else ""))
        self.print("#", f"# Collective test concluded: {collective}", "#")


def check_writable(path: str, flag: str) -> None:
    """Before minutes are spent: raises ValueError unless a file can be written there."""
    folder = Path(path).resolve().parent
    if Path(path).is_dir() or not folder.is_dir() or not os.access(path if Path(path).exists() else folder, os.W_OK):
        raise ValueError(f"{flag} {path} cannot be written: its folder must exist and be writable")


def warn(text: str) -> None:
    print(f"tutti: {text}", file=sys.stderr, flush=True)

"""The texts and the document of `tutti model`: machine parameters, the table of times, the sizes from which each
algorithm is chosen and was fastest, and the document that -J saves. Nothing here measures, communicates or imports
torch."""
from __future__ import annotations

import argparse
import os
from typing import Any

from torch_tutti._bench.report import SHARED_SETTINGS, _now, machine, number, versions

FORMAT = "tutti model"
VERSION = 1
# the machine parameters of links between hosts
BETWEEN_HOSTS = ("message", "announced", "wire")
Document = dict[str, Any]


def begin(options: argparse.Namespace, words: list[str], group: dict[str, Any]) -> Document:
    """Returns the document before anything is measured. words: the command line. group: the machine parameters of the
    group, as this rank has them."""
    config = {"collective": options.what, "nranks": group["ranks"], "minimum_bytes": options.minbytes,
              "maximum_bytes": options.maxbytes, "step_factor": options.stepfactor, "iterations": options.iters,
              "type": "float", "timeout": options.timeout, "gradients": options.gradients}
    return {"format": FORMAT, "version": VERSION, "start_time": _now(), "args": words,
            "env": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(SHARED_SETTINGS)},
            "machine": machine(), "versions": versions(), "config": config, "group": group, "results": []}


def finish(document: Document, choices: list[tuple[int, str]]) -> None:
    """Adds what follows from the results. choices: (size, algorithm that the core chooses), at more sizes than were
    measured."""
    rows = document["results"]
    document["chosen"] = stretches(choices)
    document["fastest"] = stretches([(row["size"], row["fastest"]) for row in rows])
    document["regret"] = [{"size": row["size"], "ratio": regret(row)} for row in rows]
    document["fit"] = fit([(row["size"], row["algorithms"][row["chosen"]]["measured"]) for row in rows
                           if row["chosen"] in row["algorithms"]])
    document["end_time"] = _now()


def fit(times: list[tuple[int, float]]) -> dict[str, float] | None:
    """Returns α in us and β in ns of the line T = α + nβ with the least squares of relative errors. None if there are
    fewer than 3 times, or no such line has positive α and β. times: (bytes, us)."""
    terms = [(1 / time, size / time) for size, time in times if time]
    ones, mixed, sizes = (sum(x * x for x, _ in terms), sum(x * y for x, y in terms), sum(y * y for _, y in terms))
    first, second, divisor = sum(x for x, _ in terms), sum(y for _, y in terms), ones * sizes - mixed * mixed
    if len(terms) < 3 or divisor <= 0:
        return None
    alpha, beta = (sizes * first - mixed * second) / divisor, (ones * second - mixed * first) / divisor
    return {"alpha_us": alpha, "beta_ns": 1e3 * beta} if alpha > 0 and beta > 0 else None


def advice(found: dict[str, float], gradients: int) -> list[str]:
    """Returns lines that recommend a size of buckets. Each bucket costs α, and the nβ of the last one overlaps with
    nothing, so the cost is least at n = √(Nα/β) for N bytes of gradients."""
    half_rate_bytes = 1e3 * found["alpha_us"] / found["beta_ns"]
    bucket_bytes = max((gradients * half_rate_bytes) ** 0.5, 9 * half_rate_bytes)
    return [f"# a call takes {found['alpha_us']:.3g} us (α) and {found['beta_ns']:.3g} ns for a byte (β): half of "
            f"the full rate from {bytes_of(half_rate_bytes)} on (α/β), nine tenths from "
            f"{bytes_of(9 * half_rate_bytes)}",
            f"# buckets of DistributedDataParallel, for {bytes_of(gradients)} of gradients: {bytes_of(bucket_bytes)} "
            f"(√(Nα/β), but at least nine tenths of the rate), bucket_cap_mb={max(0.1, bucket_bytes / (1 << 20)):.2g}"]


def stretches(named: list[tuple[int, str]]) -> list[dict[str, Any]]:
    """Joins neighbouring sizes with the same algorithm. named: (size, algorithm). Returns algorithm, first and last
    size of each stretch."""
    found: list[dict[str, Any]] = []
    for size, name in named:
        if found and found[-1]["algorithm"] == name:
            found[-1]["last_bytes"] = size
        else:
            found.append({"algorithm": name, "first_bytes": size, "last_bytes": size})
    return found


def regret(row: dict[str, Any]) -> float | None:
    """Returns the time of the chosen algorithm divided by that of the fastest. None if the chosen one was not
    measured."""
    cells = row["algorithms"]
    least = cells[row["fastest"]]["measured"]
    return cells[row["chosen"]]["measured"] / least if row["chosen"] in cells and least else None


# ---- machine parameters ----
def bytes_of(value: float) -> str:
    """Returns bytes as text, in KiB, MiB or GiB."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << shift:
            return f"{value / (1 << shift):.3g} {unit}"
    return f"{value:.3g} bytes"


def _parameter_text(name: str, row: dict[str, Any]) -> str:
    """Returns name, value and unit of a machine parameter as text."""
    value = bytes_of(row["value"]) if row["unit"] == "bytes" else f"{row['value']:.3g} {row['unit']}"
    return f"{name} {value}"


def _wrapped(items: list[str], width: int = 110) -> list[str]:
    """Returns the items, joined by commas, as comment lines of at most `width` columns."""
    lines, line = [], "#  "
    for item in items:
        if len(line) + len(item) > width:
            lines.append(line)
            line = "#  "
        line += f" {item},"
    return [*lines, line.rstrip(",")]


def between_hosts(group: dict[str, Any]) -> str:
    """Returns a text about the cost of a message and of its bytes between hosts, and whether it was measured."""
    message, announced, wire = (group["figures"][name] for name in BETWEEN_HOSTS)
    measured = [row["value"] != row["typical"] for row in (message, wire)]
    return (f"a message takes {message['value'] / 1e3:.3g} us (α), one of more than 64 KiB "
            f"{announced['value'] / 1e3:.3g} us, a byte {wire['value']:.3g} ns (β), so "
            f"{1 / wire['value']:.3g} GB/s; "
            + ("measured when the group joined" if all(measured) else "typical parameters: they were not measured"))


def opening(document: Document) -> list[str]:
    """Returns the lines before the table: versions, group and machine parameters."""
    config, group, made = document["config"], document["group"], document["versions"]
    hosts = group["ranks_of_host"]
    cores = f"{group['cores_of_host']} core{'s' * (group['cores_of_host'] != 1)}"
    where = (f"one host, {cores}" if len(hosts) == 1 else
             f"{len(hosts)} hosts ({', '.join(map(str, hosts))} ranks), as if {cores} each")
    lines = [f"# tutti model, torch-tutti {made['torch-tutti']} torch {made['torch']} python {made['python']}",
             f"# {config['collective']} of {config['nranks']} ranks on {where}; median of {config['iterations']} calls",
             f"# {document['machine']['processor']}, load {document['machine']['load']:.2f}", "#"]
    figures = [_parameter_text(name, row) for name, row in group["figures"].items() if name not in BETWEEN_HOSTS]
    lines += ["# machine:" if len(hosts) == 1 else "# machine (typical parameters, because hosts do not know each "
                                                   "other's):"]
    lines += _wrapped(figures)
    if len(hosts) > 1:
        lines.append(f"# between hosts: {between_hosts(group)}")
    return [*lines, "# (tutti info explains each of them)",
            "# measured: on the slowest rank, including torch's part of a call"
            + ("; N/A: messages of one host have no predicted cost" if len(hosts) == 1 else ""), "#"]


# ---- the table ----
COLUMNS = (("predicted", 9, "(us)"), ("measured", 9, "(us)"), ("ratio", 7, ""), ("tile", 9, "(B)"), ("slots", 5, ""))


def header(width: int) -> list[str]:
    """Returns the two lines of column titles. width: of the longest name of an algorithm."""
    names = "".join(f"  {name:>{room}}" for name, room, _ in COLUMNS)
    units = "".join(f"  {unit:>{room}}" for _, room, unit in COLUMNS)
    return [f"# {'size':>10}  {'algorithm':{width}}{names}", f"# {'(B)':>10}  {'':{width}}{units}".rstrip()]


def lines(row: dict[str, Any], width: int) -> list[str]:
    """Returns a line of the table for each algorithm at one size. Its ratio is the predicted time divided by the
    measured one."""
    found = []
    for name, cell in row["algorithms"].items():
        ratio = cell["predicted"] / cell["measured"] if cell["predicted"] and cell["measured"] else None
        values = (cell["predicted"], cell["measured"], ratio)
        marks = [word for word in ("chosen", "fastest") if row[word] == name]
        text = f"{row['size']:12}  {name:{width}}"
        text += "".join(f"  {number(value, room)}" for value, (_, room, _) in zip(values, COLUMNS))
        found.append(f"{text}  {cell['tile_bytes']:9}  {cell['slots']:5}  {' '.join(marks)}".rstrip())
    return found


def _described(found: list[dict[str, Any]]) -> str:
    """Returns the stretches of stretches() as text."""
    return ", ".join(f"{one['algorithm']} from {one['first_bytes']}" for one in found) + " bytes"


def closing(document: Document) -> list[str]:
    """Returns the lines after the table: chosen and fastest algorithms, regret and advice."""
    ratios = [(one["ratio"], one["size"]) for one in document["regret"] if one["ratio"]]
    text = ["#", f"# chosen:  {_described(document['chosen'])}", f"# fastest: {_described(document['fastest'])}"]
    if ratios:
        worst, size = max(ratios)
        mean = sum(ratio for ratio, _ in ratios) / len(ratios)
        text.append(f"# regret (chosen ÷ fastest): {mean:.2f} in the mean of the sizes, {worst:.2f} at most, "
                    f"at {size} bytes")
    if document["fit"] and document["config"]["collective"] == "all_reduce":
        text += advice(document["fit"], document["config"]["gradients"])
    return text

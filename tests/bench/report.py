"""Writes the results of script/bench into docs/performance.md, the pages and the file of this processor in
docs/measured, and draws docs/img. On a page, tables stand between `<!-- measured: NAME -->` and `<!-- end -->`;
everything else is written by hand and stays.

    python tests/bench/report.py RESULTS [--pages PAGE.md ...] [--images docs/img] [--measured docs/measured]

RESULTS is a folder with files of the benchmarks. A table whose file is missing stays as it is, and the program says so.
"""
import argparse
import datetime
import json
import os
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A test loads this file by its path.
sys.path[:0] = [str(ROOT / "tests/bench"), str(ROOT / "tests/bench/hosts")]

import compare_hosts  # noqa: E402
import processors  # noqa: E402
from words import (KI, LIMIT_GOAL, MI, has_moved, is_alike, judge, of_limit, ratio, size, table, time,  # noqa: E402
                   what, where)

FILES = {"core": "core.json", "growth": "growth.json", "peers": "peers.json", "small": "torch_small.json",
         "large": "torch_large.json", "shared": "torch_shared.json", "call": "call.json", "ddp": "ddp.txt",
         "fsdp": "fsdp.txt", "decode": "decode.txt", "hosts": "hosts.json", "hosts_peers": "hosts_peers.json",
         "regret": "regret.json"}
# {collective of the C core: (its name in peers.c, its name in tutti bench, whether tables show it in place)}
NAMES = {"allreduce": ("allreduce", "all_reduce", True), "reduce_scatter": ("reduce_scatter", "reduce_scatter", False),
         "allgather": ("allgather", "all_gather", False), "broadcast": ("broadcast", "broadcast", True),
         "all_to_all": ("all_to_all", "alltoall", False), "reduce": ("reduce", "reduce", True),
         "gather": ("gather", "gather", False), "scatter": ("scatter", "scatter", False),
         "send_recv": ("send and back", "sendrecv", False)}
# A flag barrier of cores that share a cache takes less.
NEAR_NS = 130
# The tables write rows up to so many bytes apart from longer ones: a call of up to 64 KiB takes microseconds, which
# depend on the distance of the cores, and the caches hold its tensors.
SHORT_BYTES = 64 * KI


# ---- the machine ----
def placement(core):
    """Returns a sentence with the flag barriers, and with how near the cores were."""
    flags = [row["flag_ns"] for row in core["rows"] if row["ranks"] == 2]
    if not flags:
        return ""
    near = sum(flag < NEAR_NS for flag in flags) / len(flags)
    place = ("the two cores share a level-3 cache" if near > 0.95 else "the two cores share no cache" if near < 0.05
             else f"the hypervisor moved the cores: in {near:.0%} of the rows they share a level-3 cache")
    return f"A bare flag barrier takes {min(flags):.0f} to {max(flags):.0f} ns: {place}."


def machine(results):
    processor, found = processors.identity(), processors.versions()
    return (f"Measured on {datetime.date.today()} on {processors.full_name(processor)}, {processor['cores']} cores "
            f"({processor['caches']}), {found['system']}, {found['compiler']}, torch {found['torch']}, load "
            f"{os.environ.get('BENCH_LOAD', 'unknown')} before. " + placement(results["core"])).strip()


def flag(row):
    """Returns the flag barrier before a row as text, and also that after the row if the cores were moved meanwhile."""
    before, after = row["flag_ns"], row["flag_after_ns"]
    if not before:
        return ""
    return f"{before:.0f}" if is_alike(before, after) else f"{before:.0f}, then {after:.0f}"


# ---- the C core ----
def goal(row):
    """Returns the goal of a row as text. If a limit decides instead of the goal, returns the limit, and the goal after
    "not"."""
    if judge(row) != "goal":
        limit_us = row["median_us"] / of_limit(row)
        return f"≤ {LIMIT_GOAL:g} × limit: {judge(row)} {time(limit_us)}; not {row['goal']:g}"
    said = f"≤ {row['goal']:g}"
    if row["goal_p99"]:
        said += f", p99 {ratio(row['p99_us'] / row['beside_single_us'])} ≤ {row['goal_p99']:g}"
    if row["goal_p99_us"]:
        said += f", p99 < {time(row['goal_p99_us'])}"
    return said


def verdict(row):
    if has_moved(row):
        return "moved"
    times = f"{ratio(of_limit(row))} × limit"
    return f"**no**; {times}" if not row["met"] else "yes" if judge(row) == "goal" else f"yes; {times}"


def goals(results):
    rows = [row for row in results["core"]["rows"] if row["goal"]]
    lines = [[what(row), size(row["bytes"]), where(row), time(row["median_us"]), time(row["p99_us"]),
              time(row["best_us"]), f"{row['beside']} {time(row['beside_us'])}", ratio(row["ratio"]), goal(row),
              flag(row), verdict(row)] for row in rows]
    header = ["case", "bytes", "tensors", "median", "p99", "best", "beside", "ratio", "goal", "flag, ns", "met"]
    return "\n\n".join([said_of_goals(rows), *apart(rows, lines, header)])


def said_of_goals(rows):
    """Returns sentences with the numbers of goals that are met, of rows that a limit judges, and of rows not judged."""
    judged = [row for row in rows if not has_moved(row)]
    limited, moved = sum(judge(row) != "goal" for row in judged), len(rows) - len(judged)
    said = f"{sum(row['met'] for row in judged)} of {len(judged)} goals are met."
    said += f" Rows judged by their limit: {limited}." if limited else ""
    return said + (f" Rows not judged, because the cores moved each time: {moved}." if moved else "")


def apart(rows, lines, header):
    """Yields a table of the short rows and one of the long rows, each after a heading. lines: those of the rows."""
    for said, short in (("Up to", True), ("More than", False)):
        chosen = [line for row, line in zip(rows, lines) if (row["bytes"] <= SHORT_BYTES) == short]
        if chosen:
            yield f"{said} {SHORT_BYTES // KI} KiB:\n\n" + table(header, chosen)


def core_row(core, name, count, shared, in_place):
    wanted = {"case": name, "bytes": count, "shared": shared, "in_place": in_place, "ranks": 2, "dtype": "float32"}
    return next((row for row in core["rows"] if wanted.items() <= row.items()), None)


def median(row):
    """Returns the median of a row as text; "" if it was not measured."""
    return time(row["median_us"]) + " (moved)" * has_moved(row) if row else ""


def core(results):
    found, lines, rows = results["core"], [], []
    copies = memcpy(found)
    for name, (_, _, in_place) in NAMES.items():
        for count in sorted({row["bytes"] for row in found["rows"] if row["case"] == name}):
            ours = [core_row(found, name, count, shared, in_place) for shared in (False, True)]
            if ours[0]:
                rows.append(ours[0])
                copied = ours[0]["beside_us"] if ours[0]["beside"] == "memcpy" else copies.get(count)
                lines.append([name, size(count), *(median(row) for row in ours),
                              time(copied) if copied else "", time(limit(ours[0]))])
    return "\n\n".join(apart(rows, lines, ["case", "bytes", "private", "shared", "memcpy", "limit"]))


def memcpy(core):
    """Returns {bytes: µs} of a memcpy on both ranks at once: the median over all rows of two ranks."""
    sizes = {row["bytes"] for row in core["rows"]}
    found = {count: [row["beside_us"] for row in core["rows"] if row["bytes"] == count and row["beside"] == "memcpy"
                     and row["ranks"] == 2 and row["case"] != "send_recv"] for count in sizes}
    return {count: statistics.median(times) for count, times in sorted(found.items()) if times}


def limit(row):
    """Returns the µs that no library can go below: those of a flag barrier or of the memory, whichever are more."""
    return max(row["flag_ns"] / 1e3, row["limit_us"]) if row["bytes"] >= 4 * KI else row["limit_us"]


# ---- beside others ----
def places(rows):
    """Returns a sentence that tells in how many comparisons of the libraries the cores shared a level-3 cache."""
    near, apart = (sum(row["flag_ns"] is not None and (row["flag_ns"] < NEAR_NS) == wanted for row in rows)
                   for wanted in (True, False))
    text = f"The cores shared a level-3 cache in {near} of {len(rows)} comparisons, and in {apart} not"
    unlike = len(rows) - near - apart
    return text + (f"; {unlike}, marked *, were measured with the cores here for one library and there for another."
                   if unlike else ".")


def peers_tables(rows):
    """Yields a sentence on the placement of the cores, unless there were more ranks than cores; then for each kind of
    tutti's tensors a table of how many times longer the others take."""
    libraries = [name for name in rows[0]["times"] if not name.startswith("tutti")]
    if not libraries:
        yield "Neither Open MPI nor MPICH was installed."
        return
    sizes = sorted({row["bytes"] for row in rows})
    # All are 0 with more ranks than cores.
    if any(row["flag_ns"] != 0 for row in rows):
        yield places(rows)
    for ours in (name for name in rows[0]["times"] if name.startswith("tutti")):
        lines = [[collective, *(" / ".join(
            ratio(row["times"][name] / row["times"][ours]) for name in libraries) + "*" * (row["flag_ns"] is None)
            for count in sizes for row in rows if (row["collective"], row["bytes"]) == (collective, count))]
            for collective in dict.fromkeys(row["collective"] for row in rows)]
        kind = "shared" if "shared" in ours else "private"
        yield (f"{' and '.join(libraries)} ÷ tutti, {kind} tensors:\n\n" + table(["bytes", *map(size, sizes)], lines))


def peers(results):
    return "\n\n".join(peers_tables(results["peers"]["rows"]))


def torch_rows(results, *names):
    return [row for name in names if name in results for row in results[name]["results"]]


def of_torch(rows, backend, collective, placement):
    """Returns {bytes: median in µs} of a collective on a backend. placement: "in_place" or "out_of_place"."""
    return {row["size"]: row[placement]["median"] for row in rows
            if (row["backend"], row["collective"]) == (backend, collective) and "median" in (row[placement] or {})}


def beside_gloo(rows):
    sizes = sorted({row["size"] for row in rows})
    lines = []
    for collective in dict.fromkeys(row["collective"] for row in rows):
        for placement in ("out_of_place", "in_place"):
            ours, theirs = (of_torch(rows, name, collective, placement) for name in ("tutti", "gloo"))
            if ours and theirs:
                lines.append([collective + (", in place" if placement == "in_place" else ""),
                              *(ratio(theirs[count] / ours[count]) if count in ours and count in theirs else ""
                                for count in sizes)])
    return table(["bytes", *map(size, sizes)], lines)


def through_torch(results):
    rows, shared_rows = torch_rows(results, "small", "large"), torch_rows(results, "shared")
    ours, theirs = (of_torch(rows, name, "all_reduce", "in_place") for name in ("tutti", "gloo"))
    shared = of_torch(shared_rows, "tutti", "all_reduce", "in_place")
    times = [[size(count), time(ours[count]), time(shared[count]) if count in shared else "",
              time(theirs[count]) if count in theirs else ""] for count in sorted(ours)]
    return "\n\n".join([
        "gloo ÷ tutti, private tensors:", beside_gloo(rows), "gloo ÷ tutti, shared tensors:", beside_gloo(shared_rows),
        "all_reduce:", table(["bytes", "tutti", "tutti, shared", "gloo"], times)])


def call(results):
    figures = results["call"]["figures"]
    lines = []
    for form, (median, _, _) in figures.items():
        backend, _, kind = form.partition(" ")
        if backend == "tutti":
            beside = figures.get(f"fake {kind}")
            lines.append([kind, f"{beside[0]:.2f}" if beside else "", f"{median:.2f}",
                          f"{median - beside[0]:.2f}" if beside else "", results["call"]["verdicts"].get(form, "")])
    return table(["call", "fake, µs", "tutti, µs", "ours, µs", "goal"], lines)


# ---- pictures ----
def curves(results, name, in_place):
    """Returns (label, style, {bytes: µs}) for each curve of one collective."""
    in_peers, in_torch, _ = NAMES[name]
    core, found = results["core"], []
    # send_recv is measured there and back: in peers.c at all sizes, in bench_core below 4 KiB.
    one_way = 0.5 if name == "send_recv" else 1

    def ours(shared):
        rows = ((count, core_row(core, name, count, shared, in_place)) for count in sizes)
        return {count: row["median_us"] * (one_way if count < 4 * KI else 1) for count, row in rows if row}
    sizes = sorted({row["bytes"] for row in core["rows"]})
    wanted = in_peers + ("" if in_place or name != "allreduce" else ", out of place")

    # These figures of tutti are preferred: they were measured in the same placement of the cores as the others.
    def beside(library):
        return {row["bytes"]: row["times"][library] * one_way for row in results.get("peers", {}).get("rows", [])
                if row["collective"] == wanted and library in row["times"]}
    found += [("tutti, private", "C0-", beside("tutti") or ours(False)),
              ("tutti, shared", "C2-", beside("tutti, shared") or ours(True)),
              ("Open MPI", "C1-", beside("Open MPI")), ("MPICH", "C3-", beside("MPICH"))]
    # tutti bench measures send_recv in both directions at once, so it does not compare.
    if name != "send_recv":
        rows = torch_rows(results, "small", "large")
        for backend, style in (("tutti", "C0--"), ("gloo", "C4--")):
            for kind in ("in_place", "out_of_place"):
                if line := of_torch(rows, backend, in_torch, kind):
                    found.append((f"{backend} through torch", style, line))
                    break
    limits = {count: limit(row) * (one_way if count < 4 * KI else 1) for count in sizes
              if (row := core_row(core, name, count, False, in_place))}
    found += [("one memcpy", "k:", memcpy(core)), ("limit: a flag, or the memory", "k--", limits)]
    if name == "allreduce":
        found.append(("T_coh, of staged tensors", "y:", {row["bytes"]: row["beside_us"] for row in core["rows"] if (
            row["beside"], row["in_place"], row["shared"], row["case"]) == ("T_coh", in_place, False, name)}))
    return [curve for curve in found if curve[2]]


def draw_one(axes, results, name, in_place):
    for label, style, line in curves(results, name, in_place):
        thin = style[0] in "ky" or "--" in style
        axes.plot(list(line), list(line.values()), style, label=label, linewidth=1 if thin else 1.8,
                  marker="" if thin else ".")
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="median time, µs",
             title=name + (", in place" if in_place else ""))
    axes.set_xscale("log", base=2)
    axes.grid(True, which="major", linewidth=0.4)


def pictures(results, folder):
    from matplotlib.figure import Figure
    folder.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    axes = figure.subplots()
    draw_one(axes, results, "allreduce", True)
    axes.legend(fontsize=9)
    figure.savefig(folder / "allreduce.png", dpi=110)
    figure = Figure(figsize=(14, 12), layout="constrained")
    grid = figure.subplots(3, 3)
    for axes, (name, (_, _, in_place)) in zip(grid.flat, NAMES.items()):
        draw_one(axes, results, name, in_place and name in ("broadcast", "reduce"))
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9)
    figure.savefig(folder / "collectives.png", dpi=110)


HOSTS_DRAWN = ("allreduce", "allgather", "broadcast", "all_to_all")
# The ways of compare_hosts.py that the picture shows, and their styles.
WAYS_DRAWN = {"tutti by ucx": "C0--", "tutti by tcp": "C2--", "gloo": "C4--"}


def hosts_curves(results, per_host, collective):
    """Yields (label, style, {bytes: µs}) for each curve of one collective between two hosts."""
    rows = [row for row in results["hosts_peers"]["rows"][per_host] if row["collective"] == collective]
    for library, style in (("tutti", "C0.-"), ("Open MPI", "C1.-"), ("MPICH", "C3.-")):
        yield library, style, {row["bytes"]: row["times"][library] for row in rows if library in row["times"]}
    if collective == "allreduce" and "hosts" in results:
        for way, style in WAYS_DRAWN.items():
            line = of_hosts(results["hosts"]["figures"], compare_hosts.case_name(way, per_host))
            yield f"{way} through torch", style, {int(count): seconds * 1e6 for count, seconds in line.items()}


def of_hosts(figures, name):
    """Returns {bytes: seconds} of an all-reduce between two hosts; empty if it did not end well in any round."""
    if name not in figures:
        raise ValueError(f"{FILES['hosts']} lacks '{name}': it has {', '.join(figures)}; run script/bench hosts again")
    return figures[name]


def hosts_picture(results, folder):
    from matplotlib.figure import Figure
    folder.mkdir(parents=True, exist_ok=True)
    placements = list(results["hosts_peers"]["rows"])
    figure = Figure(figsize=(14, 3.6 * len(placements)), layout="constrained")
    grid = figure.subplots(len(placements), len(HOSTS_DRAWN), squeeze=False)
    for line, per_host in zip(grid, placements):
        for axes, collective in zip(line, HOSTS_DRAWN):
            for label, style, points in hosts_curves(results, per_host, collective):
                if points:
                    axes.plot(list(points), list(points.values()), style, label=label)
            axes.set(xscale="log", yscale="log", xlabel="bytes", title=f"{collective}, 2 hosts x {per_host}")
            axes.set_xscale("log", base=2)
            axes.grid(True, which="major", linewidth=0.4)
        line[0].set_ylabel("median time, µs")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=9)
    figure.savefig(folder / "hosts.png", dpi=100)


# ---- joining and plans ----
def kib(count):
    return f"{count / KI:,.0f} KiB" if count < 10 * MI else f"{count / MI:,.0f} MiB"


def joins(growth):
    rows = [(row["ranks"], time(row["join_ms"] * 1e3), time(row["processor_ms"] * 1e3), kib(row["heap"]),
             kib(row["heap_after"]) if row["heap_after"] else "", kib(row["segment"]),
             kib(row["segment_after"]) if row["heap_after"] else "", kib(row["reserved"])) for row in growth["joins"]]
    return table(("ranks", "joining", "processor time", "heap of a rank", "after the calls", "segment",
                  "after the calls", "at most"), rows)


def named(row):
    return f"{row['family']} {row['algorithm']}"


def plans(growth):
    groups = {}
    for row in growth["plans"]:
        groups.setdefault((row["hosts"], row["per_host"]), []).append(row)
    rows = []
    for (hosts, ranks), group in groups.items():
        slowest, largest = max(group, key=lambda row: row["ms"]), max(group, key=lambda row: row["bytes"])
        rows.append((f"{hosts} × {ranks}", len(group),
                     time(1e3 * statistics.median(row["ms"] for row in group)),
                     f"{time(slowest['ms'] * 1e3)} ({named(slowest)})",
                     kib(statistics.median(row["bytes"] for row in group)),
                     f"{kib(largest['bytes'])} ({named(largest)})", kib(max(row["peak"] for row in group))))
    return table(("hosts × ranks", "plans", "building, median", "slowest", "kept, median", "largest", "while building"),
                 rows)


def taken():
    load = os.environ.get("BENCH_LOAD", "unknown")
    return f"Taken on {datetime.date.today()} on {os.cpu_count()} cores, load {load}."


def growth(results):
    return "\n\n".join((taken(), joins(results["growth"]), plans(results["growth"])))


# ---- between hosts ----
def hosts(results):
    return "\n".join((taken(), "", *compare_hosts.table(results["hosts"]["figures"])))


def hosts_peers(results):
    found = [taken()]
    for per_host, rows in results["hosts_peers"]["rows"].items():
        first, *others = peers_tables(rows)
        found += [f"2 hosts x {per_host}. {first}", *others]
    return "\n\n".join(found)


# ---- choices ----
def regret(results):
    """Returns a table of regrets by collective and size, private / shared, and a table of the rows where another choice
    would have been better."""
    found = results["regret"]
    rows, good = found["rows"], found["good"]
    names, sizes = ({row[key]: None for row in rows} for key in ("case", "bytes"))
    of = {(row["case"], row["bytes"], row["shared"]): row for row in rows}
    worst = sorted((row for row in rows if row["regret"] > good), key=lambda row: -row["regret"])

    def cell(name, count):
        pair = [of.get((name, count, shared)) for shared in (False, True)]
        return " / ".join(f"**{row['regret']:.2f}**" if row["regret"] > good else f"{row['regret']:.2f}"
                          for row in pair if row)
    mean = statistics.mean(row["regret"] for row in rows)
    found = [f"{taken()} {found['ranks']} ranks. At most {good:g} in {len(rows) - len(worst)} of {len(rows)} rows "
             f"({1 - len(worst) / len(rows):.0%}), {mean:.3f} on average. "
             + places(rows) * any(row["flag_ns"] for row in rows),
             table(["private / shared", *map(size, sizes)],
                   [[name, *(cell(name, count) for count in sizes)] for name in names])]
    if worst:
        found.append("The worst:\n\n" + table(
            ["case", "bytes", "tensors", "chosen", "best", "regret", "flag, ns"],
            [[row["case"], size(row["bytes"]), where(row), f"{row['choice']}, {time(row['choice_us'])}",
              f"{row['best']}, {time(row['best_us'])}", ratio(row["regret"]), flag(row)] for row in worst[:12]]))
    return "\n\n".join(found)


# ---- programs that print tables of their own ----
def as_printed(part):
    return lambda results: f"```\n{results[part].strip()}\n```"


# ---- the page ----
BLOCKS = {**{part: (as_printed(part), (part,)) for part in ("ddp", "fsdp", "decode")},
          "machine": (machine, ("core",)), "goals": (goals, ("core",)), "core": (core, ("core",)),
          "growth": (growth, ("growth",)), "peers": (peers, ("peers",)), "torch": (through_torch, ("small", "large")),
          "call": (call, ("call",)), "hosts": (hosts, ("hosts",)), "hosts_peers": (hosts_peers, ("hosts_peers",)),
          "processors": (lambda results: processors.beside(results["measured"]), ("measured",)),
          "regret": (regret, ("regret",))}
PAGES = [ROOT / "docs/performance.md", *sorted(ROOT.glob("docs/measured/*.md"))]


def put(pages, name, text):
    """Replaces the block between its marks on the one of the pages, {path: text}, that has a place for it. Raises
    ValueError if none has, or more than one."""
    pattern = rf"(<!-- measured: {re.escape(name)} -->\n).*?(<!-- end -->)"
    times = 0
    for path, page in pages.items():
        pages[path], found = re.subn(pattern, lambda marks: f"{marks[1]}{text}\n{marks[2]}", page, flags=re.DOTALL)
        times += found
    if times != 1:
        raise ValueError(f"there are {times} places for '{name}' instead of one: <!-- measured: {name} --> and, "
                         "after it, <!-- end -->")


def write(pages, results):
    for name, (block, needed) in BLOCKS.items():
        missing = [FILES.get(part, f"file in docs/{part}") for part in needed if part not in results]
        if missing:
            print(f"'{name}' keeps what it has: there is no {', '.join(missing)}", file=sys.stderr)
        else:
            put(pages, name, block(results))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--pages", type=Path, nargs="+", default=PAGES)
    parser.add_argument("--images", type=Path, default=ROOT / "docs/img")
    parser.add_argument("--measured", type=Path, default=ROOT / "docs/measured")
    arguments = parser.parse_args()
    results = {name: json.loads(path.read_text()) if path.suffix == ".json" else path.read_text()
               for name, file in FILES.items() if (path := arguments.results / file).exists()}
    try:
        # A broken file is found before anything is written.
        processors.read_all(arguments.measured)
        processors.add(results, arguments.measured)
        measured = processors.read_all(arguments.measured)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    if not results and not measured:
        raise SystemExit(f"there is nothing in {arguments.results}: run script/bench")
    if measured:
        results["measured"] = measured
    pages = {path: path.read_text(encoding="utf-8") for path in arguments.pages}
    write(pages, results)
    if "core" in results:
        pictures(results, arguments.images)
    else:
        print("pictures of one host stay as they are: there is no core.json", file=sys.stderr)
    if "hosts_peers" in results:
        hosts_picture(results, arguments.images)
    for path, page in pages.items():
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Compares tutti with Open MPI and MPICH in C: one program (peers.c) is compiled for each, and run in turns on the same
pinned cores, because the machine drifts; a figure is the median of the rounds. A hypervisor moves the cores between
programs, and their distance matters more than the library. So a row has only samples with the cores at about the same
distance, as a flag barrier before and after shows, and is repeated until every library has been measured so.

    python tests/bench/peers/compare.py [--ranks 2] [--rounds 3] [--sizes 8,4096,…] [--json FILE]

Needs libtutti (script/setup) and, of those that are to be compared, Debian's openmpi-bin and libopenmpi-dev, mpich and
libmpich-dev. Prints a table: times in µs, how many times longer the others take than tutti on private tensors, and
the flag barrier of the row in ns. "differ": no distance of the cores was the same for all libraries, so the row shows
little. With more ranks than cores, MPICH is left out, and the sizes should be at least 4 bytes for each rank.
"""
import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/bench"))
from words import is_alike  # noqa: E402

BUILD = ROOT / "build/peers"
LIBRARY = ROOT / "shim/torch_tutti"
FLAGS = ["-O3", "-march=native", "-D_GNU_SOURCE", "-std=c11", f"-I{ROOT}", str(ROOT / "tests/bench/peers/peers.c")]
SIZES = "8,512,4096,65536,262144,1048576,4194304,16777216,67108864"
PACKAGES = {"cc": "gcc", "mpicc.openmpi": "libopenmpi-dev", "mpirun.openmpi": "openmpi-bin",
            "mpicc.mpich": "libmpich-dev", "mpirun.mpich": "mpich"}
COLLECTIVES = ("allreduce", "allreduce, out of place", "reduce_scatter", "allgather", "broadcast", "reduce",
               "all_to_all", "gather", "scatter", "send and back")
OURS = ("tutti", "tutti, shared")


def compiled(name, compiler, *more, starter=None):
    """Returns the path of the program for one library, or None if its compiler or its starter is not installed."""
    for tool in filter(None, (compiler, starter)):
        if not shutil.which(tool):
            print(f"{name}: SKIPPED, there is no {tool}; Debian has it in {PACKAGES[tool]}", file=sys.stderr)
            return None
    BUILD.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, *FLAGS, *more, "-o", BUILD / name], check=True)
    return str(BUILD / name)


def programs(wanted=None):
    """Returns {library: path of its program} for the installed libraries. wanted: only for these."""
    ways = {"tutti": lambda: compiled("tutti", "cc", "-DTUTTI", f"-L{LIBRARY}", f"-Wl,-rpath,{LIBRARY}", "-ltutti"),
            "Open MPI": lambda: compiled("openmpi", "mpicc.openmpi", starter="mpirun.openmpi"),
            "MPICH": lambda: compiled("mpich", "mpicc.mpich", starter="mpirun.mpich")}
    found = {library: way() for library, way in ways.items() if wanted is None or library in wanted}
    return {library: program for library, program in found.items() if program}


def commands(ranks):
    """Returns {library: command that starts its program}, without collectives and sizes."""
    found, built = {}, programs()
    if program := built.get("tutti"):
        found["tutti"], found["tutti, shared"] = [program, str(ranks)], [program, str(ranks), "shared"]
    if program := built.get("Open MPI"):
        found["Open MPI"] = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                             "-np", str(ranks), program, str(ranks)]
    if ranks > len(os.sched_getaffinity(0)):
        print("MPICH: left out, because its ranks poll without yielding their core: with 4 ranks on 2 cores a gather "
              "of 1 MiB took 32 s", file=sys.stderr)
    elif program := built.get("MPICH"):
        found["MPICH"] = ["mpirun.mpich", "-np", str(ranks), program, str(ranks)]
    return found


def measured(name, command, wanted):
    """Returns {(collective, bytes): (median in µs, flag barriers before and after in ns)} of one run."""
    sizes = {}
    for collective, size in wanted:
        sizes.setdefault(collective, []).append(str(size))
    words = [f"{collective}={','.join(found)}" for collective, found in sizes.items()]
    try:
        run = subprocess.run([*command, *words], capture_output=True, text=True, timeout=300,
                             env={**os.environ, "OMP_NUM_THREADS": "1"})
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{name} did not end within 300 s") from None
    if run.returncode:
        raise SystemExit(f"{name} ended with {run.returncode}:\n{run.stderr}")
    lines = (line.split("\t") for line in run.stdout.splitlines())
    return {(collective, int(size)): (float(median) / 1e3, float(before), float(after))
            for collective, size, median, _, _, before, after in lines}


# ---- placements: the hypervisor moves the cores, and only samples of one placement compare ----
def stood_at(samples, flag):
    """Returns the medians of the samples before and after which a flag barrier took about `flag` ns."""
    return [median for median, before, after in samples if is_alike(before, flag) and is_alike(after, flag)]


def best_place(samples):
    """Returns the flag barrier, in ns, of the placement for which the library with the fewest samples has most, or None
    if in every placement a library has no sample. With more ranks than cores all flag barriers are 0, which counts as
    one placement. samples: {library: [(median, before, after)]}"""
    flags = {flag for found in samples.values() for _, *flags in found for flag in flags}
    amount = {flag: min(len(stood_at(found, flag)) for found in samples.values()) for flag in sorted(flags)}
    best = max(amount, key=amount.get)
    return best if amount[best] else None


def row(wanted, samples):
    place = best_place(samples)
    medians = {library: [median for median, _, _ in found] if place is None else stood_at(found, place)
               for library, found in samples.items()}
    return {"collective": wanted[0], "bytes": wanted[1], "flag_ns": place,
            "times": {library: statistics.median(found) for library, found in medians.items()}}


class Runs:
    """The runs of the programs so far, in order. With a path, every run is written there when it ends. A later Runs
    with the same path and request returns these first, so that an interrupted measurement continues."""

    def __init__(self, path=None, request=None):
        self.path, self.request, self.runs = path, request, []
        # The next run to return, and the seconds that those before it took.
        self.next, self.seconds = 0, 0.0
        with contextlib.suppress(OSError, ValueError):
            before = json.loads(path.read_text()) if path else {}
            if before.get("request") == request:
                self.runs = before.get("runs", [])

    def take(self, library, command, wanted, run):
        """Returns the figures of the next run, by (collective, bytes)."""
        if self.next == len(self.runs):
            begin = time.monotonic()
            found = run(library, command, wanted)
            self.runs.append({"library": library, "seconds": time.monotonic() - begin,
                              "found": [[*key, *figures] for key, figures in found.items()]})
            self.write()
        taken = self.runs[self.next]
        if taken["library"] != library:
            raise SystemExit(f"{self.path} has a run of {taken['library']} instead of {library}: delete the file")
        self.next += 1
        self.seconds += taken["seconds"]
        return {(collective, size): tuple(figures) for collective, size, *figures in taken["found"]}

    def write(self):
        if self.path:
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps({"request": self.request, "runs": self.runs}) + "\n")
            new.replace(self.path)


def measure(started, wanted, rounds, more, run=None, runs=None, budget_s=None):
    """Returns a row for each (collective, bytes) of `wanted`. After the rounds, rows without a placement that all
    libraries share are measured again, up to `more` times. run: a function that is called instead of `measured`. runs:
    those of an interrupted measurement, which come first. After budget_s seconds no further round begins."""
    samples, runs = {key: {library: [] for library in started} for key in wanted}, runs or Runs()
    for turn in range(rounds + more):
        missing = wanted if turn < rounds else [key for key in wanted if best_place(samples[key]) is None]
        if turn > 0 and budget_s is not None and runs.seconds > budget_s:
            break
        for library, command in started.items() if missing else ():
            for key, found in runs.take(library, command, missing, run or measured).items():
                samples[key][library].append(found)
    return [row(key, samples[key]) for key in wanted]


def table(found):
    """Yields a line for each collective and size: times, and the times of the others divided by tutti's."""
    libraries = list(found[0]["times"])
    others = [name for name in libraries if name not in OURS]
    yield "| collective | bytes | " + " | ".join(f"{name}, µs" for name in libraries) + " | " + " | ".join(
        f"{name} ÷ tutti" for name in others) + " | flag, ns |"
    yield "|---" * (3 + len(libraries) + len(others)) + "|"
    for line in found:
        times = line["times"]
        cells = [f"{times[library]:.3g}" for library in libraries]
        cells += [f"{times[other] / times['tutti']:.2f}" for other in others]
        cells.append("differ" if line["flag_ns"] is None else f"{line['flag_ns']:.0f}")
        yield f"| {line['collective']} | {line['bytes']} | " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="default: 2")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--more", type=int, default=6, help="further rounds for rows that do not compare, default: 6")
    parser.add_argument("--sizes", default=SIZES, help=f"bytes, default: {SIZES}")
    parser.add_argument("--only", action="append", choices=COLLECTIVES, help="this collective; may be repeated")
    parser.add_argument("--budget", type=float, metavar="S", help="begin no further round after so many seconds")
    parser.add_argument("--runs", type=Path, metavar="FILE",
                        help="write every run into this file, and continue from the runs that it has")
    parser.add_argument("--json", type=Path, help="also write what was measured into this file")
    arguments = parser.parse_args()
    wanted = [(name, int(size)) for name in arguments.only or COLLECTIVES for size in arguments.sizes.split(",")]
    started = commands(arguments.ranks)
    request = {"ranks": arguments.ranks, "wanted": [list(key) for key in wanted], "libraries": list(started)}
    runs = Runs(arguments.runs, request)
    if runs.runs:
        print(f"{len(runs.runs)} runs are kept from {arguments.runs}", file=sys.stderr)
    found = measure(started, wanted, arguments.rounds, arguments.more, runs=runs,
                    budget_s=arguments.budget)
    print("\n".join(table(found)))
    if arguments.json:
        arguments.json.write_text(json.dumps({"ranks": arguments.ranks, "rounds": arguments.rounds, "rows": found},
                                             indent=1) + "\n")


if __name__ == "__main__":
    main()

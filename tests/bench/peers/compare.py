"""tutti beside Open MPI and MPICH, in C: one program (peers.c) compiled for each, run in turns on the same pinned
cores, because the machine drifts; a figure is the median of the rounds.

    python tests/bench/peers/compare.py [--ranks 2] [--rounds 3] [--smallest 8] [--largest 16777216]

Needs libtutti (script/setup) and, of those that are to be compared, Debian's openmpi-bin and libopenmpi-dev, mpich and
libmpich-dev. Prints a table for docs/performance.md: times in µs, and how many times longer the others take.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build/peers"
LIBRARY = ROOT / "shim/torch_tutti"
FLAGS = ["-O3", "-march=native", "-D_GNU_SOURCE", "-std=c11", f"-I{ROOT}", str(ROOT / "tests/bench/peers/peers.c")]


def compiled(name, compiler, *more):
    """The program for one library, or None where its compiler is not installed."""
    if not shutil.which(compiler):
        print(f"{name}: skipped, there is no {compiler}", file=sys.stderr)
        return None
    BUILD.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, *FLAGS, *more, "-o", BUILD / name], check=True)
    return str(BUILD / name)


def commands(ranks):
    """How each library's program is started, without its arguments."""
    found = {}
    if program := compiled("tutti", "cc", "-DTUTTI", f"-L{LIBRARY}", f"-Wl,-rpath,{LIBRARY}", "-ltutti"):
        found["tutti"] = [program]
    if program := compiled("openmpi", "mpicc.openmpi"):
        found["Open MPI"] = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                             "-np", str(ranks), program]
    if program := compiled("mpich", "mpicc.mpich"):
        found["MPICH"] = ["mpirun.mpich", "-np", str(ranks), program]
    return found


def measured(command, arguments):
    """{(collective, bytes): median in µs} of one run."""
    run = subprocess.run([*command, *map(str, (arguments.ranks, arguments.smallest, arguments.largest))],
                         capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if run.returncode:
        raise SystemExit(f"{command[-1]} ended with {run.returncode}:\n{run.stderr}")
    lines = (line.split("\t") for line in run.stdout.splitlines())
    return {(name, int(size)): float(median) / 1e3 for name, size, median, *_ in lines}


def table(rounds, libraries):
    """One row for each collective and size: times, and the others' times over ours."""
    others = [name for name in libraries if name != "tutti"]
    yield "| collective | bytes | " + " | ".join(f"{name}, µs" for name in libraries) + " | " + " | ".join(
        f"{name} ÷ tutti" for name in others) + " |"
    yield "|---" * (2 + len(libraries) + len(others)) + "|"
    for name, size in rounds["tutti"][0]:
        times = {library: statistics.median(run[name, size] for run in rounds[library]) for library in libraries}
        cells = [f"{times[library]:.3g}" for library in libraries]
        cells += [f"{times[other] / times['tutti']:.2f}" for other in others]
        yield f"| {name} | {size} | " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, value in (("ranks", 2), ("rounds", 3), ("smallest", 8), ("largest", 16 << 20)):
        parser.add_argument(f"--{flag}", type=int, default=value, help=f"default: {value}")
    arguments = parser.parse_args()
    started = commands(arguments.ranks)
    rounds = {name: [] for name in started}
    for _ in range(arguments.rounds):
        for name, command in started.items():
            rounds[name].append(measured(command, arguments))
    print("\n".join(table(rounds, list(started))))


if __name__ == "__main__":
    main()

"""tutti beside Open MPI and MPICH, in C: one program (peers.c) compiled for each, run in turns on the same pinned
cores, because the machine drifts; a figure is the median of the rounds.

    python tests/bench/peers/compare.py [--ranks 2] [--rounds 3] [--sizes 8,4096,…] [--json FILE]

Needs libtutti (script/setup) and, of those that are to be compared, Debian's openmpi-bin and libopenmpi-dev, mpich and
libmpich-dev. Prints a table: times in µs, and how many times longer the others take than tutti on private tensors.
"""
import argparse
import json
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
SIZES = "8,512,4096,65536,262144,1048576,4194304,16777216,67108864"
OURS = ("tutti", "tutti, shared")


def compiled(name, compiler, *more):
    """The program for one library, or None where its compiler is not installed."""
    if not shutil.which(compiler):
        print(f"{name}: SKIPPED, there is no {compiler}; Debian has it in lib{name}-dev", file=sys.stderr)
        return None
    BUILD.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, *FLAGS, *more, "-o", BUILD / name], check=True)
    return str(BUILD / name)


def commands(ranks):
    """How each library's program is started, without its sizes."""
    found = {}
    if program := compiled("tutti", "cc", "-DTUTTI", f"-L{LIBRARY}", f"-Wl,-rpath,{LIBRARY}", "-ltutti"):
        found["tutti"], found["tutti, shared"] = [program, str(ranks)], [program, str(ranks), "shared"]
    if program := compiled("openmpi", "mpicc.openmpi"):
        found["Open MPI"] = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                             "-np", str(ranks), program, str(ranks)]
    if program := compiled("mpich", "mpicc.mpich"):
        found["MPICH"] = ["mpirun.mpich", "-np", str(ranks), program, str(ranks)]
    return found


def measured(name, command, sizes):
    """{(collective, bytes): (median, 99th percentile, best) in µs} of one run."""
    try:
        run = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=300,
                             env={**os.environ, "OMP_NUM_THREADS": "1"})
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{name} did not end within 300 s") from None
    if run.returncode:
        raise SystemExit(f"{name} ended with {run.returncode}:\n{run.stderr}")
    lines = (line.split("\t") for line in run.stdout.splitlines())
    return {(name, int(size)): tuple(float(time) / 1e3 for time in times) for name, size, *times in lines}


def rows(rounds):
    """[{collective, bytes, times: {library: median of the rounds}}]"""
    return [{"collective": name, "bytes": size, "times": {
        library: statistics.median(run[name, size][0] for run in runs) for library, runs in rounds.items()}}
        for name, size in rounds["tutti"][0]]


def table(found):
    """One line for each collective and size: times, and the others' times over ours."""
    libraries = list(found[0]["times"])
    others = [name for name in libraries if name not in OURS]
    yield "| collective | bytes | " + " | ".join(f"{name}, µs" for name in libraries) + " | " + " | ".join(
        f"{name} ÷ tutti" for name in others) + " |"
    yield "|---" * (2 + len(libraries) + len(others)) + "|"
    for row in found:
        times = row["times"]
        cells = [f"{times[library]:.3g}" for library in libraries]
        cells += [f"{times[other] / times['tutti']:.2f}" for other in others]
        yield f"| {row['collective']} | {row['bytes']} | " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="default: 2")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--sizes", default=SIZES, help=f"bytes, default: {SIZES}")
    parser.add_argument("--json", type=Path, help="also write what was measured into this file")
    arguments = parser.parse_args()
    started = commands(arguments.ranks)
    rounds = {name: [] for name in started}
    for _ in range(arguments.rounds):
        for name, command in started.items():
            rounds[name].append(measured(name, command, arguments.sizes.split(",")))
    found = rows(rounds)
    print("\n".join(table(found)))
    if arguments.json:
        arguments.json.write_text(json.dumps({"ranks": arguments.ranks, "rounds": arguments.rounds, "rows": found},
                                             indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Compares this checkout with another commit, in turns on the same cores; script/compare starts it.

Three contenders take part: this checkout, the other commit, and this checkout once more, which shows the noise. In
every round each contender measures all cases, and another contender begins. The measuring programs are always those of
this checkout: peers/peers.c, compiled against each contender's header and linked with its library, and bench_call.py,
which finds each package by PYTHONPATH. Each contender keeps its machine parameters in a cache of its own, so
differences that follow from measuring them again count as noise too.

Columns: this checkout ÷ the commit, of the medians of the rounds and of the best rounds; and this checkout once more ÷
this checkout, which shows how far the same code is from itself. A case is slower if its ratio exceeds 1 by more than
LIMIT and that noise.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/compare"
FLAGS = ["-O3", "-march=native", "-D_GNU_SOURCE", "-std=c11"]
# SIZES are the bytes of allreduce. The other collectives are measured at the largest one only.
SIZES = [8, 4096, 65536, 1 << 20, 64 << 20]
OTHERS = ["reduce_scatter", "allgather", "broadcast", "reduce", "all_to_all", "gather", "scatter", "send and back"]
FORMS = ["tutti sync", "tutti async"]                               # of bench_call.py
THIS, OTHER, AGAIN = "this", "that", "again"
LIMIT = 0.03


@dataclass
class Contender:
    name: str
    root: Path

    def __post_init__(self):
        self.package, self.program = self.root / "shim", BUILD / f"peers.{self.name}"

    def run(self, *command):
        """Runs a command with the package and the cache of this contender, and returns its output. Ends the program if
        the command fails."""
        environment = {**os.environ, "PYTHONPATH": str(self.package), "TUTTI_CACHE": str(BUILD / f"cache.{self.name}")}
        run = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=900,
                             env=environment, cwd=BUILD)
        if run.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} ended with {run.returncode}:\n{run.stdout}{run.stderr}")
        return run.stdout


# ---- builds ----
def checked_out(commit):
    """Returns a worktree of the commit in which the package is built. An earlier build of the commit is used again."""
    name = git("rev-parse", "--short", f"{commit}^{{commit}}")
    tree = BUILD / name
    if not (tree / "setup.py").exists():
        git("worktree", "prune")
        git("worktree", "add", "--detach", str(tree), name)
    print(f"== building {git('log', '-1', '--format=%h %s', name)}", flush=True)
    environment = {**os.environ, "CMAKE_C_COMPILER_LAUNCHER": "ccache"} if shutil.which("ccache") else None
    build = subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=tree, env=environment,
                           capture_output=True, text=True)
    if build.returncode:
        raise SystemExit(f"{name} cannot be built:\n{build.stdout}{build.stderr}")
    return tree


def git(*words):
    run = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"git {' '.join(words)}: {run.stderr.strip()}")
    return run.stdout.strip()


def contenders(commit):
    other = checked_out(commit)
    found = [Contender(THIS, ROOT), Contender(OTHER, other), Contender(AGAIN, ROOT)]
    for one in found:
        shutil.rmtree(BUILD / f"cache.{one.name}", ignore_errors=True)
        library, headers = one.package / "torch_tutti", BUILD / f"headers.{one.name}"
        # The contender's include/ comes before that of this checkout.
        shutil.rmtree(headers, ignore_errors=True)
        headers.mkdir()
        (headers / "include").symlink_to(one.root / "include")
        subprocess.run(["cc", *FLAGS, "-DTUTTI", f"-I{headers}", f"-I{ROOT}", ROOT / "tests/bench/peers/peers.c",
                        f"-L{library}", f"-Wl,-rpath,{library}", "-ltutti", "-o", one.program], check=True)
        check_package(one)
    return found


def check_package(one):
    """Ends the program unless a contender imports the package that was built for it."""
    where = one.run(sys.executable, "-c", "import torch, torch_tutti._C as c; print(c.__file__)").strip()
    if not Path(where).is_relative_to(one.package):
        raise SystemExit(f"{where} would be measured instead of {one.package}")


# ---- cases ----
def label(collective, size, shared, ranks):
    text = f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB" if size >> 10 else f"{size} B"
    return f"{collective} {text} {'shared' if shared else 'private'} {ranks} ranks"


def form_label(form):
    return f"torch all_reduce 8 B {form.removeprefix('tutti ')} 2 ranks"


def runs_of(ranks, pattern):
    """Yields (ranks, shared, {collective: sizes}) for each run of the program."""
    for shared in (False, True):
        wanted = {}
        for collective, sizes in [("allreduce", SIZES), *((name, SIZES[-1:]) for name in OTHERS)]:
            chosen = [size for size in sizes if re.search(pattern, label(collective, size, shared, ranks))]
            if chosen:
                wanted[collective] = chosen
        if wanted:
            yield ranks, shared, wanted


def measured_in_c(one, ranks, shared, wanted):
    """Returns {label: (median, best)} in µs."""
    words = [f"{collective}={','.join(map(str, sizes))}" for collective, sizes in wanted.items()]
    lines = one.run(one.program, ranks, *["shared"] * shared, *words).splitlines()
    rows = (line.split("\t") for line in lines)
    return {label(row[0], int(row[1]), shared, ranks): (float(row[2]) / 1e3, float(row[4]) / 1e3) for row in rows}


def measured_in_torch(one, forms):
    results = BUILD / "call.json"
    one.run(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
            ROOT / "tests/bench/bench_call.py", "--turns", 30, "--json", results)
    figures = json.loads(results.read_text())["figures"]
    return {form_label(form): tuple(figures[form][:2]) for form in forms}


def stolen():
    """Returns (ticks that the hypervisor gave to other machines, all ticks) since this machine has started."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[7], sum(ticks)


def measure(everyone, options):
    """Returns {label: {contender: [(median, best) of each round]}}."""
    plans = [plan for ranks in options.ranks for plan in runs_of(ranks, options.only)]
    forms = [form for form in FORMS if re.search(options.only, form_label(form))]
    if not plans and not forms:
        raise SystemExit(f"no case has {options.only!r} in its label")
    found = {}
    for turn in range(options.rounds):
        begin = stolen()
        order = everyone[turn % 3:] + everyone[:turn % 3]
        for take in [*(lambda one, plan=plan: measured_in_c(one, *plan) for plan in plans),
                     *[lambda one: measured_in_torch(one, forms)] * bool(forms)]:
            for one in order:
                for case, figures in take(one).items():
                    found.setdefault(case, {}).setdefault(one.name, []).append(figures)
        part, whole = (after - before for before, after in zip(begin, stolen()))
        print(f"round {turn + 1} of {options.rounds}: {100 * part / whole:.1f} % of the processors' time was stolen, "
              f"load {os.getloadavg()[0]:.1f}", flush=True)
    return found


# ---- what came of it ----
def ratios(samples, over, under):
    """Returns two ratios of contender `over` to contender `under`: of the medians of the rounds, and of the best times
    of all rounds."""
    medians, bests = ({name: [row[part] for row in rows] for name, rows in samples.items()} for part in (0, 1))
    return (statistics.median(medians[over]) / statistics.median(medians[under]),
            min(bests[over]) / min(bests[under]))


def verdict(samples):
    """Returns the ratios of a row, their noise, and a text that says whether this checkout is slower."""
    ratio, noise = ratios(samples, THIS, OTHER), ratios(samples, AGAIN, THIS)
    late = [value > 1 + LIMIT + abs(same - 1) for value, same in zip(ratio, noise)]
    return ratio, noise, {(True, True): "SLOWER", (True, False): "slower, not at its best",
                          (False, True): "slower at its best only", (False, False): ""}[tuple(late)]


def report(found):
    print(f"\n{'us; of the slowest rank':<42}{'this':>12}{'that':>12}{'ratio':>8}{'best':>8}{'again':>8}{'best':>8}")
    slower = 0
    for case, samples in found.items():
        ratio, noise, word = verdict(samples)
        slower += word == "SLOWER"
        medians = [statistics.median(row[0] for row in samples[name]) for name in (THIS, OTHER)]
        print(f"{case:<42}{medians[0]:>12.2f}{medians[1]:>12.2f}"
              + "".join(f"{value:>8.3f}" for value in (*ratio, *noise)) + f"  {word}")
    print(f"{len(found)} cases, {slower} slower than {LIMIT:.0%} beyond noise, in the median and at their best")
    return 1 if slower else 0


def main():
    parser = argparse.ArgumentParser(prog="script/compare", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="what this checkout is compared to")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=lambda text: [int(word) for word in text.split(",")], default=[2, 4, 8])
    parser.add_argument("--only", default="", metavar="PATTERN", help="only cases whose label has this pattern")
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    return report(measure(contenders(options.commit), options))


if __name__ == "__main__":
    sys.exit(main())

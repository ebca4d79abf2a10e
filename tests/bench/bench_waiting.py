"""Measures the cost of waiting while other programs want the cores too: all_reduce of 8 bytes and of 1 MiB through
torch on two ranks, under four loads (busy.py). "quiet": none. "beside": on each core, a program that wants 12 % of it.
"stolen": a program that takes 12 % of each core ahead of every ordinary thread, as a hypervisor does. "busy": a program
that wants all of it.

    torchrun --standalone --nproc-per-node 2 tests/bench/bench_waiting.py
    TUTTI_SPINS=100 TUTTI_YIELDS=10 torchrun --standalone --nproc-per-node 2 tests/bench/bench_waiting.py

Beside each call stands a bound that no way of waiting can beat: a bare exchange of flags between the same two ranks,
which never give up their cores; for 1 MiB, after a copy of as many bytes. `apart`: before each exchange one of the
ranks, in turns, works for some 0.2 ms. Batches of all forms take turns, so slices of other programs hit them equally.
The loads take turns in rounds; a round in which the hypervisor has moved the cores is left out (the median exchange of
flags shows it). Two ranks that meet in every call make progress only while both have a core. If a call loses no more
than that, it slows down by the same factor as the bare exchange, and `over bare` is 1. Loads that take 12 % of each
core at random moments allow a factor of 1.29.

Times are those of the slower rank in µs. `for a core`: how long the ranks of a call were ready to run and had no core;
`asleep`: how long they slept; both are sums over the ranks in µs for a call. The counters are sums over the ranks for
1,000 calls. The last two counters are of all calls: sleeps that ended by their time limit, and of these the late ones,
which slept although the awaited event had happened. Lost wake-ups would show there.
"""
import argparse
import gc
import mmap
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch_tutti as tutti

BUSY = Path(__file__).with_name("busy.py")
LOADS: dict[str, list[str]] = {"quiet": [], "beside": ["--slice", "2", "8"],
                               "stolen": ["--slice", "1", "4", "--first"], "busy": ["--share", "1"]}
LESS = {"busy": 5}                                                   # so many times fewer turns: each takes so long
CALLS = {"flags": 5000, "8 B": 600, "copy": 80, "1 MiB": 30, "apart": 10, "8 B apart": 10}     # some 2 ms of each
COPIES_APART = 10
MOVED = 1.3                                                          # a median of flags so many times another's
BARE = {"8 B": "flags", "1 MiB": "copy", "8 B apart": "apart"}
COUNTED, RARE = ("yields", "sleeps", "wakes"), ("timed_out", "late")
LINE = 16                                                            # words of 8 bytes: flags on lines of their own


@dataclass
class Samples:
    """The samples of one form under one load on this rank: the nanoseconds of each call, and the increments of the
    counters."""
    ns: list[int] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)

    def add(self, ns: list[int], counted: dict[str, int]) -> None:
        self.ns += ns
        for name, count in counted.items():
            self.counted[name] = self.counted.get(name, 0) + count

    def quantile(self, q: float) -> float:
        return sorted(self.ns)[int((len(self.ns) - 1) * q)]


Round = dict[str, dict[str, Samples]]                                # by load and form


# ---- what is measured ----
def flags_of(rank: int) -> Callable[[], None]:
    """Stores a flag, and polls the other's until it is there."""
    name = [f"/dev/shm/bench_waiting.{os.getpid()}"]
    dist.broadcast_object_list(name, 0)
    if rank == 0:
        Path(name[0]).write_bytes(bytes(mmap.PAGESIZE))
    dist.barrier()
    with open(name[0], "r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), mmap.PAGESIZE)).cast("Q")
    dist.barrier()
    if rank == 0:
        os.unlink(name[0])
    mine, other, passed = rank * LINE, (1 - rank) * LINE, [0]

    def meet() -> None:
        passed[0] = now = passed[0] + 1
        words[mine] = now
        while words[other] < now:
            pass
    return meet


def forms_of(rank: int) -> dict[str, Callable[[], None]]:
    few, many, copy, meet = torch.zeros(2), torch.zeros(1 << 18), torch.zeros(1 << 18), flags_of(rank)

    def copy_and_meet() -> None:
        copy.copy_(many)
        meet()

    def apart(then: Callable[[], None]) -> Callable[[], None]:
        turn = [0]

        def work_then() -> None:
            turn[0] += 1
            for _ in range(COPIES_APART if turn[0] % 2 == rank else 0):
                copy.copy_(many)
            then()
        return work_then

    def sum_few() -> None:
        dist.all_reduce(few)
    return {"flags": meet, "8 B": sum_few, "copy": copy_and_meet, "1 MiB": lambda: dist.all_reduce(many),
            "apart": apart(meet), "8 B apart": apart(sum_few)}


# ---- measuring ----
def counters() -> dict[str, int]:
    """tutti's, and the ns for which this thread could have run and had no core."""
    return {**tutti.waiting(), "delay_ns": int(Path("/proc/thread-self/schedstat").read_text().split()[1])}


def batch(call: Callable[[], None], calls: int, samples: Samples) -> None:
    now, stamps, before = time.perf_counter_ns, [], counters()
    stamp = stamps.append
    for _ in range(calls):
        stamp(now())
        call()
    stamp(now())
    samples.add([after - before for before, after in zip(stamps, stamps[1:])],
                {name: count - before[name] for name, count in counters().items()})


def measure(forms: dict[str, Callable[[], None]], turns: int) -> dict[str, Samples]:
    """The first turns only warm up."""
    warm = turns // 10
    found = {form: Samples() for form in forms}
    for turn in range(warm + turns):
        for form, call in forms.items():
            dist.barrier()
            batch(call, CALLS[form], found[form] if turn >= warm else Samples())
    return found


class Load:
    """Another program on this rank's core; it runs in the `with` blocks, and what it has had of the core is kept."""
    def __init__(self, core: int, arguments: list[str]) -> None:
        self.ran, self.of = 0, 0
        self.process = subprocess.Popen([sys.executable, BUSY, "--core", str(core), *arguments])
        time.sleep(0.5)                                              # it starts
        self.process.send_signal(signal.SIGSTOP)

    def cpu_ns(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0])

    def __enter__(self) -> None:
        self.ran, self.of = self.ran - self.cpu_ns(), self.of - time.perf_counter_ns()
        self.process.send_signal(signal.SIGCONT)

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.ran, self.of = self.ran + self.cpu_ns(), self.of + time.perf_counter_ns()

    def end(self) -> float:
        """The share it has had."""
        self.process.kill()
        self.process.wait()
        return self.ran / self.of


def stolen_ticks() -> tuple[int, int]:
    """Returns the ticks that the hypervisor has taken from all cores since the machine began, and all ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
    return ticks[7], sum(ticks)


def has_moved(found: Round) -> bool:
    """The cores lie nearer in one part of the round than in another."""
    medians = on_both([samples["flags"].quantile(0.5) for samples in found.values()], dist.ReduceOp.MAX)
    return max(medians) > MOVED * min(medians)


def measure_rounds(forms: dict[str, Callable[[], None]], core: int, names: list[str], rounds: int, turns: int):
    """Measures all forms under each load in rounds, and drops rounds in which the cores were moved. Returns the samples
    by load and form, the share of the core that each load has had, and the number of rounds that were kept."""
    loads = {name: Load(core, LOADS[name]) if LOADS[name] else nullcontext() for name in names}
    kept, total = 0, {name: {form: Samples() for form in forms} for name in names}
    gc.disable()
    for _ in range(rounds):
        found: Round = {}
        for name, load in loads.items():
            with load:
                found[name] = measure(forms, turns // LESS.get(name, 1))
        if has_moved(found):
            continue
        kept += 1
        for name, by_form in found.items():
            for form, samples in by_form.items():
                total[name][form].add(samples.ns, samples.counted)
    gc.enable()
    shares = {name: load.end() if isinstance(load, Load) else 0.0 for name, load in loads.items()}
    return total, shares, kept


# ---- the table ----
def on_both(values: list[float], op: dist.ReduceOp) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total, op=op)
    return total.tolist()


def figures_of(samples: Samples) -> tuple[list[float], dict[str, float], int]:
    """Mean, median, p90, p99 and p99.9 in µs; counters of both ranks for a call; calls."""
    times = [statistics.fmean(samples.ns), *(samples.quantile(q) for q in (0.5, 0.9, 0.99, 0.999))]
    names, calls = list(samples.counted), len(samples.ns)
    counted = on_both([samples.counted[name] / calls for name in names], dist.ReduceOp.SUM)
    return [ns / 1000 for ns in on_both(times, dist.ReduceOp.MAX)], dict(zip(names, counted)), calls


def row(load: str, share: float, form: str, figures: dict, quiet: dict) -> str:
    (mean, *quantiles), counted, calls = figures[form]
    slower = {name: figures[name][0][0] / quiet[name][0][0] for name in figures}
    text = f"{load:<7} {share:>5.1%} {form:<9} {mean:>8.2f} " + " ".join(f"{value:>8.2f}" for value in quantiles)
    text += f" {slower[form]:>7.2f} {counted['delay_ns'] / 1000:>10.2f}"
    if form not in BARE:
        return text
    counts = " ".join(f"{counted[name] * 1000:>9.2f}" for name in COUNTED)
    counts += " " + " ".join(f"{round(counted[name] * calls):>9}" for name in RARE)
    return f"{text} {slower[form] / slower[BARE[form]]:>9.2f} {counted['asleep_ns'] / 1000:>8.2f} {counts}"


def head() -> str:
    columns = " ".join(f"{name:>8}" for name in ("mean", "median", "p90", "p99", "p99.9"))
    return (f"{'':<7} {'taken':>5} {'':<9} {columns} {'slower':>7} {'for a core':>10} {'over bare':>9} {'asleep':>8} "
            + " ".join(f"{name:>9}" for name in (*COUNTED, *RARE)))


def report(title: str, forms: dict[str, Callable[[], None]], core: int, loads: list[str], rounds: int,
           turns: int) -> None:
    before = stolen_ticks()
    total, shares, kept = measure_rounds(forms, core, loads, rounds, turns)
    stolen, ticks = (now - then for now, then in zip(stolen_ticks(), before))
    stolen /= ticks
    if not kept:
        raise SystemExit(f"{title}: the cores were moved in each of {rounds} rounds")
    quiet = None
    if dist.get_rank() == 0:
        print(f"{title}, {kept} of {rounds} rounds; the hypervisor took {stolen:.1%}")
    for load, found in total.items():
        figures = {form: figures_of(samples) for form, samples in found.items()}
        quiet = quiet or figures
        share = on_both([shares[load]], dist.ReduceOp.SUM)[0] / 2
        for form in found:
            if dist.get_rank() == 0:
                print(row(load, share, form, figures, quiet), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=100, help="of each load in a round")
    parser.add_argument("--only", choices=["bound", "unbound"], help="whether ranks are bound to their cores")
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS),
                        help="the first counts as quiet")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    rank, cores = dist.get_rank(), sorted(os.sched_getaffinity(0))
    forms = forms_of(rank)
    if rank == 0:
        backoff = {name: os.environ.get(f"TUTTI_{name.upper()}", "by cost") for name in ("spins", "yields")}
        print(f"all_reduce through torch {torch.__version__}, 2 ranks on {len(cores)} cores; µs; backoff: {backoff}")
        print(head())
    for bound in ("bound", "unbound"):
        if options.only in (None, bound):
            os.sched_setaffinity(0, {cores[rank]} if bound == "bound" else set(cores))
            report(bound, forms, cores[rank], options.loads, options.rounds, options.turns)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

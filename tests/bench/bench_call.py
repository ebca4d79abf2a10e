"""Measures the cost of a call through torch: all_reduce of 8 bytes on two pinned ranks, in every form in which it can
be called, on tutti and on torch's fake backend, which does nothing. The difference is the cost of tutti.

    torchrun --standalone --nproc-per-node 2 tests/bench/bench_call.py

Batches of all forms take turns, so other programs disturb all forms equally. The cost of the clock and of the loop is
measured around an empty call, and subtracted. A figure is the median of the batches' medians, on the slower rank.
"""

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg

import torch_tutti

# The import of fake_pg registers the backend "fake".
CPU = torch.device("cpu")
Forms = dict[str, Callable[[], object]]
# The goals, in µs by form: what a call may cost more than on the fake backend, and what a call of the fast path may
# cost in all.
OVER_NOTHING = {"sync": 1.0, "async": 8.0}
IN_ALL = {"fast": 1.5, "shortest": 1.5}


def forms_of(name: str, group: dist.ProcessGroup, tensor: torch.Tensor) -> Forms:
    """Returns the ways to call all_reduce on a group, by name. The fast ones reuse options and skip torch's Python and
    dispatcher."""
    backend, tensors = group._get_backend(CPU), [tensor]
    options, later = dist.AllreduceOptions(), dist.AllreduceOptions()
    options.asyncOp = False
    return {
        f"{name} sync": lambda: dist.all_reduce(tensor, group=group),
        f"{name} async": lambda: dist.all_reduce(tensor, group=group, async_op=True).wait(),
        f"{name} group": lambda: group.allreduce(tensors, options).wait(),
        f"{name} fast": lambda: backend.allreduce(tensors, options).wait(),
        f"{name} fast async": lambda: backend.allreduce(tensors, later).wait(),
    }


def batch(call: Callable[[], object], calls: int) -> list[int]:
    """Returns the nanoseconds of each call, including those of the clock and the loop."""
    now, stamps = time.perf_counter_ns, []
    stamp = stamps.append
    for _ in range(calls):
        stamp(now())
        call()
    stamp(now())
    return [after - before for before, after in zip(stamps, stamps[1:])]


def measure(forms: Forms, turns: int, calls: int) -> dict[str, list[list[int]]]:
    """Returns the batches of each form. The first turn only warms up."""
    batches: dict[str, list[list[int]]] = {form: [] for form in forms}
    gc.disable()
    for turn in range(turns + 1):
        for form, call in forms.items():
            dist.barrier()
            taken = batch(call, calls)
            if turn:
                batches[form].append(taken)
    gc.enable()
    return batches


def on_slower_rank(nanoseconds: float) -> float:
    """Returns the larger time of both ranks, in microseconds."""
    slowest = torch.tensor([nanoseconds / 1000])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def summary(batches: list[list[int]], nothing: float) -> tuple[float, float, float]:
    """Returns microseconds on the slower rank: the median of the batches' medians, the best batch's median, and the
    99th percentile of all calls. nothing: the nanoseconds of an empty call, which are subtracted."""
    medians = [statistics.median(taken) - nothing for taken in batches]
    every = sorted(value for taken in batches for value in taken)
    return (on_slower_rank(statistics.median(medians)), on_slower_rank(min(medians)),
            on_slower_rank(every[len(every) * 99 // 100] - nothing))


def verdict(name: str, figures: dict[str, tuple[float, float, float]]) -> str:
    """Returns as text how far the form is from its goal, or "" if it has no goal."""
    backend, _, form = name.partition(" ")
    if backend != "tutti" or form not in (*OVER_NOTHING, *IN_ALL):
        return ""
    limit = OVER_NOTHING.get(form) or IN_ALL[form]
    over = figures[name][0] - (figures[f"fake {form}"][0] if form in OVER_NOTHING else 0)
    what = "fake +" if form in OVER_NOTHING else "in all"
    return f"{what} {over:.2f}, goal {limit}: {'met' if over <= limit else f'missed by {over - limit:.2f}'}"


def report(figures: dict[str, tuple[float, float, float]], nothing: float) -> None:
    print(f"all_reduce of 8 bytes through torch {torch.__version__}, 2 ranks, load {os.getloadavg()[0]:.1f}; us")
    print(f"the clock and the loop, taken off: {nothing / 1000:.3f}")
    print(f"{'':<18} {'median':>8} {'best':>8} {'p99':>8} {'over fake':>10}")
    for form, (median, best, late) in figures.items():
        beside = figures.get(form.replace("tutti", "fake"))
        over = f"{median - beside[0]:>10.2f}" if beside and form.startswith("tutti") else f"{'':>10}"
        print(f"{form:<18} {median:>8.2f} {best:>8.2f} {late:>8.2f} {over}  {verdict(form, figures)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--calls", type=int, default=200, help="calls of a batch")
    parser.add_argument("--json", type=Path, help="also write what was measured into this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank, cores = int(os.environ["LOCAL_RANK"]), sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("tutti")
    group, fake, tensor = dist.group.WORLD, dist.new_group(backend="fake"), torch.ones(2)
    dist.all_reduce(tensor, group=fake)
    assert tensor.tolist() == [1, 1], "the fake backend is expected to do nothing"
    # Sums of zeros stay zeros, however many calls sum them.
    tensor.zero_()
    forms = {"nothing": lambda: None, **forms_of("fake", fake, tensor), **forms_of("tutti", group, tensor)}
    if hasattr(torch_tutti, "all_reduce"):
        forms["tutti shortest"] = lambda: torch_tutti.all_reduce(tensor)
    batches = measure(forms, options.turns, options.calls)
    nothing = statistics.median(statistics.median(taken) for taken in batches.pop("nothing"))
    figures = {form: summary(taken, nothing) for form, taken in batches.items()}
    if rank == 0:
        report(figures, nothing)
        if options.json:
            verdicts = {form: verdict(form, figures) for form in figures}
            options.json.write_text(json.dumps({"figures": figures, "verdicts": verdicts}, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

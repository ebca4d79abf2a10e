"""Measures steps of training on several backends, turn by turn in one run, and the time that communication adds to
them.

Each step is made on every backend, and once with each rank in a group by itself. There torch does everything except
communicate, so that step is the computing. A step is as long as its slowest rank takes from a common start. Its exposed
communication is the difference to the computing of the same turn: the median of the turns, and their quartiles. Beside
it stands the processor time that communication costs all ranks together: where computing keeps every core busy nothing
can overlap, and this time divided by the cores is the least that can be exposed.
"""
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

# The name of the step that a rank makes in a group by itself.
COMPUTING = "computing"


def groups() -> dict[str, dist.ProcessGroup]:
    """Joins the job, and returns its groups by name: tutti, gloo, and COMPUTING with this rank alone."""
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    return {"tutti": dist.group.WORLD, "gloo": dist.new_group(backend="gloo"), COMPUTING: dist.new_subgroups(1)[0]}


def say_where(what: str) -> None:
    if dist.get_rank() == 0:
        print(f"{what} of torch {torch.__version__}, {dist.get_world_size()} ranks, {len(os.sched_getaffinity(0))} "
              f"cores, load {os.getloadavg()[0]:.1f}; milliseconds")


def on_all_ranks(values: list[float], op: dist.ReduceOp) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total, op=op)
    return total.tolist()


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Returns the seconds from a common start to the end of `work`, and the processor seconds of this rank."""
    dist.barrier()
    begin, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begin, time.process_time() - used


def measure(steps: dict[str, Callable[[], object]], turns: int, warm: int) -> dict[str, list[tuple[float, float]]]:
    """Runs all steps in turns, the first `warm` of which do not count. Returns, by name, a pair for each turn: the
    seconds on the slowest rank, and the processor seconds of all ranks together."""
    taken = {name: [] for name in steps}
    for turn in range(warm + turns):
        for name in steps if turn % 2 else reversed(steps):
            sample = timed(steps[name])
            if turn >= warm:
                taken[name].append(sample)
    return {name: list(zip(on_all_ranks([seconds for seconds, _ in samples], dist.ReduceOp.MAX),
                           on_all_ranks([used for _, used in samples], dist.ReduceOp.SUM)))
            for name, samples in taken.items()}


def differences(samples, others, part) -> list[float]:
    """Returns the quartiles, over the turns, of the milliseconds that `samples` took more than `others`. part: 0 for
    the time, 1 for the processor time."""
    return statistics.quantiles([(one[part] - other[part]) * 1e3 for one, other in zip(samples, others)], n=4)


def median_ms(samples, part=0) -> float:
    return statistics.median(sample[part] for sample in samples) * 1e3


def report(kind: str, steps, alone) -> None:
    """Prints one row for each backend, on rank 0. alone: samples of a step's communication without the computation."""
    if dist.get_rank() != 0:
        return
    cores, computing = len(os.sched_getaffinity(0)), steps[COMPUTING]
    exposed = {name: differences(steps[name], computing, 0) for name in steps}
    print(f"\n{kind}: computing takes {median_ms(computing):.1f} ms, and {median_ms(computing, 1):.1f} ms of processor "
          f"time on all ranks")
    print(f"{'':<24} {'step':>7} {'exposed (quartiles)':>24} {'/ step':>7} {'/ gloo':>7} {'alone':>7} {'cpu':>7} "
          f"{f'/ {cores} cores':>9}")
    for name in steps:
        if name == COMPUTING:
            continue
        low, middle, high = exposed[name]
        used = differences(steps[name], computing, 1)[1]
        quartiles = f"{middle:.2f} ({low:.2f} .. {high:.2f})"
        print(f"{name:<24} {median_ms(steps[name]):>7.2f} {quartiles:>24} {middle / median_ms(steps[name]):>7.1%} "
              f"{middle / exposed['gloo'][1]:>7.2f} {median_ms(alone[name]):>7.2f} {used:>7.2f} {used / cores:>9.2f}",
              flush=True)

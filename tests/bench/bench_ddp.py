"""What communication adds to a step of DistributedDataParallel, on tutti and on gloo, in one run.

    torchrun --standalone --nproc-per-node 2 tests/bench/bench_ddp.py

The same step is made on every backend, turn by turn, and once with each rank in a group by itself: there DDP does all
it does but has nobody to communicate with, so that step is the computing. A step is as long as its slowest rank takes
from a common start. Its exposed communication is what it takes longer than the computing of the same turn: the median
of the turns, and their quartiles.

Two kinds of step. "example": the one of examples/train_gpt.py, as it is. "timer": computing that takes time but no
core, as a GPU's does: each layer sleeps, and a bucket that is ready can be reduced meanwhile. There the layers sleep so
long that, on the slowest backend, communicating takes 0.8 of the backward pass.

Beside it stand the buckets reduced alone, and the processor time that communication costs all ranks together. Where
computing keeps every core busy nothing can overlap, and this time divided by the cores is the least that can be
exposed.
"""

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import torch_tutti

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import train_gpt

LAYERS, WIDTH = 8, 1024                     # of the timer's model: 4 MiB of gradients each
SHARE_OF_BACKWARD = 0.8
COMPUTING = "computing"
BACKENDS = {"tutti": "tutti", "tutti, private buckets": "tutti", "gloo": "gloo", COMPUTING: "one rank"}


class Sleep(torch.autograd.Function):
    """A layer that takes its time, as a clock says, and whose gradient is there then."""

    @staticmethod
    def forward(context, x, weight, layers):
        context.layers = layers
        time.sleep(layers.seconds / 2)
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.layers.seconds)
        return gradient, context.layers.gradient, None


class Sleeper(torch.nn.Module):
    """seconds: how long a layer's backward pass takes; it may be changed between steps."""

    def __init__(self):
        super().__init__()
        self.seconds = 0.0
        self.gradient = torch.zeros(WIDTH, WIDTH)
        self.weights = torch.nn.ParameterList(torch.zeros(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x):
        for weight in self.weights:
            x = Sleep.apply(x, weight, self)
        return x


class TimerStep:
    """With the interface of the example's Trainer, as far as it is used here. Gradients are never set to None, so they
    are added where they lie in the bucket, and little else is left that needs a core."""

    def __init__(self, group, shared):
        self.model = train_gpt.data_parallel(Sleeper(), group, shared)

    def step(self, _):
        self.model(torch.ones(1, requires_grad=True)).sum().backward()


def on_all_ranks(values: list[float], op: dist.ReduceOp) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total, op=op)
    return total.tolist()


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds from a common start to the end, and of processor time, of all threads of this rank."""
    dist.barrier()
    begin, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begin, time.process_time() - used


def communicate(trainer, group, shared) -> Callable[[], object]:
    """Buckets like those of a step reduced, and nothing else."""
    with torch_tutti.shared_tensors() if shared else contextlib.nullcontext():
        buckets = [torch.zeros_like(bucket.buffer())
                   for bucket in trainer.model.reducer._get_zeros_like_grad_buckets()]

    def all_buckets():
        for work in [dist.all_reduce(bucket, group=group, async_op=True) for bucket in buckets]:
            work.wait()
    return all_buckets


def measure(steps: dict[str, Callable[[], object]], turns: int, warm: int) -> dict[str, list[tuple[float, float]]]:
    """Of each step and turn: its seconds on the slowest rank, and the processor time of all ranks."""
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
    """Quartiles, over the turns, of what one took more than the other; milliseconds, or those of processor time."""
    return statistics.quantiles([(one[part] - other[part]) * 1e3 for one, other in zip(samples, others)], n=4)


def median_ms(samples, part=0) -> float:
    return statistics.median(sample[part] for sample in samples) * 1e3


def report(kind: str, steps, alone) -> None:
    """One row for each backend."""
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


def run(kind: str, groups, make: Callable[[object, bool], object], turns: int) -> None:
    """make: a trainer, from its group and whether its buckets are shared."""
    places = {name: (groups[BACKENDS[name]], name == "tutti") for name in BACKENDS}
    trainers = {name: make(*place) for name, place in places.items()}
    number = iter(range(10**9))
    for trainer in trainers.values():
        for _ in range(3):                  # DDP rebuilds its buckets in the second
            trainer.step(next(number))
    alone = measure({name: communicate(trainers[name], *place) for name, place in places.items()}, turns, 2)
    if kind == "timer":
        slowest = max(statistics.median(s for s, _ in samples) for samples in alone.values())
        for trainer in trainers.values():
            trainer.model.module.seconds = slowest / SHARE_OF_BACKWARD / LAYERS
    steps = measure({name: lambda trainer=trainer: trainer.step(next(number)) for name, trainer in trainers.items()},
                    turns, 1)
    if dist.get_rank() == 0:
        report(kind, steps, alone)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--steps", choices=["example", "timer"], help="only these")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    groups = {"tutti": dist.group.WORLD, "gloo": dist.new_group(backend="gloo"),
              "one rank": dist.new_subgroups(1)[0]}
    if dist.get_rank() == 0:
        print(f"DistributedDataParallel of torch {torch.__version__}, {dist.get_world_size()} ranks, "
              f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}; milliseconds")
    example = train_gpt.parse([])
    text = train_gpt.Text(example.data, example.context, example.batch)
    makers = {"example": lambda group, shared: train_gpt.Trainer(example, "tutti" if shared else "", text,
                                                                 torch.device("cpu"), group),
              "timer": TimerStep}
    for kind in [options.steps] if options.steps else makers:
        run(kind, groups, makers[kind], options.turns)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

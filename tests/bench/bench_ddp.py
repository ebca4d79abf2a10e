"""Measures the time that communication adds to a step of DistributedDataParallel, on tutti and on gloo, in one run.

    torchrun --standalone --nproc-per-node 2 tests/bench/bench_ddp.py

There are two kinds of step. "example": the step of examples/train_gpt.py, unchanged. "timer": a computation that takes
time but no core, as on a GPU: each layer sleeps, and a bucket that is ready can be reduced meanwhile. Its layers sleep
so long that, on the slowest backend, communication takes 0.8 of the backward pass. Column "alone": the buckets are
reduced without any computation. The other columns: steps.py.
"""

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import torch_tutti
from steps import COMPUTING, groups, measure, report, say_where

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import train_gpt

LAYERS, WIDTH = 8, 1024                     # of the timer's model: 4 MiB of gradients each
SHARE_OF_BACKWARD = 0.8
BACKENDS = {"tutti": "tutti", "tutti, private buckets": "tutti", "gloo": "gloo", COMPUTING: COMPUTING}


class Sleep(torch.autograd.Function):
    """A layer that sleeps instead of computing, and then returns a gradient that exists already."""

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
    """A model of sleeping layers. seconds: how long a layer's backward pass takes; it may be changed between steps."""

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
    """A step of the sleeping model, with those methods of the example's Trainer that this program calls. Gradients are
    never set to None, so autograd adds to them where they lie in the bucket, and the step needs almost no core."""

    def __init__(self, group, shared):
        self.model = train_gpt.data_parallel(Sleeper(), group, shared)

    def step(self, _):
        self.model(torch.ones(1, requires_grad=True)).sum().backward()


def bucket_sizes(trainer) -> list[int]:
    """Returns the elements of each bucket. The gradients of the last step are views of the buckets."""
    gradients = [parameter.grad for parameter in trainer.model.parameters()]
    storages = {gradient.untyped_storage().data_ptr(): gradient for gradient in gradients}
    return [gradient.untyped_storage().nbytes() // gradient.element_size() for gradient in storages.values()]


def communicate(trainer, group, shared) -> Callable[[], object]:
    """Returns a function that all-reduces buckets of the sizes of a step's buckets, and does nothing else."""
    with torch_tutti.shared_tensors() if shared else contextlib.nullcontext():
        buckets = [torch.zeros(size) for size in bucket_sizes(trainer)]

    def all_buckets():
        for work in [dist.all_reduce(bucket, group=group, async_op=True) for bucket in buckets]:
            work.wait()
    return all_buckets


def run(kind: str, joined, make: Callable[[object, bool], object], turns: int) -> None:
    """Measures one kind of step on all backends, and prints its table. make: returns a trainer, given its group and
    whether its buckets are in shared memory."""
    places = {name: (joined[BACKENDS[name]], name == "tutti") for name in BACKENDS}
    trainers = {name: make(*place) for name, place in places.items()}
    number = iter(range(10**9))
    for trainer in trainers.values():
        # DistributedDataParallel rebuilds its buckets in the second step.
        for _ in range(3):
            trainer.step(next(number))
    alone = measure({name: communicate(trainers[name], *place) for name, place in places.items()}, turns, 2)
    if kind == "timer":
        slowest = max(statistics.median(s for s, _ in samples) for samples in alone.values())
        for trainer in trainers.values():
            trainer.model.module.seconds = slowest / SHARE_OF_BACKWARD / LAYERS
    steps = measure({name: lambda trainer=trainer: trainer.step(next(number)) for name, trainer in trainers.items()},
                    turns, 1)
    report(kind, steps, alone)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--steps", choices=["example", "timer"], help="only this kind of step")
    options = parser.parse_args()
    joined = groups()
    say_where("DistributedDataParallel")
    example = train_gpt.parse([])
    text = train_gpt.Text(example.data, example.context, example.batch)
    makers = {"example": lambda group, shared: train_gpt.Trainer(example, "tutti" if shared else "", text,
                                                                 torch.device("cpu"), group),
              "timer": TimerStep}
    for kind in [options.steps] if options.steps else makers:
        run(kind, joined, makers[kind], options.turns)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

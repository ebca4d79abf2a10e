"""Measures steps of a pipeline beside the time that its schedule predicts. The stages sleep instead of computing, so
they take time but no core, as on a GPU.

    torchrun --standalone --nproc-per-node 4 tests/bench/bench_pipeline.py --microbatches 8

Columns, for each schedule: the median of several steps on tutti's runner and on torch's runtime, in turns, on the
slowest rank; the predicted time; the ratio of either time to it; and the bubbles, the part of a step in which a rank
does not work, computed from its known time at work. The prediction includes the measured time of a message between
ranks.
"""
import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

import torch_tutti
from torch_tutti._pipeline import schedules


class Sleep(torch.autograd.Function):
    """An identity that sleeps: `before` seconds in the forward pass, and `after` seconds in the backward pass."""

    @staticmethod
    def forward(context, x, before, after):
        context.after = after
        time.sleep(before)
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.after)
        return gradient, None, None


class Stage(torch.nn.Module):
    """A stage that sleeps. The gradients of its weights take a time of their own, when torch asks for them."""

    def __init__(self, forward, backward, weight):
        super().__init__()
        self.times = forward, backward, weight
        self.weight = torch.nn.Parameter(torch.ones(16))

    def forward(self, x):
        forward, backward, weight = self.times
        return Sleep.apply(x, forward, backward) * Sleep.apply(self.weight, 0.0, weight)


def message_seconds(rounds=200):
    """Returns the seconds of a message with an activation between ranks 0 and 1: the median of half a round trip. All
    ranks call it."""
    x, taken = torch.ones(4, 16), []
    for _ in range(rounds):
        begin = time.perf_counter()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        elif dist.get_rank() == 1:
            dist.recv(x, 0)
            dist.send(x, 0)
        taken.append((time.perf_counter() - begin) / 2)
    found = [statistics.median(taken)]
    dist.broadcast_object_list(found, src=0)
    return found[0]


def loss_of(x, y):
    return (x - y).square().mean()


def runtimes(pipeline, times, x):
    """Returns two functions that make a step: on tutti's runner and on torch's runtime, each with its own stages."""
    mine = pipeline.stages_of(dist.get_rank())
    last = pipeline.stages - 1 in mine
    ours = pipeline.runner([Stage(*times) for _ in mine], loss_of)
    stages = [PipelineStage(Stage(*times), i, pipeline.stages, torch.device("cpu")) for i in mine]
    theirs = pipeline.on_torch(stages, loss_fn=loss_of)
    return (lambda: ours.step(x, target=x),
            lambda: theirs.step(*([x] if 0 in mine else []), target=x if last else None, losses=[] if last else None))


def measure(name, options, message):
    """Returns the median seconds of a step on tutti's runner and on torch's runtime, and the predicted timing."""
    forward, backward, weight = times = tuple(ms / 1e3 for ms in (options.forward, options.backward, options.weight))
    pipeline = torch_tutti.Pipeline(name, dist.get_world_size(), options.microbatches)
    steps, taken = runtimes(pipeline, times, torch.ones(4 * options.microbatches, 16)), ([], [])
    for turn in range(options.steps + 2):
        for step, of in zip(steps, taken):
            dist.barrier()
            begin = time.perf_counter()
            step()
            slowest = torch.tensor(time.perf_counter() - begin)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            of += [slowest.item()] if turn > 1 else []
    # The inputs of the first stage have no gradients.
    inputs = [0.0] + [backward] * (pipeline.stages - 1)
    return *map(statistics.median, taken), pipeline.time(forward, inputs, weight, message)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("forward", 10), ("backward", 10), ("weight", 10)):
        parser.add_argument(f"--{name}", type=float, default=usual, metavar="MS")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--schedules", nargs="+", choices=schedules(), default=schedules())
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    message = message_seconds()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, {options.microbatches} microbatches; stages of {options.forward:g}, "
              f"{options.backward:g} and {options.weight:g} ms; a message {message * 1e6:.0f} us\n"
              f"{'schedule':<12}{'ours, ms':>10}{'torch, ms':>11}{'predicted':>11}{'ours':>7}{'torch':>7}"
              f"{'bubble':>9}{'torch':>8}{'predicted':>11}")
    for name in options.schedules:
        *seconds, timing = measure(name, options, message)
        if dist.get_rank() == 0:
            # These are the bubbles of the rank that works least.
            bubbles = [1 - min(timing.busy) / one for one in seconds]
            print(f"{name:<12}{seconds[0] * 1e3:>10.1f}{seconds[1] * 1e3:>11.1f}{timing.makespan * 1e3:>11.1f}"
                  f"{seconds[0] / timing.makespan:>7.3f}{seconds[1] / timing.makespan:>7.3f}{bubbles[0]:>9.1%}"
                  f"{bubbles[1]:>8.1%}{max(timing.bubbles):>11.1%}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

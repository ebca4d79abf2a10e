"""Measures a step of training a model that the ranks divide in several ways: zero, DistributedDataParallel and FSDP2.

    torchrun --standalone --nproc-per-node 2 tests/bench/bench_zero.py               time of all ways, in turns
    torchrun --standalone --nproc-per-node 2 tests/bench/bench_zero.py --memory zero3       memory of one way
    torchrun --standalone --nproc-per-node 2 tests/bench/bench_zero.py --timer              exposed time of the sums
    script/hosts 2 --ranks 2 -- tests/bench/bench_zero.py --hosts 2 --ways hsdp zero2 zero3     over hosts; hsdp: FSDP2
                                                                    that shards on a host and replicates between hosts

The model is that of examples/train_gpt.py, with the sizes asked for; the optimizer AdamW, torch's with fused=True.
Time: each way's step divided by that of DistributedDataParallel on tutti in the same turn, the median over the
turns. A step is as long as its slowest rank takes. Memory: the bytes of all ranks together, between steps and at most,
with shared pages counted once (PSS), less their bytes with a small model before; beside it stands the result of a
formula. Timer: layers sleep instead of computing, so they take time but no core, as on a GPU, and sums take 0.8 of the
backward pass. The figure is the time until all gradients are summed, less the same time with each rank in a group by
itself.
"""
import argparse
import ctypes
import gc
import statistics
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import torch_tutti
from steps import COMPUTING, groups, measure, median_ms, on_all_ranks, say_where

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import train_gpt

WAYS = {"ddp": "tutti", "ddp-gloo": "gloo", "fsdp": "tutti", "fsdp-gloo": "gloo", "hsdp": "tutti", "zero0": "tutti",
        "zero0-ahead": "tutti", "zero1": "tutti", "zero2": "tutti",
        "zero3": "tutti", "zero3-sharded": "tutti", "zero3-file": "tutti", "computing": COMPUTING}


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


class Training:
    """A model that is divided in one way, and its step."""

    def __init__(self, way, group, options, text):
        torch.manual_seed(1)
        model = train_gpt.GPT(len(text.characters), options.context, options.width, options.heads, options.layers)
        self.options, self.text, self.number = options, text, 0
        if way.startswith("zero"):
            self.model, self.optimizer = torch_tutti.zero.shard(model, adamw(model.parameters()), stage=int(way[4]),
                                                                hosts="sharded" if "sharded" in way else None,
                                                                ahead="ahead" in way, group=group,
                                                                state_directory="." if "file" in way else None)
            return
        if "sdp" in way:
            mesh = (init_device_mesh("cpu", (options.hosts, dist.get_world_size() // options.hosts),
                                     mesh_dim_names=("replicate", "shard")) if way == "hsdp"
                    else DeviceMesh.from_group(group, "cpu"))
            for part in (*model.blocks, model):
                fully_shard(part, mesh=mesh)
            self.model = model
        else:
            train_gpt.BUCKET_MB = 25
            self.model = train_gpt.data_parallel(model, group, shared=way == "ddp")
        self.optimizer = adamw(self.model.parameters())

    def step(self):
        inputs, targets = self.text.sample("train", 1, dist.get_rank(), self.number)
        loss = self.model(inputs, targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.number += 1
        return loss.item()


class Layer(torch.nn.Module):
    """A layer that sleeps instead of computing, and then returns a gradient that exists already."""

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(context, x, weight, layer):
            context.layer = layer
            return x.view_as(x)

        @staticmethod
        def backward(context, gradient):
            time.sleep(context.layer.seconds)
            return gradient, context.layer.gradient, None

    def __init__(self, width=1024):
        super().__init__()
        self.weight, self.gradient, self.seconds = torch.nn.Parameter(torch.zeros(width, width)), None, 0.0
        self.gradient = torch.ones(width, width)

    def forward(self, x):
        return self.Sleep.apply(x, self.weight, self)


class Timer:
    """A step of sleeping layers that ends when all gradients are summed."""

    def __init__(self, stage, group):
        model = torch.nn.Sequential(*(Layer() for _ in range(12)))
        self.model, self.optimizer = torch_tutti.zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1),
                                                            stage=stage, group=group)

    def step(self):
        self.model(torch.ones(1, requires_grad=True)).sum().backward()
        self.optimizer.clip_grad_norm_(1e9)

    def sleep(self, seconds):
        self.optimizer.zero_grad()
        for layer in self.model:
            layer.seconds = seconds


def time_sums(joined, turns):
    timers = {"zero2": Timer(2, joined["tutti"]), "zero3": Timer(3, joined["tutti"]),
              COMPUTING: Timer(3, joined[COMPUTING])}

    def run(timer):
        timer.step()
        timer.optimizer.zero_grad()

    steps = {name: lambda timer=timer: run(timer) for name, timer in timers.items()}
    alone = measure(steps, turns, 3)
    sums = max(median_ms(alone[name]) for name in ("zero2", "zero3"))
    for timer in timers.values():
        timer.sleep(sums / 1e3 / 0.8 / len(timer.model))
    taken = measure(steps, turns, 2)
    if dist.get_rank() == 0:
        for name in ("zero2", "zero3"):
            more = statistics.median(one[0] - other[0] for one, other in zip(taken[name], taken[COMPUTING])) * 1e3
            print(f"{name}: all at once {median_ms(alone[name]):.2f} ms; beside layers that take "
                  f"{median_ms(taken[COMPUTING]):.2f} ms: {more:.2f} more, {more / median_ms(taken[name]):.1%}")


def shared_bytes():
    """Returns the resident bytes of this process; a page that n processes share counts as 1/n (PSS)."""
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))


class Highest(threading.Thread):
    """A thread that looks at the bytes of this process every 4 ms, and keeps the largest number."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most, self.over = 0, threading.Event()

    def run(self):
        while not self.over.wait(0.004):
            self.most = max(self.most, shared_bytes())


def settled_bytes():
    gc.collect()
    # Free memory of the heap goes back to the system, so it does not count.
    ctypes.CDLL(None).malloc_trim(0)
    dist.barrier()
    return shared_bytes()


def remember(way, group, options, text):
    """Returns the bytes of all ranks together, between steps and at most, and the number of parameters. A small model
    runs first, so that the memory that torch keeps for any model is not counted."""
    sizes = {**vars(options), "width": 16 * options.heads, "layers": 2}
    small = Training(way, group, argparse.Namespace(**sizes), text)
    for _ in range(2):
        small.step()
    del small
    before = settled_bytes()
    training, highest = Training(way, group, options, text), Highest()
    training.step()
    settled_bytes()
    highest.start()
    for _ in range(3):
        training.step()
    highest.over.set()
    highest.join()
    kept = settled_bytes() - before
    total = on_all_ranks([float(kept), float(highest.most - before)], dist.ReduceOp.SUM)
    return *total, sum(p.numel() for p in training.model.parameters())


def expected(way, count, ranks, units):
    """Returns the bytes of all ranks together, without activations, by a formula for equal units on one host."""
    if way.startswith(("ddp", "zero0")):
        return 16 * count * ranks
    parameters = 4 * count * (ranks if way in ("zero1", "zero2") else 1)
    # Each rank has one unit that is gathered ahead.
    parameters += 4 * count / units * ranks * (way == "zero3-sharded")
    buffers = ranks * (4 * count if way == "zero1" else 4 * 2 * count / units)
    moments = 8 * count * (3 / units if way == "zero3-file" else 1)
    return parameters + buffers + 4 * count + moments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--memory", choices=[way for way in WAYS if way != "computing"])
    parser.add_argument("--timer", action="store_true")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[way for way in WAYS if way != "hsdp"],
                        help="the ways to time beside ddp")
    parser.add_argument("--hosts", type=int, default=1, help="for hsdp: the number of hosts")
    for name, value in (("width", 512), ("heads", 8), ("layers", 8), ("context", 64), ("batch", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    joined = groups()
    text = train_gpt.Text(None, options.context, options.batch)
    if options.timer:
        say_where("sums beside layers that sleep")
        time_sums(joined, options.turns)
    elif options.memory:
        kept, most, count = remember(options.memory, joined[WAYS[options.memory]], options, text)
        formula = expected(options.memory, count, dist.get_world_size(), options.layers)
        if dist.get_rank() == 0:
            print(f"{options.memory}: {count / 1e6:.1f} M parameters; MB of all ranks: {kept / 1e6:.0f} between steps, "
                  f"{formula / 1e6:.0f} by the formula, ratio {kept / formula:.3f}; {most / 1e6:.0f} at most")
    else:
        say_where("dividing a model")
        trainings = {way: Training(way, joined[backend], options, text) for way, backend in WAYS.items()
                     if way in ("ddp", *options.ways)}
        steps = measure({way: training.step for way, training in trainings.items()}, options.turns, 3)
        if dist.get_rank() == 0:
            count = sum(p.numel() for p in trainings["ddp"].model.parameters())
            print(f"{count / 1e6:.1f} M parameters; step, ms; by that of ddp (quartiles); processor time, ms")
            for way, samples in steps.items():
                ratios = [mine[0] / other[0] for mine, other in zip(samples, steps["ddp"])]
                low, middle, high = statistics.quantiles(ratios, n=4)
                print(f"{way:<12} {median_ms(samples):>8.1f} {middle:>6.2f} ({low:.2f} .. {high:.2f}) "
                      f"{median_ms(samples, 1):>8.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

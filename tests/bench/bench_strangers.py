"""Measures short steps of DistributedDataParallel on tutti and on gloo while other programs compute on the same cores.

    torchrun --standalone --nproc-per-node 2 tests/bench/bench_strangers.py
    torchrun --standalone --nproc-per-node 4 tests/bench/bench_strangers.py --strangers 0 2 8 --steps 30

A stranger is a process that computes all the time; the system puts it on any core. The model has three layers of 64 x
64, so a step is one all-reduce of 49 KiB and little else. For each number of strangers the backends take turns in
rounds. The table has the mean time of a step in ms, from a common start to the end on rank 0, and the ratio of the two
means, over all rounds; "rounds" is the range of the ratios of single rounds.
"""
import argparse
import contextlib
import functools
import statistics
import subprocess
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from steps import groups, say_where, timed
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, BATCH = 64, 3, 8
STRANGER = "while True: pass"


class Training:
    """The model of the benchmark on one group."""

    def __init__(self, group: dist.ProcessGroup):
        torch.manual_seed(0)
        layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
        self.model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.batch = torch.randn(BATCH, WIDTH)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(self.batch).square().mean().backward()
            self.optimizer.step()


@contextlib.contextmanager
def strangers(number: int) -> Iterator[None]:
    """Starts the strangers on rank 0, and ends them."""
    programs = [subprocess.Popen([sys.executable, "-S", "-c", STRANGER]) for _ in range(number)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strangers", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100, help="steps in a round")
    options = parser.parse_args()
    joined = groups()
    trainings = {name: Training(joined[name]) for name in ("gloo", "tutti")}
    is_first = dist.get_rank() == 0
    say_where("DDP beside strangers")
    if is_first:
        print("| strangers | gloo | tutti | tutti ÷ gloo | rounds |\n|---|---|---|---|---|")
    for number in options.strangers:
        times: dict[str, list[float]] = {name: [] for name in trainings}
        with strangers(number if is_first else 0):
            # the first round, in which the system distributes the strangers, does not count
            for turn in range(options.rounds + 1):
                for name, training in trainings.items():
                    seconds, _ = timed(functools.partial(training.train, options.steps))
                    if turn:
                        times[name].append(seconds / options.steps * 1000)
        gloo, tutti = (statistics.mean(times[name]) for name in ("gloo", "tutti"))
        ratios = [mine / theirs for mine, theirs in zip(times["tutti"], times["gloo"])]
        if is_first:
            print(f"| {number} | {gloo:.2f} | {tutti:.2f} | {tutti / gloo:.2f} "
                  f"| {min(ratios):.2f} to {max(ratios):.2f} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

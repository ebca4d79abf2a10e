"""Measures a block of two linear layers, divided by columns and by rows, forward and backward: torch_tutti.parallel
with and without a divided sequence, and with and without pieces that travel while products are computed. Beside it
stands the whole block in one process on one core. The ideal is the time of that, divided by the number of ranks.

    torchrun --standalone --nproc-per-node 2 tests/bench/bench_parallel.py --picture docs/img/parallel.png

All ways take turns. Rank 0 computes the whole block while the others wait. A call lasts from a common start to the
last rank's return. Figures are medians, in milliseconds.
"""

import argparse
import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.functional import gelu

from steps import measure, median_ms
from torch_tutti.parallel import ColumnLinear, RowLinear

WAYS = {"sums": {}, "sequence, pieces=0": {"sequence": True, "pieces": 0}, "sequence": {"sequence": True}}
Step = Callable[[], None]


def step_of(up: torch.nn.Module, down: torch.nn.Module, x: torch.Tensor) -> Step:
    leaf = x.clone().requires_grad_()

    def step() -> None:
        for tensor in (leaf, *up.parameters(), *down.parameters()):
            tensor.grad = None
        y = down(gelu(up(leaf)))
        y.backward(torch.ones_like(y))
    return step


def steps_of(options: argparse.Namespace) -> dict[str, Step]:
    """Returns the steps, by way, the whole block first. Asserts that the divided blocks give the same output."""
    torch.manual_seed(1)
    whole = torch.nn.Linear(options.width, 4 * options.width), torch.nn.Linear(4 * options.width, options.width)
    x = torch.randn(1, options.length, options.width)
    alone = step_of(*whole, x)
    steps = {"one process": alone if dist.get_rank() == 0 else lambda: None}
    for name, settings in WAYS.items():
        up, down = ColumnLinear.of(whole[0], **settings), RowLinear.of(whole[1], **settings)
        piece = x.chunk(dist.get_world_size(), 1)[dist.get_rank()] if settings else x
        with torch.no_grad():
            y = down(gelu(up(piece)))
            expected = whole[1](gelu(whole[0](piece)))
        torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-3)
        steps[name] = step_of(up, down, piece)
    return steps


def draw(file: str, times: dict[str, float], title: str) -> None:
    from matplotlib.figure import Figure
    figure = Figure(figsize=(7, 2.6), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(list(times), list(times.values()), color=["#bbbbbb"] + ["#2e75b6"] * (len(times) - 1))
    axes.bar_label(bars, [f" {value:.1f}" for value in times.values()], fontsize=8)
    axes.axvline(times["one process"] / dist.get_world_size(), color="black", linestyle=":", linewidth=1)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("ms; dotted: one process by the number of ranks")
    axes.set_title(title, loc="left", fontsize=9)
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual, what in (("length", 1024, "tokens of the sequence"),
                              ("width", 512, "columns of a token; the hidden layer has 4 times as many"),
                              ("turns", 15, "turns of each way")):
        parser.add_argument(f"--{name}", type=int, default=usual, help=f"{what} (default %(default)s)")
    parser.add_argument("--picture", metavar="FILE", help="draw the times as bars into FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    title = (f"{options.length} tokens of {options.width}, {dist.get_world_size()} ranks, "
             f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    times = {name: median_ms(samples) for name, samples in
             measure(steps_of(options), options.turns, warm=2).items()}
    if dist.get_rank() == 0:
        print(title)
        for name, value in times.items():
            print(f"  {name:<20}{value:>10.3f} ms{value / times['one process']:>8.2f}")
        if options.picture:
            draw(options.picture, times, title)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())

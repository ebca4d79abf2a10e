"""Steps of examples/train_gpt.py beside what the planner of `tutti plan` predicts for this machine, and whether it puts
the configurations in the right order.

    python tests/bench/bench_plan.py                        six configurations, on two ranks and one
    python tests/bench/bench_plan.py --turns 5 --only "ddp, wide" "zero 1, wide"

The machine is measured in the same run, for each number of ranks, while all of them work: operations a second of a
product as the model has them, bytes a second of memory in an update, α and β of all-reduces. Nothing is hidden where
computing keeps all cores busy, so overlap is 0; efficiency is 1, because what was measured is what is reached. A step
is the median of the example's own, over the turns the least: others of this machine can only make it longer. The last
line has Spearman's rank correlation of predicted and measured: 1 where the order is the same.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from torch_tutti._planning.communication import Cluster, Device
from torch_tutti._planning.models import Model
from torch_tutti._planning.step import Estimate, Job, Strategy, estimate
from torch_tutti._planning.units import Link, scaled, seconds_shown

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/train_gpt.py"
sys.path.insert(0, str(EXAMPLE.parent))
import train_gpt  # noqa: E402

CONTEXT = 64
CHARACTERS = 100                                        # of the example's text, nearly


class Row(NamedTuple):
    """One training: the example's sizes, its other flags, and what these are to the planner. dp, tp and pp multiply to
    the ranks; batch: sequences of a rank in a step, in so many microbatches."""
    name: str
    ranks: int
    layers: int
    width: int
    heads: int
    batch: int
    flags: tuple[str, ...] = ()
    tp: int = 1
    pp: int = 1
    ep: int = 1
    zero: int = 0
    microbatches: int = 1

    @property
    def strategy(self) -> Strategy:
        dp = self.ranks // self.tp // self.pp
        return Strategy(self.tp, self.pp, dp, self.ep, self.zero, self.microbatches, self.batch // self.microbatches,
                        "none")


# a way that the example learns is a row here: Row("tp 2", 2, 6, 384, 6, 8, ("--tp", "2"), tp=2)
ROWS = [Row("ddp, small", 2, 4, 192, 6, 8), Row("ddp, long", 2, 4, 192, 6, 56), Row("ddp, wide", 2, 6, 512, 8, 2),
        Row("zero 1, wide", 2, 6, 512, 8, 2, ("--zero", "1"), zero=1), Row("one rank, wide", 1, 6, 512, 8, 4),
        Row("ddp, deep", 2, 12, 256, 8, 16)]


# ---- the machine, on its ranks ----
def best_seconds(work, seconds=0.4):
    """Of the quickest of as many as fit into the time."""
    end, least = time.perf_counter() + seconds, float("inf")
    while time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - begin)
    return least


def measure_machine():
    """On each rank, all at the same time; rank 0 prints the least of all."""
    from torch_tutti._planning.measure import links
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    x, weight = torch.randn(8 * CONTEXT, 384), torch.randn(384, 4 * 384)
    dist.barrier()
    product = best_seconds(lambda: x @ weight)
    value, gradient = torch.zeros(1 << 24), torch.ones(1 << 24)      # more than caches hold
    dist.barrier()
    update = best_seconds(lambda: value.add_(gradient))         # two are read, one is written
    speeds = torch.tensor([2 * x.shape[0] * weight.numel() / product, 3 * 4 * value.numel() / update])
    dist.all_reduce(speeds, op=dist.ReduceOp.MIN)
    local, _ = links()
    if dist.get_rank() == 0:
        print(json.dumps({"flops": speeds[0].item(), "bandwidth": speeds[1].item(), "local": local}))
    dist.destroy_process_group()


def cluster_of(ranks: int, found: dict) -> Cluster:
    local = Link(*found["local"]) if found["local"] else Link(float("inf"), 0.0)
    device = Device(found["flops"], 1.0, float("inf"), found["bandwidth"], local, local, 0.0)
    return Cluster(device, ranks, 1, local, local)


def torchrun(ranks: int, *words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
                           *words], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} on {ranks} ranks failed:\n{done.stderr[-2000:]}")
    return done.stdout


# ---- predicted and measured ----
def predicted(row: Row, cluster: Cluster) -> Estimate:
    model = train_gpt.GPT(CHARACTERS, CONTEXT, row.width, row.heads, row.layers)
    count = sum(p.numel() for p in model.parameters())
    own = count - sum(p.numel() for p in model.blocks.parameters())
    s = row.strategy
    sizes = Model(count, own, row.layers, row.width, row.heads)
    return estimate(Job(sizes, cluster, s.dp * row.batch, CONTEXT, "fp32"), s)


def measured(row: Row, steps: int) -> float:
    """Seconds of a step, as the example tells."""
    shown = torchrun(row.ranks, str(EXAMPLE), "--steps", str(steps), "--context", str(CONTEXT), "--sample", "1",
                     "--layers", str(row.layers), "--width", str(row.width), "--heads", str(row.heads),
                     "--batch", str(row.batch), *row.flags)
    line = next(line for line in shown.splitlines() if line.startswith("step, median"))
    return float(line.split()[-2]) / 1e3


def correlation(first: list[float], second: list[float]) -> float:
    """Spearman's, of values that are all different."""
    places = [[sorted(values).index(value) for value in values] for values in (first, second)]
    count = len(first)
    return 1 - 6 * sum((a - b) ** 2 for a, b in zip(*places)) / (count * (count * count - 1))


def machine_shown(ranks: int, machine: dict) -> str:
    text = (f"{ranks} rank{'s' * (ranks > 1)}: {scaled(machine['flops'])}FLOP/s and {scaled(machine['bandwidth'])}B/s "
            "each")
    if not machine["local"]:
        return text
    speed, latency = machine["local"]
    return f"{text}; between them {scaled(speed)}B/s (β) and {seconds_shown(latency)} (α)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[row.name for row in ROWS], default=[row.name for row in ROWS])
    parser.add_argument("--machine", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.machine:
        measure_machine()
        return
    rows = [row for row in ROWS if row.name in options.only]
    found = {ranks: json.loads(torchrun(ranks, __file__, "--machine")) for ranks in sorted({row.ranks for row in rows})}
    for ranks, machine in found.items():
        print(machine_shown(ranks, machine))
    guesses = [predicted(row, cluster_of(row.ranks, found[row.ranks])) for row in rows]
    taken = [[measured(row, options.steps) for row in rows] for _ in range(options.turns)]
    steps = [min(of) for of in zip(*taken)]
    print(f"{'':<18}{'predicted':>10}{'measured':>10}{'ratio':>7}{'spread':>8}   predicted: computing, dp, update")
    for row, guess, step, of in zip(rows, guesses, steps, zip(*taken)):
        shares = ", ".join(f"{part / guess.time:.0%}" for part in (guess.compute, guess.data, guess.update))
        print(f"{row.name:<18}{guess.time * 1e3:>7.1f} ms{step * 1e3:>7.1f} ms{step / guess.time:>7.2f}"
              f"{max(of) / step:>8.2f}   {shares}")
    if len(rows) > 1:
        print(f"rank correlation {correlation([guess.time for guess in guesses], steps):.2f}; measured by predicted "
              f"{statistics.median(step / guess.time for step, guess in zip(steps, guesses)):.2f} in the median")


if __name__ == "__main__":
    main()

"""Measures steps of examples/train_gpt.py beside those that the planner of `tutti plan` predicts for this machine, and
compares the order of the configurations by both.

    python tests/bench/bench_plan.py                        six configurations, on one, two and four ranks
    python tests/bench/bench_plan.py --turns 5 --only "dp 2" "dp 2, zero 1"

The machine is measured in the same run, for each number of ranks, while all of them work: operations a second of the
products that each configuration has, bytes a second of memory in an update, α and β of all-reduces. Ranks beyond the
cores share them and wait for each other, so a speed is measured on all ranks at once, with a barrier every few
hundredths of a second. The planner's overlap is 0, because computing keeps all cores busy and so hides no
communication. Its efficiency is 1, because the speeds are measured ones. A step is the median that the example prints,
and the least of the turns: other programs of this machine can only make it longer. The last line has Spearman's rank
correlation of the predicted and the measured times; 1 means the same order.
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
# The number of different characters in the example's text, nearly.
CHARACTERS = 100
# MEET_S: longer than a time slice of the scheduler.
WINDOWS, ROUNDS, MEET_S = 3, 20, 0.02


class Row(NamedTuple):
    """One training: the sizes of the example's model, and how the ranks divide it. batch: the sequences of a step on
    all ranks. zero: the stage, or None where the example itself averages gradients, by one all-reduce."""
    name: str
    layers: int
    width: int
    heads: int
    batch: int
    tp: int = 1
    pp: int = 1
    dp: int = 1
    zero: int | None = None
    microbatches: int = 1

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def strategy(self) -> Strategy:
        return Strategy(self.tp, self.pp, self.dp, 1, self.zero or 0, self.microbatches,
                        self.batch // self.dp // self.microbatches, "none")

    @property
    def flags(self) -> list[str]:
        given = {name: getattr(self, name) for name in ("layers", "width", "heads", "batch", "tp", "pp", "dp", "zero",
                                                        "microbatches")}
        return [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]

    @property
    def product(self) -> tuple[int, int, int]:
        """Returns the sizes of the first product of an MLP for a microbatch on one rank: tokens, input columns, output
        columns."""
        return self.strategy.sequences * CONTEXT, self.width, 4 * self.width // self.tp


ROWS = [Row("tp 2", 4, 256, 8, 4, tp=2), Row("dp 2, zero 1", 6, 384, 8, 2, dp=2, zero=1),
        Row("tp 2, dp 2", 6, 384, 8, 4, tp=2, dp=2), Row("dp 2", 6, 384, 8, 10, dp=2),
        Row("pp 2", 6, 384, 8, 16, pp=2, microbatches=4), Row("one rank", 6, 384, 8, 32)]


# ---- the machine, on its ranks ----
def speed(work, amount: float) -> float:
    """Returns the units of work that the slowest rank does in a second; a call of `work` does `amount` units. All ranks
    work and meet in barriers as in training, so a rank's waits for a core count. Takes the best of several windows,
    because other programs of this machine can only slow them down."""
    begin = time.perf_counter()
    work()
    often = torch.tensor(1 + MEET_S // (time.perf_counter() - begin))
    dist.broadcast(often, 0)
    best = 0.0
    for _ in range(WINDOWS):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(ROUNDS):
            for _ in range(int(often)):
                work()
            dist.barrier()
        best = max(best, ROUNDS * int(often) * amount / (time.perf_counter() - begin))
    everyone = torch.tensor(best, dtype=torch.float64)
    dist.all_reduce(everyone, op=dist.ReduceOp.MIN)
    return everyone.item()


def product_speed(rows: int, inner: int, columns: int) -> float:
    """Returns the operations a second of the three products of a layer: its outputs, and the gradients of its inputs
    and of its weights."""
    x, weight, gradient = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(rows, columns)

    def work():
        x @ weight.T
        gradient @ weight
        gradient.T @ x
    return speed(work, 6 * rows * inner * columns)


def measure_machine(products: list[tuple[int, int, int]]) -> None:
    """Measures the machine on all ranks at the same time. Rank 0 prints the results as JSON."""
    from torch_tutti._planning.measure import links
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    flops = [product_speed(*product) for product in products]
    # The arrays are larger than the caches. An update reads two numbers of 4 bytes and writes one.
    value, gradient = torch.zeros(1 << 24), torch.ones(1 << 24)
    update = speed(lambda: value.add_(gradient), 3 * 4 * value.numel())
    local, _ = links()
    if dist.get_rank() == 0:
        print(json.dumps({"flops": flops, "bandwidth": update, "local": local}))
    dist.destroy_process_group()


def cluster_of(ranks: int, found: dict, flops: float) -> Cluster:
    local = Link(*found["local"]) if found["local"] else Link(float("inf"), 0.0)
    device = Device(flops, 1.0, float("inf"), found["bandwidth"], local, local, 0.0)
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
    sizes = Model(count, own, row.layers, row.width, row.heads)
    return estimate(Job(sizes, cluster, row.batch, CONTEXT, "fp32"), row.strategy)


def measured(row: Row, steps: int) -> float:
    """Returns the median seconds of a step, which the example prints."""
    shown = torchrun(row.ranks, str(EXAMPLE), "--steps", str(steps), "--context", str(CONTEXT), *row.flags)
    line = next(line for line in shown.splitlines() if line.startswith("step, median"))
    return float(line.split()[-2]) / 1e3


def correlation(first: list[float], second: list[float]) -> float:
    """Returns Spearman's rank correlation of two lists, neither of which has equal values."""
    places = [[sorted(values).index(value) for value in values] for values in (first, second)]
    count = len(first)
    return 1 - 6 * sum((a - b) ** 2 for a, b in zip(*places)) / (count * (count * count - 1))


def machine_shown(ranks: int, machine: dict) -> str:
    text = (f"{ranks} rank{'s' * (ranks > 1)}: {', '.join(map(scaled, machine['flops']))}FLOP/s and "
            f"{scaled(machine['bandwidth'])}B/s each")
    if not machine["local"]:
        return text
    speed, latency = machine["local"]
    return f"{text}; between them {scaled(speed)}B/s (β) and {seconds_shown(latency)} (α)"


def show(rows: list[Row], guesses: list[Estimate], taken: list[list[float]]) -> None:
    """Prints the predicted and the measured time of a step for each row, and their rank correlation. taken: for each
    turn, the measured seconds of all rows."""
    steps = [min(of) for of in zip(*taken)]
    print(f"{'':<18}{'predicted':>10}{'measured':>10}{'ratio':>7}{'spread':>8}   "
          "predicted: computing, bubble, tp, pp, dp, update")
    for row, guess, step, of in zip(rows, guesses, steps, zip(*taken)):
        shares = ", ".join(f"{part / guess.time:.0%}" for part in (
            guess.compute, guess.bubble, guess.tensor, guess.pipeline, guess.data, guess.update))
        print(f"{row.name:<18}{guess.time * 1e3:>7.1f} ms{step * 1e3:>7.1f} ms{step / guess.time:>7.2f}"
              f"{max(of) / step:>8.2f}   {shares}")
    if len(rows) > 1:
        print(f"rank correlation {correlation([guess.time for guess in guesses], steps):.2f}; measured by predicted "
              f"{statistics.median(step / guess.time for step, guess in zip(steps, guesses)):.2f} in the median")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[row.name for row in ROWS], default=[row.name for row in ROWS])
    # The sizes of products: main() starts this program with them, to measure the machine on a number of ranks.
    parser.add_argument("--machine", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.machine:
        measure_machine(options.machine)
        return
    rows = [row for row in ROWS if row.name in options.only]
    found = {}
    for ranks in sorted({row.ranks for row in rows}):
        products = json.dumps([row.product for row in rows if row.ranks == ranks])
        found[ranks] = json.loads(torchrun(ranks, __file__, "--machine", products))
        print(machine_shown(ranks, found[ranks]), flush=True)
    speeds = {ranks: iter(machine["flops"]) for ranks, machine in found.items()}
    guesses = [predicted(row, cluster_of(row.ranks, found[row.ranks], next(speeds[row.ranks]))) for row in rows]
    show(rows, guesses, [[measured(row, options.steps) for row in rows] for _ in range(options.turns)])


if __name__ == "__main__":
    main()

"""Measures all-reduce as the decode loop of a tensor-parallel model calls it: each layer computes, writes a small
tensor, and has it summed over the ranks. Tensors have 8 bytes and 8 to 256 KiB, in float32 and bfloat16; the sums run
on tutti, on gloo, and on DeepSpeed's shared memory where DeepSpeed is installed.

    torchrun --standalone --nproc-per-node 2 tests/bench/bench_decode.py
    TORCH_EXTENSIONS_DIR=build/frameworks/extensions build/frameworks/bin/python -m torch.distributed.run \\
        --standalone --nproc-per-node 2 tests/bench/bench_decode.py             beside DeepSpeed

All backends are called from Python, in turns of a few hundred layers. A call lasts from the last rank's arrival to
the last rank's return; figures are medians. Before each call a layer multiplies by 1 MiB of weights, by others each
time, so the caches do not hold what they would hold if calls followed each other at once.

Column "bytes", for two ranks: in the same loop each rank copies its tensor into memory that both have mapped and, after
both have done so, adds the other's tensor. Any all-reduce of private tensors must move these bytes. The column leaves
out the waiting, and the cost of the two calls of torch, which the same loop with 64 bytes measures.

The last table has two ranks that compute nothing, one of which comes late. It shows by how much a rank may be late
before the other one sleeps, and what it costs to wake it.
"""

import argparse
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import torch_tutti

SIZES = [8, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10]
# A layer's weights are HIDDEN x HIDDEN in float32. POOL layers have weights of their own.
HIDDEN, POOL = 512, 32
# A turn of one way has as many calls as take about SECONDS.
SECONDS = 0.05
DELAYS_US = [0, 10, 30, 100, 300, 1000]
Ways = dict[str, Callable[[torch.Tensor], object]]


# ---- what is measured ----
def deepspeed_shared_memory() -> Callable[[torch.Tensor], object] | str:
    """Returns DeepSpeed's all-reduce, or a text that says why it is unavailable. Unlinks the files that DeepSpeed makes
    in /dev/shm at once."""
    try:
        from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder
    except ImportError as error:
        return f"{error}; tests/frameworks/setup makes an environment that has it"
    rank, size = dist.get_rank(), dist.get_world_size()
    os.environ["LOCAL_SIZE"] = str(size)
    module = None
    # Ranks load it one after the other, because the first one may have to compile it.
    for turn in range(size):
        if turn == rank:
            module = ShareMemCommBuilder().load(verbose=False)
        dist.barrier()
    if module.vector_kernel_level() < 2:
        return "its kernels need AVX-512BW"
    module.initialize(size, rank)
    dist.barrier()
    names = f"deepspeed_allreduce_buffer_{os.getuid()}_{os.environ['MASTER_ADDR']}_{os.environ['MASTER_PORT']}_{rank}"
    Path("/dev/shm", names).unlink()
    return torch.ops.deepspeed.inference_all_reduce_


def all_ways() -> Ways:
    gloo = dist.new_group(backend="gloo")
    ways = {"torch_tutti.all_reduce": torch_tutti.all_reduce, "tutti": dist.all_reduce,
            "gloo": lambda tensor: dist.all_reduce(tensor, group=gloo)}
    theirs = deepspeed_shared_memory()
    if callable(theirs):
        ways["DeepSpeed"] = theirs
    elif dist.get_rank() == 0:
        print(f"without DeepSpeed: {theirs}")
    return ways


def check(ways: Ways, dtype: torch.dtype) -> None:
    """Asserts that each way gives the right sum at each size."""
    for name, way in ways.items():
        for bytes_ in SIZES:
            tensor = torch.full((bytes_ // dtype.itemsize,), dist.get_rank() + 1, dtype=dtype)
            way(tensor)
            expected = dist.get_world_size() * (dist.get_world_size() + 1) // 2
            assert tensor.eq(expected).all(), f"{name}: {tensor.unique().tolist()} instead of {expected}"


# ---- the loop ----
class Layers:
    """The computation between two calls: a layer multiplies one of POOL matrices of weights by a vector, and fills the
    tensor that is reduced next."""

    def __init__(self, bytes_: int, dtype: torch.dtype):
        self.weights = torch.full((POOL, HIDDEN, HIDDEN), 1e-3)
        self.hidden, self.out = torch.ones(HIDDEN), torch.empty(HIDDEN)
        self.tensor = torch.empty(bytes_ // dtype.itemsize, dtype=dtype)

    def compute(self, layer: int) -> torch.Tensor:
        torch.mv(self.weights[layer % POOL], self.hidden, out=self.out)
        return self.tensor.fill_(layer % 8)


def run_turn(layers: Layers, way: Callable[[torch.Tensor], object], count: int) -> list[tuple[float, float]]:
    """Returns when each call began and returned, in seconds of the clock that all processes of a machine share."""
    now, stamps = time.perf_counter, []
    torch_tutti.all_reduce(torch.zeros(1))
    for layer in range(count):
        tensor = layers.compute(layer)
        begin = now()
        way(tensor)
        stamps.append((begin, now()))
    return stamps


def durations(stamps: list[tuple[float, float]]) -> list[float]:
    """Returns the microseconds of each call from the last rank's arrival to the last rank's return."""
    stamps = torch.tensor(stamps, dtype=torch.float64)
    dist.all_reduce(stamps, op=dist.ReduceOp.MAX)
    return ((stamps[:, 1] - stamps[:, 0]) * 1e6).tolist()


def measure(ways: Ways, bytes_: int, dtype: torch.dtype, turns: int, most: int,
            run_turn: Callable[..., list[tuple[float, float]]] = run_turn) -> dict[str, float]:
    """Returns the median microseconds of a call, by way. most: the calls in a turn at most."""
    layers, taken = Layers(bytes_, dtype), {name: [] for name in ways}
    counts = {}
    for name, way in ways.items():
        run_turn(layers, way, 5)
        slow = torch.tensor([statistics.median(durations(run_turn(layers, way, 10)))])
        dist.all_reduce(slow, op=dist.ReduceOp.MAX)
        counts[name] = max(10, min(most, int(SECONDS * 1e6 / slow.item())))
    for _ in range(turns):
        for name, way in ways.items():
            taken[name] += durations(run_turn(layers, way, counts[name]))
    return {name: statistics.median(values) for name, values in taken.items()}


# ---- the bytes ----
def shared_halves(bytes_: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns this rank's half and the other rank's half of memory that both have mapped. The memory has no name."""
    file = os.memfd_create("bench_decode")
    os.ftruncate(file, 2 * bytes_)
    where = [None, None]
    dist.all_gather_object(where, (os.getpid(), file))
    with open(f"/proc/{where[0][0]}/fd/{where[0][1]}", "r+b") as first:
        memory = torch.frombuffer(mmap.mmap(first.fileno(), 2 * bytes_), dtype=torch.float32)
    dist.barrier()
    os.close(file)
    halves = memory.split(bytes_ // 4)
    return halves[dist.get_rank()], halves[1 - dist.get_rank()]


def move_bytes(bytes_: int, count: int) -> float:
    """Returns the median microseconds of copying and adding the bytes of a call, on the slower rank, without the
    waiting in between."""
    mine, theirs = shared_halves(max(bytes_, 64))
    layers, now, taken = Layers(max(bytes_, 64), torch.float32), time.perf_counter, []
    meeting = torch.zeros(1)
    for layer in range(count):
        tensor = layers.compute(layer)
        torch_tutti.all_reduce(meeting)
        begin = now()
        mine.copy_(tensor)
        middle = now()
        torch_tutti.all_reduce(meeting)
        again = now()
        torch.add(tensor, theirs, out=tensor)
        taken.append((middle - begin + now() - again) * 1e6)
        torch_tutti.all_reduce(meeting)
    slower = torch.tensor(taken)
    dist.all_reduce(slower, op=dist.ReduceOp.MAX)
    return slower.median().item()


# ---- a rank that comes late ----
def late(way: Callable[[torch.Tensor], object], delay_us: int, count: int) -> float:
    """Returns the median microseconds of calls to which rank 1 comes late by `delay_us`, from its arrival to the last
    return."""
    now, stamps, tensor = time.perf_counter, [], torch.zeros(HIDDEN)
    for _ in range(count):
        torch_tutti.all_reduce(tensor)
        until = now() + (delay_us * 1e-6 if dist.get_rank() else 0)
        while now() < until:
            pass
        begin = now()
        way(tensor)
        stamps.append((begin, now()))
    return statistics.median(durations(stamps))


# ---- what is shown ----
def table(title: str, first: str, heads: list[str], rows: dict[int, list[float]]) -> None:
    print(f"\n{title}")
    for place, head in enumerate(heads):
        print(f"  ({place + 1}) {head}")
    print(f"{first:>8}" + "".join(f"{f'({place + 1})':>9}" for place in range(len(heads))))
    for key, row in rows.items():
        print(f"{key:>8}" + "".join(f"{cell:>9.2f}" for cell in row), flush=True)


def report(dtype: torch.dtype, medians: dict[int, dict[str, float]], bytes_alone: dict[int, float]) -> None:
    ours, *others = next(iter(medians.values()))
    heads = [ours, *others, *(f"{ours} / {other}" for other in others)]
    rows = {size: [*row.values(), *(row[ours] / row[other] for other in others)] for size, row in medians.items()}
    if bytes_alone:
        heads += ["bytes", f"{ours} / bytes"]
        for size, alone in bytes_alone.items():
            rows[size] += [alone, medians[size][ours] / alone]
    table(f"{str(dtype).removeprefix('torch.')}, us", "bytes", heads, rows)


def join(what: str) -> int:
    """Joins the job with this rank pinned to one core, and returns the number of cores. Ranks share cores if there are
    more ranks than cores."""
    torch.set_num_threads(1)
    rank, cores = int(os.environ["LOCAL_RANK"]), sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("tutti")
    if rank == 0:
        print(f"{what}, torch {torch.__version__}, {dist.get_world_size()} ranks, {len(cores)} cores, "
              f"load {os.getloadavg()[0]:.1f}")
    return len(cores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--layers", type=int, default=200, help="calls in a turn; a slow way makes fewer (default 200)")
    options = parser.parse_args()
    cores = join("decode loop")
    rank, ways, alone = dist.get_rank(), all_ways(), {}
    if dist.get_world_size() == 2 <= cores:
        nothing = move_bytes(0, options.layers * options.turns)
        alone = {bytes_: move_bytes(bytes_, options.layers * options.turns) - nothing for bytes_ in SIZES[1:]}
        if rank == 0:
            print(f"two calls of torch, taken off the bytes: {nothing:.2f} us")
    for dtype in torch.float32, torch.bfloat16:
        check(ways, dtype)
        medians = {bytes_: measure(ways, bytes_, dtype, options.turns, options.layers) for bytes_ in SIZES}
        if rank == 0:
            report(dtype, medians, alone)
    if alone:
        rows = {delay: [late(way, delay, options.layers) for way in ways.values()] for delay in DELAYS_US}
        if rank == 0:
            table(f"{HIDDEN * 4} bytes of float32 when a rank comes late, us", "late by", list(ways), rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())

"""Measures collectives of lists of tensors through torch, on tutti and gloo in turns; each tensor of a list has its own
allocation.

    torchrun --standalone --nproc-per-node 2 tests/bench/bench_lists.py --bytes 16777216

The figures are the median and the minimum of the turns' times of blocking calls, on the slower rank. Other programs on
the machine disturb the minimum less. The bytes are those of one tensor.
"""
import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

Calls = dict[str, Callable[[dist.ProcessGroup], object]]


def calls_of(count: int, ranks: int) -> Calls:
    """Returns the collectives, by name. The tensors of a list are not adjacent in memory."""
    def apart() -> list[torch.Tensor]:
        rooms = [torch.zeros(count + 1024) for _ in range(ranks)]
        return [room[512:512 + count] for room in rooms]

    ins, outs, one = apart(), apart(), torch.zeros(count)
    root = dist.get_rank() == 0
    return {
        "all_gather": lambda group: dist.all_gather(outs, one, group=group),
        "reduce_scatter": lambda group: dist.reduce_scatter(one, ins, group=group),
        "all_to_all": lambda group: dist.all_to_all(outs, ins, group=group),
        "gather": lambda group: dist.gather(one, outs if root else None, group=group),
        "scatter": lambda group: dist.scatter(one, ins if root else None, group=group),
    }


def measure(groups: dict[str, dist.ProcessGroup], call: Callable[[dist.ProcessGroup], object], turns: int,
            repeat: int) -> dict[str, tuple[float, float]]:
    """Returns the median and the least microseconds of a call, by backend. The first turn only warms up."""
    taken: dict[str, list[float]] = {name: [] for name in groups}
    for turn in range(turns + 1):
        for name, group in groups.items():
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(repeat):
                call(group)
            if turn:
                taken[name].append((time.perf_counter() - begun) / repeat * 1e6)
    slowest = torch.tensor([(statistics.median(times), min(times)) for times in taken.values()])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return {name: (median, least) for name, (median, least) in zip(groups, slowest.tolist())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, nargs="+", default=[8, 4096, 65536, 1 << 20, 8 << 20, 16 << 20])
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank, cores = int(os.environ["LOCAL_RANK"]), sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("tutti")
    groups = {"tutti": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    if rank == 0:
        print(f"lists of {dist.get_world_size()} tensors, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}; us")
        print(f"{'':<15} {'bytes':>9} {'tutti':>9} {'least':>9} {'gloo':>9} {'least':>9} {'gloo / tutti':>13} "
              f"{'least':>6}", flush=True)
    for size in options.bytes:
        for name, call in calls_of(size // 4, dist.get_world_size()).items():
            figures = measure(groups, call, options.turns, 100 if size <= 4096 else 1 if size > 1 << 20 else 10)
            (ours, our_least), (theirs, their_least) = figures["tutti"], figures["gloo"]
            if rank == 0:
                print(f"{name:<15} {size:>9} {ours:>9.1f} {our_least:>9.1f} {theirs:>9.1f} {their_least:>9.1f} "
                      f"{theirs / ours:>13.1f} {their_least / our_least:>6.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

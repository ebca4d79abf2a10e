"""allreduce through torch.distributed on tutti and on gloo, in one run, turn by turn: times of the slowest rank, and
their ratio.

    torchrun --standalone --nproc-per-node 2 tests/bench/bench_torch.py
"""

import os
import statistics
import time

import torch
import torch.distributed as dist

SIZES = [8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]


def repetitions(size: int) -> int:
    """How many calls are timed together, so that a sample is long against the clock."""
    return 200 if size <= 64 << 10 else 20 if size <= 1 << 20 else 2


def sample(tensor: torch.Tensor, group: dist.ProcessGroup) -> float:
    """Microseconds of one all_reduce, in place, on the slowest rank; the tensor is dirtied before each timed batch."""
    calls = repetitions(tensor.numel() * 4)
    tensor.fill_(1.0)
    dist.barrier(group=group)
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)
    took = torch.tensor([(time.perf_counter() - start) / calls * 1e6])
    dist.all_reduce(took, op=dist.ReduceOp.MAX, group=group)
    tensor.fill_(0.0)
    return took.item()


def main() -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["LOCAL_RANK"])
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    dist.init_process_group("tutti")
    groups = {"tutti": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    if rank == 0:
        print(f"all_reduce through torch {torch.__version__}, {dist.get_world_size()} ranks, float32 sum")
        print("median us of the slowest rank")
        print(f"{'bytes':>10} {'tutti':>12} {'gloo':>12} {'gloo / tutti':>14}")
    for size in SIZES:
        tensor = torch.ones(size // 4)
        times: dict[str, list[float]] = {name: [] for name in groups}
        for turn in range(9 if size <= 1 << 20 else 6):
            for name, group in groups.items():
                took = sample(tensor, group)
                if turn:
                    times[name].append(took)
        median = {name: statistics.median(values) for name, values in times.items()}
        ours, theirs = median["tutti"], median["gloo"]
        if rank == 0:
            print(f"{size:>10} {ours:>12.1f} {theirs:>12.1f} {theirs / ours:>14.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

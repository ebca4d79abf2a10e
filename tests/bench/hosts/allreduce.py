"""Measures all-reduce over several hosts on one backend, under torchrun. Rank 0 prints JSON: by size, the median in
seconds on the slowest rank.

    torchrun … allreduce.py --backend tutti --sizes 8,65536 --calls 30
"""
import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist


def median_of(tensor, calls):
    times = []
    for turn in range(calls + 2):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        if turn > 1:
            times.append(time.perf_counter() - begin)
    slowest = torch.tensor(statistics.median(times), dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True)
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--calls", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    found = {}
    for size in map(int, options.sizes.split(",")):
        calls = options.calls if size <= 1 << 20 else max(5, options.calls // 4)
        found[size] = median_of(torch.zeros(size // 4), calls)
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

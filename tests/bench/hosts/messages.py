"""Runs one of two ranks, each on its own host. For each line of its standard input it measures, through torch, messages
and all-reduces of 8 bytes and of 64 MiB of shared tensors, and rank 0 prints JSON: by name, the median seconds of its
calls. beside_perftest.py starts both ranks once for all its turns, because importing torch may take longer than the
turns.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… python messages.py
"""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch_tutti

SMALL, LARGE, FLOAT_BYTES = 8, 64 << 20, 4
# Small messages are measured in batches, because reading a clock costs as much as one of them.
BATCHES, BATCH = 9, 50
# The calls with large ones.
CALLS = 3


def there_and_back(mine, other):
    if dist.get_rank() == 0:
        dist.send(mine, 1)
        dist.recv(other, 1)
    else:
        dist.recv(other, 0)
        dist.send(mine, 0)


def median_of(call, batches, batch):
    times = []
    for turn in range(batches + 1):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(batch):
            call()
        # The first batch warms up.
        if turn > 0:
            times.append((time.perf_counter() - begin) / batch)
    return statistics.median(times)


def measured():
    found = {}
    for size, batches, batch in ((SMALL, BATCHES, BATCH), (LARGE, CALLS, 1)):
        mine, other = (torch_tutti.empty(size // FLOAT_BYTES).zero_() for _ in range(2))
        found[f"message {size}"] = median_of(lambda: there_and_back(mine, other), batches, batch) / 2
        found[f"allreduce {size}"] = median_of(lambda: dist.all_reduce(mine), batches, batch)
    return found


def main():
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    for _ in sys.stdin:
        found = measured()
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

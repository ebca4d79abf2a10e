"""Trains as a program that requires NCCL by name, as many do. It uses CPU tensors, so it cannot run with torch alone.
With TUTTI_TAKE_OVER=nccl,gloo or under `tutti run` it runs unchanged.

    torchrun --nproc-per-node 2 nccl_by_name.py         or, starting its two ranks itself: nccl_by_name.py --spawn

--no-workers: the ranks read their data themselves, because spawned workers need seconds to load torch.
"""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def worker_ready(_):
    """Checks that NCCL is available in a worker of the DataLoader, which is a separate process."""
    assert dist.is_nccl_available()


def train():
    assert dist.is_nccl_available() and dist.is_backend_available("cpu:gloo,cuda:nccl")
    assert dist.get_backend() == dist.Backend.NCCL
    torch.manual_seed(0)
    inputs = torch.randn(64, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    workers = {} if "--no-workers" in sys.argv else {
        "num_workers": 1, "multiprocessing_context": "spawn", "worker_init_fn": worker_ready}
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False), **workers)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch, target in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), target)
        loss.backward()
        optimizer.step()
    return loss.detach()


def check_on_the_host():
    """Checks a second group, on gloo, which programs keep for objects and other data on the host."""
    host = dist.new_group(backend="gloo")
    assert dist.get_backend(host) == "gloo"
    ranks = [None] * dist.get_world_size(host)
    dist.all_gather_object(ranks, dist.get_rank(), group=host)
    assert ranks == list(range(len(ranks)))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("nccl")
    loss = train()
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    check_on_the_host()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.6f} on {dist.get_backend()}", flush=True)
    dist.destroy_process_group()


def spawned(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group("nccl", init_method=f"file://{path}", rank=rank, world_size=2)
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"rank {rank} has {total.item()} on {dist.get_backend()}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "--spawn" in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            spawn(spawned, (os.path.join(folder, "store"),), nprocs=2)
    else:
        main()

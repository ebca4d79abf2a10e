"""What a program hands back to the test that started it: a file for each rank."""
import os
import socket

import torch
import torch.distributed as dist


def groups_in_use():
    """What runs the operations of every group there is, by the name of its class: a name can be borrowed."""
    cpu = torch.device("cpu")
    return sorted({type(group._get_backend(cpu)).__name__ for group in dist.distributed_c10d._world.pg_map})


def save(folder, results):
    torch.save(results | {"host": socket.gethostname()}, os.path.join(folder, f"rank{dist.get_rank()}.pt"))

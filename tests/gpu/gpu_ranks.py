"""Starts ranks that see the GPUs of this process."""
import os

import device_checks
import torch
from ranks import Ranks, kept_ranks

VISIBLE = "CUDA_VISIBLE_DEVICES"


def environment(**more):
    """Returns the variables with which ranks see the GPUs that this process sees, and more variables."""
    count = torch.cuda.device_count()
    return {VISIBLE: os.environ.get(VISIBLE) or ",".join(map(str, range(count))), **more}


def start(size, folder, join=True, **more):
    ranks = Ranks(size, folder, join=False, environment=environment(**more))
    if join:
        ranks.run(device_checks.join, "cuda", limit_s=300)
    return ranks


def kept(folders, **more):
    """Returns a context manager of ranks that tests share. Their environment has more variables."""
    return kept_ranks(lambda size: start(size, folders.mktemp("cuda"), join=False, **more),
                      lambda ranks: ranks.run(device_checks.join, "cuda", limit_s=300))

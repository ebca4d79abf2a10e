"""Trains a small network with torchao's optimizers, whose states are quantized: `torchrun quantized_optimizers.py`.

Each optimizer runs under DistributedDataParallel on tutti and under each stage of torch_tutti.zero. Half-way zero's
optimizer continues with the state that it has saved. Prints for each stage the largest difference of a parameter,
divided by the largest change of a parameter.
"""
import io
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from stages import compare_stages
from training import flat

from torch_tutti import zero

# torchao has a folder of its own, because other frameworks import it if they find it.
sys.path.append(str(next(Path(sys.prefix).glob("torchao==*"))))
from torchao import optim

STEPS = 6
OPTIMIZERS = {"AdamW8bit": optim.AdamW8bit, "AdamW4bit": optim.AdamW4bit, "AdamWFp8": optim.AdamWFp8}


def network(name):
    """Only tensors of at least 4,096 elements have quantized states."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


def go_back(model, optimizer, step):
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(8, 64, generator=generator)).square().mean().backward()
    optimizer.step()


def save_and_load(optimizer):
    """Moves the state through a file, and returns the number of quantized tensors in it."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=False)
    optimizer.load_state_dict(state)
    values = [value for of_parameter in state["state"].values() for value in of_parameter.values()]
    return sum(isinstance(value, torch.Tensor) and type(value) is not torch.Tensor for value in values)


def train(name, options):
    """Returns the parameters after training with zero, or with DistributedDataParallel if there are no options."""
    model = network(name)
    optimizer = OPTIMIZERS[name](model.parameters(), lr=0.01)
    if not options:
        trained = DistributedDataParallel(model)
        for step in range(STEPS):
            go_back(trained, optimizer, step)
        return flat(model.parameters())
    trained, optimizer = zero.shard(model, optimizer, **options)
    for step in range(STEPS):
        go_back(trained, optimizer, step)
        if step == STEPS // 2:
            # both moments of both weights
            assert save_and_load(optimizer) == 4
    with optimizer.whole():
        return flat(p.detach().clone() for p in model.parameters())


compare_stages(OPTIMIZERS, network, train)

"""Small models and functions that train them, shared by the tests of the layers above a backend.

A batch depends on its step and rank alone, so that the same training on another backend must give the same parameters.
Two ranks must even give the same bits: with two terms a sum has one order only.
"""
import contextlib

import torch
import torch.distributed as dist

WIDTH = 20


def network(seed=7):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 50), torch.nn.ReLU(), torch.nn.Linear(50, 50), torch.nn.ReLU(),
                               torch.nn.Linear(50, 3))


def batch(step, rank, rows=8):
    generator = torch.Generator().manual_seed(1000 * step + rank + 1)
    return torch.randn(rows, WIDTH, generator=generator)


def loss_of(output):
    return output.float().square().mean()


def backward(model, step, rank, batches=1):
    """Computes the gradients of a step, from one batch or several, all but the last without communication."""
    for turn in range(batches):
        with model.no_sync() if turn + 1 < batches else contextlib.nullcontext():
            loss_of(model(batch(step + 100 * turn, rank))).backward()


def flat(tensors):
    """All of them as one vector of float64, which holds every value of the narrower types."""
    return torch.cat([tensor.detach().flatten().double() for tensor in tensors])


def train(model, optimizer, steps, rank):
    """Trains a model on the rank's batches, and returns its parameters as one vector."""
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model(batch(step, rank))).backward()
        optimizer.step()
    return flat(model.parameters())


def stochastic_descent(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def in_one_process(size, steps, model=None):
    """Returns the parameters that data parallelism must give: trains on the mean of the losses of all ranks, without
    communication."""
    model = model or network()
    optimizer = stochastic_descent(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        (sum(loss_of(model(batch(step, rank))) for rank in range(size)) / size).backward()
        optimizer.step()
    return flat(model.parameters())


def agree(world, mine, judge):
    """Asserts that training on tutti gave the judge's parameters; with two ranks, the same bits."""
    if world.size == 2:
        assert torch.equal(mine, judge), f"largest difference {(mine - judge).abs().max()}"
    torch.testing.assert_close(mine, judge)


def same_on_all_ranks(world, vector):
    everyone = [torch.empty_like(vector) for _ in range(world.size)]
    dist.all_gather(everyone, vector)
    for rank, other in enumerate(everyone):
        assert torch.equal(other, vector), f"rank {world.rank} differs from rank {rank}"

"""Tests that zero's steps in C have the bits of torch's optimizers, with and without fused=True, and gradients those of
autograd."""
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from zero_training import OPTIMIZERS, Images, Network, Words, ids_of, loss_of, train_beside

from torch_tutti import zero


def run_bits(world, make, name, options, rule):
    kind, settings = OPTIMIZERS[name]
    judge, model = make(), make()
    theirs = kind(judge.parameters(), **settings, **options)
    model, mine = zero.shard(model, kind(model.parameters(), **settings, **options), stage=2)
    assert mine._rule == rule
    train_beside(world, DistributedDataParallel(judge), theirs, model, mine)


def network():
    return Network(16)


@pytest.mark.parametrize("make, name, options, rule", [
    (Images, "adamw", {}, "adamw"), (Images, "adam", {"foreach": True}, "adam"),
    # torch's fused optimizers round the last few elements of odd tensors in another way
    (network, "adamw", {"fused": True}, "adamw"), (network, "adam", {"fused": True}, "adam"),
    (Images, "adam", {"amsgrad": True}, "none")])
def test_adam_has_torchs_bits(shared, make, name, options, rule):
    shared(2).run(run_bits, make, name, options, rule)


def run_large(world):
    """More elements than the square roots of one call, and two groups that differ in fused=."""
    model = network()
    many = [torch.nn.Linear(90, 91), torch.nn.Linear(90, 91)]
    many[1].load_state_dict(many[0].state_dict())
    theirs = torch.optim.AdamW(many[0].parameters(), lr=0.01)
    _, mine = zero.shard(many[1], torch.optim.AdamW(many[1].parameters(), lr=0.01), stage=0)
    x = torch.randn(3, 90, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        for layer, optimizer in zip(many, (theirs, mine)):
            optimizer.zero_grad()
            layer(x).square().sum().backward()
            optimizer.step()
    assert torch.equal(many[0].weight, many[1].weight)
    groups = [{"params": list(model.parameters())[:2], "fused": True}, {"params": list(model.parameters())[2:]}]
    _, mine = zero.shard(model, torch.optim.AdamW(groups))
    assert mine._rule == "none"


def test_large_tensors_and_other_groups(shared):
    shared(1).run(run_large)


def run_tied(world, dtype):
    """The gradients of a weight with three uses, in two lookups and a linear layer, are added in autograd's order."""
    judge, model = Words(), Words()
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=1), stage=2)
    for step in range(3):
        optimizer.zero_grad()
        judge.zero_grad()
        for each in (judge, model):
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = loss_of(each(ids_of(step, 0))) * 1024
            loss.backward()
        for (name, theirs), mine in zip(judge.named_parameters(), model.parameters()):
            assert torch.equal(optimizer.gradient(mine), theirs.grad), name


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_uses_of_tied_weights(shared, dtype):
    shared(1).run(run_tied, dtype)

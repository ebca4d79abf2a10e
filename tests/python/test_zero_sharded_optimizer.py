"""zero.sharded: an optimizer whose state is divided among the ranks, without a model. With the gradients of one process
the results are bit-identical to those of one process; with average=True they are those of
DistributedDataParallel."""
import copy
from datetime import timedelta

import pytest
import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from training import flat, same_on_all_ranks
from zero_training import STEPS, Network, Picky, agree, ids_of, loss_of, refused, values

from torch_tutti import zero


class Tied(nn.Module):
    """A shared weight, a frozen one, one that is never used, and a scalar."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.middle, self.last = nn.Linear(10, 50), nn.Linear(50, 10), nn.Linear(10, 50)
        self.last.weight = self.first.weight
        self.middle.bias.requires_grad = False
        self.unused, self.scale = nn.Parameter(torch.ones(7, 3)), nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.last(self.middle(self.first(x).relu()).relu()) * self.scale


class Matrices(nn.Module):
    """Muon takes only matrices."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.Sequential(*(nn.Linear(10, 10, bias=False) for _ in range(5)))

    def forward(self, x):
        return self.layers(x)


def same_states(mine, theirs):
    assert mine["param_groups"] == theirs["param_groups"] and mine["state"].keys() == theirs["state"].keys()
    for number, state in theirs["state"].items():
        assert mine["state"][number].keys() == state.keys()
        for name, value in state.items():
            assert torch.equal(torch.as_tensor(mine["state"][number][name]), torch.as_tensor(value)), (number, name)


def run_beside_one(world, make, kind, options, dtype):
    """Trains with equal gradients beside the undivided optimizer; the states then go over into each other."""
    model = make().to(dtype)
    judge = copy.deepcopy(model)
    if world.rank:                      # all ranks start with rank 0's values
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1)
    mine, theirs = zero.sharded(model.parameters(), kind, **options), kind(judge.parameters(), **options)
    assert isinstance(mine, kind) and torch.equal(values(model), values(judge))
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in (mine, theirs)]

    def train(steps, *pairs):
        for step in steps:
            x = torch.randn(32, 10, generator=torch.Generator().manual_seed(step)).to(dtype)
            for trained, optimizer in pairs:
                optimizer.zero_grad()
                loss_of(trained(x)).backward()
                optimizer.step()
    for step in range(4):
        train([step], (model, mine), (judge, theirs))
        for schedule in schedules:
            schedule.step()
    assert torch.equal(values(model), values(judge))
    same_on_all_ranks(world, values(model))
    whole = mine.state_dict()
    same_states(whole, theirs.state_dict())
    of_rank_0 = mine.full_state_dict()
    assert same_states(of_rank_0, whole) is None if world.rank == 0 else of_rank_0 == {}
    kept = sum(p.numel() for p in mine.state)
    everything = sum(p.numel() for p in theirs.state)
    assert kept < everything and (world.size > 2 or abs(kept - everything / 2) <= everything / 4), (kept, everything)
    # both go on from the state of the other
    again, torchs = zero.sharded(model.parameters(), kind, **options), kind(judge.parameters(), **options)
    again.load_state_dict(copy.deepcopy(theirs.state_dict()))
    torchs.load_state_dict(whole)
    assert sum(p.numel() for p in again.state) == kept
    train(range(4, 6), (model, again), (judge, torchs))
    assert torch.equal(values(model), values(judge))


@pytest.mark.parametrize("size, make, kind, options, dtype", [
    (2, Tied, torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}, torch.float32),
    (3, Tied, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, torch.float16),
    (2, Tied, torch.optim.Adagrad, {"lr": 0.1}, torch.float64),
    (2, Matrices, torch.optim.Muon, {"lr": 0.1}, torch.float32),
])
def test_steps_as_one_process(shared, size, make, kind, options, dtype):
    shared(size).run(run_beside_one, make, kind, options, dtype)


def run_average(world, make, dtype):
    """Gradients that the ranks average, clipped by torch, and a group that is added later."""
    judge = DistributedDataParallel(make().to(dtype), find_unused_parameters=True)
    model = make().to(dtype)
    groups = [list(m.parameters()) for m in (judge.module, model)]
    theirs = torch.optim.SGD(groups[0][:1], lr=0.05, momentum=0.9)
    mine = zero.sharded(groups[1][:1], torch.optim.SGD, average=True, lr=0.05, momentum=0.9)
    for optimizer, group in ((theirs, groups[0]), (mine, groups[1])):
        optimizer.add_param_group({"params": group[1:], "lr": 0.02})
    for step in range(STEPS):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            loss_of(trained(ids_of(step, world.rank))).backward()
            if step > 2 and optimizer is mine:
                mine.average_gradients()
            if step > 2:
                nn.utils.clip_grad_norm_(trained.parameters(), 0.01)
            optimizer.step()
        agree(world, values(model), values(judge.module))
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert missing == [name for name, p in judge.module.named_parameters() if p.grad is None]


def network():
    return Network(16)


@pytest.mark.parametrize("size, make, dtype", [(2, network, torch.float32), (3, Picky, torch.float32),
                                               (2, network, torch.float16)])
def test_averages_as_ddp(shared, size, make, dtype):
    shared(size).run(run_average, make, dtype)


class NormOfAll(torch.optim.SGD):
    """Divides each gradient by the norm of all gradients, as timm's Lamb does."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)


def run_refusals(world):
    parameters = list(Tied().parameters())
    refused(NotImplementedError, "LBFGS fails to step small tensors without a closure",
            lambda: zero.sharded(parameters, torch.optim.LBFGS))
    refused(NotImplementedError, "a step of NormOfAll changes a parameter in a way that depends on the other",
            lambda: zero.sharded(parameters, NormOfAll, lr=0.1))
    refused(TypeError, "it must be a class of optimizers",
            lambda: zero.sharded(parameters, torch.optim.SGD(parameters)))
    refused(ValueError, r"rank 0 has parameter 2 of torch.float32 \(50, 10\), rank 1 has no more",
            lambda: zero.sharded(parameters[:8 - 6 * world.rank], torch.optim.SGD))
    refused(ValueError, "on the meta device; give it memory",
            lambda: zero.sharded(nn.Linear(2, 2, device="meta").parameters(), torch.optim.SGD))
    optimizer = zero.sharded(parameters, torch.optim.SGD, lr=0.1)
    refused(ValueError, "already divides its state", lambda: zero.shard(Tied(), optimizer))
    optimizer.arrival_timeout = timedelta(seconds=1)
    if world.rank == 0:
        refused(RuntimeError, r"optimizer.state_dict\(\) is for all ranks, but after 1 s", optimizer.state_dict)
    same_on_all_ranks(world, flat(parameters))


def test_refusals(shared):
    shared(2).run(run_refusals)

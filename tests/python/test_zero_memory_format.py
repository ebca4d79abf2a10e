"""Tests that parameters keep their memory format, such as channels_last, in zero, and that checkpoints do not depend on
it."""
import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from zero_training import Images, agree, equal, go_back, refused, train_beside, values

from torch_tutti import zero


class Pictures(nn.Module):
    """Convolutions in channels_last or not, and a linear layer whose weight is transposed in memory."""

    def __init__(self, memory_format):
        super().__init__()
        self.layers = Images().layers.to(memory_format=memory_format)
        last = self.layers[-1]
        if memory_format == torch.channels_last:
            last.weight.data = last.weight.data.t().contiguous().t()

    def forward(self, ids):
        return self.layers(ids.float().view(-1, 1, 8, 8) / 48)


def formats(model):
    return [p.stride() for p in model.parameters()]


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def run_formats(world, folder, options):
    judge, model = Pictures(torch.channels_last), Pictures(torch.channels_last)
    before = formats(model)
    assert before != formats(Pictures(torch.contiguous_format))
    theirs = momentum(judge)
    model, mine = zero.shard(model, momentum(model), **options)
    assert formats(model) == before
    judge = DistributedDataParallel(judge)

    def read(model, optimizer):
        with optimizer.whole():
            return values(model)
    train_beside(world, judge, theirs, model, mine, read=read)
    for (_, state), parameter in zip(sorted(mine.state_dict()["state"].items()), judge.parameters()):
        equal(world, state["momentum_buffer"], theirs.state[parameter]["momentum_buffer"])
    dcp.save({"training": mine.sharded_state()}, checkpoint_id=folder)
    other = Pictures(torch.contiguous_format)
    other, later = zero.shard(other, momentum(other), stage=3)
    dcp.load({"training": later.sharded_state()}, checkpoint_id=folder)
    equal(world, values(other), values(judge.module))
    theirs.load_state_dict(later.state_dict())
    mine.load_state_dict(theirs.state_dict())
    for trained, optimizer in ((judge, theirs), (model, mine)):
        optimizer.zero_grad()
        go_back(trained, optimizer, 9, world.rank)
        optimizer.step()
    agree(world, read(model, mine), values(judge.module))


@pytest.mark.parametrize("options", [{"stage": 0}, {"stage": 3}, {"stage": 3, "hosts": "sharded"}])
def test_formats_are_kept(shared, tmp_path, options):
    shared(2).run(run_formats, str(tmp_path), options)


def run_other_layouts(world):
    """Elements would be exchanged in other orders. The model stays as it is, so it can be sharded in one format."""
    model = Pictures(torch.channels_last if world.rank == 0 else torch.contiguous_format)
    before = values(model)
    refused(ValueError, r"parameter layers.2.weight has the shape \(11, 6, 3, 3\) and its dimensions in the order "
            r"\[0, 2, 3, 1\] in memory on rank 0, but \(11, 6, 3, 3\) and \[0, 1, 2, 3\] on rank 1; give all ranks the "
            "same model in the same memory format", lambda: zero.shard(model, momentum(model), stage=2))
    assert torch.equal(values(model), before)
    linear = nn.Linear(4 + 2 * world.rank, 6 - 2 * world.rank, bias=False)
    refused(ValueError, r"weight has the shape \(6, 4\) .* on rank 0, but \(4, 6\) and \[0, 1\] on rank 1",
            lambda: zero.shard(linear, stage=3))
    model.layers.to(memory_format=torch.contiguous_format)
    model.layers[-1].weight.data = model.layers[-1].weight.data.contiguous()
    zero.shard(model, momentum(model), stage=2)
    equal(world, values(model), before)


def test_ranks_with_other_layouts(shared):
    shared(2).run(run_other_layouts)

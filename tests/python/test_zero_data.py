"""Changes of parameters through `.data`: they have the same result as in DistributedDataParallel, or an error names the
parameter and the remedy."""
import copy
import io

import pytest
import torch
import torch.nn as nn
from training import same_on_all_ranks
from zero_training import Network, agree, go_back, ids_of, loss_of, pair, refused, values

from torch_tutti import zero

SHARED = {"shared": {}, "sharded": {"hosts": "sharded"}, "bf16": {"stage": 1, "precision": "bf16"},
          "bf16, stage 0": {"stage": 0, "precision": "bf16"}}
CHANGES = {
    "mul_": lambda p: p.data.mul_(0.9), "clamp_": lambda p: p.data.clamp_(-0.01, 0.01),
    "copy_": lambda p: p.data.copy_(torch.zeros_like(p)), "a part": lambda p: p.data[:1].add_(1),
    "an index": lambda p: p.data.__setitem__(0, 0), "foreach": lambda p: torch._foreach_mul_([p.data], 0.9),
    "out": lambda p: torch.neg(p.detach(), out=p.data), "detach": lambda p: p.detach().mul_(0.9),
    "init": lambda p: nn.init.constant_(p.data, 0),
}


def run_found(world, options):
    """The next step finds each change. After an edit the training goes on."""
    model = Network(16)
    model, optimizer = zero.shard(model, torch.optim.AdamW(model.parameters()), **options)
    for name, change in CHANGES.items():
        go_back(model, optimizer, 0, world.rank)
        change(model.blocks[1].inner[1].weight)
        refused(RuntimeError, r"parameter blocks.1.inner.1.weight was changed in place.*`with optimizer.edit\(\):`",
                optimizer.step)
        optimizer.zero_grad()
        with optimizer.edit():
            if world.rank == 0:
                CHANGES["mul_"](model.blocks[1].inner[1].weight)
        go_back(model, optimizer, 1, world.rank)
        optimizer.step()
        with optimizer.whole():
            same_on_all_ranks(world, values(model))


@pytest.mark.parametrize("options", SHARED.values(), ids=SHARED)
def test_a_change_through_data(shared, options):
    shared(2).run(run_found, options)


def run_as_ddp(world, stage):
    """All ranks may change float32 parameters through `.data` where each has its own copy, as weights of a critic are
    clamped."""
    judge, theirs, model, mine = pair(lambda: Network(16), "adamw", stage)
    for step in range(4):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(trained, optimizer, step, world.rank)
            optimizer.step()
            for p in trained.parameters():
                p.data.mul_(0.9).clamp_(-0.1, 0.1)
        agree(world, values(model), values(judge.module))


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_clamps_as_ddp(shared, stage):
    shared(2).run(run_as_ddp, stage)


def run_frozen(world, has_optimizer, options):
    """An edit of parameters that are not trained reaches all ranks (random program 15)."""
    model = Network(16)
    model.scale.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    if has_optimizer:
        model, optimizer = zero.shard(model, torch.optim.SGD(trained, lr=0.1), **options)
    else:
        model = zero.shard(model, **options)
    with optimizer.edit() if has_optimizer else zero.edit(model), torch.no_grad():
        if world.rank == 0:
            model.scale.mul_(3)
    assert (model.scale == 3).all()


@pytest.mark.parametrize("has_optimizer, options", [(True, {"stage": 2}), (True, {"hosts": "sharded"}),
                                                    (False, {"stage": 0}), (False, {"stage": 1})])
def test_an_edit_of_a_frozen_parameter(shared, has_optimizer, options):
    shared(2).run(run_frozen, has_optimizer, options)


def run_reads(world):
    """Reading through `.data`, copies of a model, and other models work as before."""
    model = Network(16)
    model, optimizer = zero.shard(model, torch.optim.AdamW(model.parameters()))
    p, other = model.scale, nn.Parameter(torch.ones(3))
    assert p.data.data_ptr() == p.data_ptr() and not p.data.requires_grad and type(p.data) is torch.Tensor
    assert p.data.grad_fn is None and torch.equal(p.data, p) and p.data.is_leaf
    version = other._version
    other.data.mul_(2)
    other.data = other.data * 2
    assert other._version == version and (other == 4).all()
    copied = copy.deepcopy(model)
    torch.save(model, file := io.BytesIO())
    for of in (copied, torch.load(io.BytesIO(file.getvalue()), weights_only=False)):
        torch.testing.assert_close(values(of), values(model))
        version = of.scale._version
        of.scale.data.mul_(2)
        assert of.scale._version == version
    loss_of(model(ids_of(0, world.rank))).backward()
    optimizer.step()
    model.scale.data = torch.ones(16)
    refused(RuntimeError, "scale is not in the memory where zero.shard put it", optimizer.step)


def test_reading_through_data(shared):
    shared(2).run(run_reads)

"""A model with several optimizers trains as with torch's in DistributedDataParallel."""
import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from training import same_on_all_ranks
from zero_training import Network, go_back, ids_of, loss_of, refused, values

from torch_tutti import zero


def network():
    return Network(16)


def make_optimizers(model):
    """Momentum for matrices, AdamW for all else."""
    matrices, others = ([p for p in model.parameters() if (p.dim() == 2) is flat] for flat in (True, False))
    return [torch.optim.SGD(matrices, lr=0.05, momentum=0.9), torch.optim.AdamW(others, lr=0.01, fused=True)]


def clip(model, optimizers, step):
    if step % 2:
        return clip_grad_norm_(model.parameters(), 0.05)
    if isinstance(model, DistributedDataParallel):
        return clip_grad_norm_(model.parameters(), 0.05, float("inf"))
    return zero.clip_grad_norm_(optimizers, 0.05, float("inf"))


def run_two(world, options):
    judge, model = DistributedDataParallel(network()), network()
    theirs = make_optimizers(judge)
    model, mine = zero.shard_several(model, make_optimizers(model), **options)
    for step in range(4):
        norms = []
        for each, optimizers in ((judge, theirs), (model, mine)):
            each.zero_grad()
            go_back(each, optimizers[0], step, world.rank)
            norms.append(clip(each, optimizers, step))
            for optimizer in optimizers:
                optimizer.step()
        torch.testing.assert_close(norms[1], norms[0], rtol=1e-4, atol=1e-6)
        for optimizer in mine:
            optimizer.wait()
        torch.testing.assert_close(values(model), values(judge.module), rtol=1e-5, atol=1e-6)
    same_on_all_ranks(world, values(model))
    for optimizer, other in zip(mine, theirs):
        state, expected = optimizer.state_dict()["state"], other.state_dict()["state"]
        assert state.keys() == expected.keys()
        torch.testing.assert_close(state, expected, rtol=1e-4, atol=1e-6)
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    model.zero_grad()
    go_back(model, mine[0], 5, world.rank)
    for optimizer in mine:
        optimizer.step()
    model.load_state_dict(saved)
    torch.testing.assert_close(values(model), values(judge.module), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"stage": 0, "ahead": True}, {"stage": 2}, {"stage": 3}])
def test_two_optimizers(shared, options):
    shared(2).run(run_two, options)


def run_undone(world, options):
    """If the second optimizer is refused, the first one has not changed the model, and the right ones then can."""
    model = network()
    first, second = make_optimizers(model)
    memory, before = {p: p.data_ptr() for p in model.parameters()}, values(model)
    calls = [lambda: refused(NotImplementedError, "LBFGS computes the loss several times", lambda: zero.shard_several(
                 model, [first, torch.optim.LBFGS(second.param_groups[0]["params"])], **options)),
             lambda: refused(ValueError, "is not in the optimizer; pass it all", lambda: zero.shard_several(
                 model, [first, torch.optim.SGD([model.scale])], **options))]
    for call in calls:
        call()
        assert {p: p.data_ptr() for p in model.parameters()} == memory and torch.equal(values(model), before)
        loss_of(model(ids_of(0, world.rank))).backward()
        assert all(type(p.grad) is torch.Tensor for p in model.parameters())
        model.zero_grad()
    model, mine = zero.shard_several(model, [first, second], **options)
    go_back(model, mine[0], 0, world.rank)
    for optimizer in mine:
        optimizer.step()
    same_on_all_ranks(world, values(model))


@pytest.mark.parametrize("options", [{"stage": 3, "precision": "bf16"}, {"stage": 0}])
def test_a_second_optimizer_that_is_refused(shared, options):
    shared(2).run(run_undone, options)


def run_exchanges(world):
    """torch's clip exchanges objects once at most, and only if the model has parameters that are no replicas."""
    original, calls = dist.all_gather_object, []

    def count(*arguments):
        calls.append(arguments)
        return original(*arguments)
    for ignored, expected in ((False, 0), (True, 1)):
        model = network()
        model.own = nn.Linear(2, 2)
        optimizers = make_optimizers(model.requires_grad_())
        left_out = [model.own] if ignored else []
        model, mine = zero.shard_several(model, optimizers, stage=2, ignored=left_out)
        go_back(model, mine[0], 0, world.rank)
        shown = [p for p in model.parameters() if p.grad is not None]
        dist.all_gather_object = count
        try:
            for limit in (0.05, 0.01):
                calls.clear()
                clip_grad_norm_(shown, limit)
                assert len(calls) == expected, len(calls)
        finally:
            dist.all_gather_object = original
        for optimizer in mine:
            optimizer.step()
        same_on_all_ranks(world, values(model))


def test_a_clip_exchanges_objects_once(shared):
    shared(2).run(run_exchanges)


def run_refusals(world):
    model = network()
    first, second = make_optimizers(model)
    refused(NotImplementedError, "cannot be sharded or on the meta device if a model has several optimizers",
            lambda: zero.shard_several(model, [first, second], hosts="sharded"))
    refused(ValueError, "parameter blocks.0.inner.1.weight is in several optimizers",
            lambda: zero.shard_several(model, [first, torch.optim.SGD([model.blocks[0].inner[1].weight])]))
    refused(ValueError, "is not in the optimizer; pass it all", lambda: zero.shard_several(model, [second]))
    refused(ValueError, "a list is not an optimizer; for several optimizers use zero.shard_several",
            lambda: zero.wrap_ddp(DistributedDataParallel(nn.Linear(3, 3)), [first]))
    model, (first, second) = zero.shard_several(model, [first, second], stage=1)
    for call in (first.unshard, second.divide_again):
        refused(NotImplementedError, "of a model with several optimizers; save model.state_dict", call)


def test_what_is_refused(shared):
    shared(2).run(run_refusals)

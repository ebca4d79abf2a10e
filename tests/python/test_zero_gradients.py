"""Tests that gradients which a program reads are those of DistributedDataParallel, that gradients of several models are
clipped together, and that a step which would use the gradients of an earlier one is an error."""
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from zero_training import Network, Picky, go_back, pair, refused, trained, values

from torch_tutti import zero


def network():
    return Network(16)


def equal_gradients(model, optimizer, judge):
    for parameter, other in zip(model.parameters(), judge.parameters()):
        found = optimizer.gradient(parameter)
        if other.grad is None:
            assert found is None
        else:
            torch.testing.assert_close(found, other.grad, rtol=1e-5, atol=1e-7)


def run_gradients(world, make, options):
    """Whole gradients and their norms, before and after they are clipped."""
    ddp = {"find_unused_parameters": make is Picky}
    judge, theirs, model, mine = pair(make, "momentum", ddp=ddp, **options)
    for step in range(2):
        for each, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(each, optimizer, step, world.rank)
        equal_gradients(model, mine, judge.module)
        norm = mine.clip_grad_norm_(0.01)
        torch.testing.assert_close(norm, clip_grad_norm_(judge.parameters(), 0.01), rtol=1e-4, atol=0)
        equal_gradients(model, mine, judge.module)
        norms = mine.gradient_norms(1)
        assert norms.keys() == {name for name, _ in model.named_parameters()}
        for name, parameter in judge.module.named_parameters():
            expected = torch.tensor(0.0) if parameter.grad is None else parameter.grad.norm(1)
            torch.testing.assert_close(norms[name], expected, rtol=1e-4, atol=1e-6)
        for optimizer in (theirs, mine):
            optimizer.step()
    with mine.whole():
        torch.testing.assert_close(values(model), values(judge.module), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size, make, options", [
    (3, Picky, {"stage": 0}), (3, Picky, {"stage": 2}), (2, network, {"stage": 1, "ahead": True}),
    (2, network, {"stage": 3, "hosts": "sharded"})])
def test_gradients_are_those_of_ddp(shared, size, make, options):
    shared(size).run(run_gradients, make, options)


def run_lone(world):
    """Ranks that ask for different gradients, or for one alone, get an error; so does a tensor that is no parameter."""
    model, optimizer = trained(world, "adamw", 2)
    refused(ValueError, "a tensor that is no trained parameter", lambda: optimizer.gradient(torch.ones(3)))
    go_back(model, optimizer, 0, world.rank)
    optimizer.arrival_timeout = timedelta(milliseconds=300)
    if world.rank == 0:
        refused(RuntimeError, "optimizer.gradient.. of scale is for all ranks, but after 0.3 s rank 0 had called "
                              "optimizer.gradient.. of scale, rank 1 had called no such function",
                lambda: optimizer.gradient(model.scale))
    optimizer.step()


def test_a_gradient_for_one_rank(fresh):
    fresh(2, timeout_s=20).run(run_lone)


# ---- clipping of several models ----
def run_together(world, kind):
    """All ranks train one part of a model; two halves of the ranks train an expert each. The norm is that of all."""
    half = [dist.new_group([0, 1]), dist.new_group([2, 3])][world.rank // 2]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])][world.rank % 2]

    def make_expert():
        expert = network()
        with torch.no_grad():
            expert.scale.mul_(1 + world.rank // 2)
        return expert
    judge, judge_expert = DistributedDataParallel(network()), DistributedDataParallel(make_expert(), process_group=half)
    dense, expert = network(), make_expert()
    dense, mine = zero.shard(dense, torch.optim.SGD(dense.parameters(), lr=0.1), stage=2)
    expert, mine_expert = zero.shard(expert, torch.optim.SGD(expert.parameters(), lr=0.1), stage=3, group=half)
    for model in (judge, judge_expert):
        go_back(model, model, 1, world.rank)
    for model, optimizer in ((dense, mine), (expert, mine_expert)):
        go_back(model, optimizer, 1, world.rank)
    parts = torch.cat([p.grad.flatten() for p in judge_expert.parameters()])
    both = [torch.empty_like(parts) for _ in range(2)]
    dist.all_gather(both, parts, across)
    expected = torch.cat([*both, *(p.grad.flatten() for p in judge.parameters())]).norm(kind)
    found = zero.clip_grad_norm_([mine, mine_expert], 0.01, kind, part_groups=[None, across])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)
    factor = 0.01 / (found + 1e-6)
    for model, optimizer, other in ((dense, mine, judge), (expert, mine_expert, judge_expert)):
        for parameter, theirs in zip(model.parameters(), other.parameters()):
            torch.testing.assert_close(optimizer.gradient(parameter), theirs.grad * factor, rtol=1e-4, atol=1e-7)
        optimizer.step()
    refused(ValueError, "1 optimizers and 2 part_groups",
            lambda: zero.clip_grad_norm_([mine], 1, part_groups=[None] * 2))


@pytest.mark.parametrize("kind", [2.0, float("inf")])
def test_clips_models_of_several_groups_together(shared, kind):
    shared(4).run(run_together, kind)


# ---- steps without zero_grad ----
def step_again(model, optimizer, world):
    go_back(model, optimizer, 1, world.rank)
    optimizer.step()


def run_without_zero_grad(world, name, options):
    """A second step is an error on all ranks. A program that never calls zero_grad is warned once; one that forgets it
    between two steps gets an error, and goes on when it has called it."""
    model, optimizer = trained(world, name, **options)          # without zero_grad
    refused(RuntimeError, "follows a step, and no rank has made gradients or called zero_grad.. since; take one step",
            optimizer.step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step_again(model, optimizer, world)
    if world.rank == 0:                                         # the other ranks step without a batch
        go_back(model, optimizer, 1, world.rank)
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()                                            # nothing happens, as in torch
    step_again(model, optimizer, world)
    go_back(model, optimizer, 2, world.rank)
    refused(RuntimeError, "gradients were made after a step without zero_grad.. between; call optimizer.zero_grad",
            optimizer.step)
    model.zero_grad()
    step_again(model, optimizer, world)


@pytest.mark.parametrize("name, options", [("adamw", {"stage": 3}), ("none", {"stage": 0})])
def test_steps_without_zero_grad(shared, name, options):
    shared(2).run(run_without_zero_grad, name, options)


def run_warned(world):
    model = network()
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), stage=1, ahead=True)
    step_again(model, optimizer, world)
    with pytest.warns(UserWarning, match="takes steps and never calls zero_grad... To silence this, call optimizer"):
        step_again(model, optimizer, world)
    refused(RuntimeError, "follows a step", optimizer.step)


def test_a_program_without_zero_grad_is_warned(shared):
    shared(2).run(run_warned)

"""torch's functions that clip gradients, imported as programs import them, do with zero what they do with
DistributedDataParallel: at each stage, for each kind of norm, for a part of the parameters."""
import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from training import same_on_all_ranks
from zero_training import STEPS, Network, Picky, go_back, pair, refused, values

from torch_tutti import zero

STAGES = [{"stage": 0}, {"stage": 1}, {"stage": 2}, {"stage": 3}, {"stage": 3, "hosts": "sharded"}]
BOUND = 0.01                            # below the norms of all steps


def whole_values(model, optimizer):
    with optimizer.whole():
        return values(model)


# ---- clippers: each clips the gradients of a model, and returns norms ----
def by_norm(model, optimizer, kind=2.0, **options):
    return clip_grad_norm_(model.parameters(), BOUND, norm_type=kind, **options)


def by_largest(model, optimizer):
    return by_norm(model, optimizer, float("inf"))


def by_other_norms(model, optimizer):
    return torch.stack([by_norm(model, optimizer, kind) for kind in ("inf", 1, 3.5, 2, float("-inf"), 0)])


def by_lists(model, optimizer):
    clip_grad_value_(model.parameters(), 0.02, foreach=True)
    return by_norm(model, optimizer, foreach=True)


def by_total_norm(model, optimizer):
    total = get_total_norm([p.grad for p in model.parameters() if p.grad is not None], error_if_nonfinite=True)
    clip_grads_with_norm_(model.parameters(), BOUND, total)
    return total


def by_value(model, optimizer):
    clip_grad_value_(model.parameters(), 1e-3)
    return get_total_norm([p.grad for p in model.parameters() if p.grad is not None])


def by_module(model, optimizer):
    return torch.stack([clip_grad_norm_(module.parameters(), BOUND / 4) for module in model.modules()
                        if isinstance(module, nn.Linear)])


def by_parameter(model, optimizer):
    """Looks at the gradient of each parameter, and scales each by a factor of its own."""
    norms = []
    for parameter in model.parameters():
        if parameter.grad is not None and (norm := parameter.grad.data.norm(2)) > 0:
            parameter.grad.mul_(BOUND / norm)
            norms.append(norm)
    return torch.stack(norms)


def by_both(model, optimizer):
    """zero's own clipping, then torch's, then zero's."""
    own = optimizer.clip_grad_norm_ if isinstance(optimizer, zero.ZeroOptimizer) else (
        lambda *arguments: clip_grad_norm_(model.parameters(), *arguments))
    return torch.stack([own(0.1), by_norm(model, optimizer, 1), own(BOUND / 2), own(BOUND / 4, "inf"),
                        by_value(model, optimizer)])


def network():
    return Network(16)


def run_clipped(world, clip, make, name, turns, options):
    ddp = {"find_unused_parameters": make is Picky}
    judge, theirs, model, mine = pair(make, name, ddp=ddp, **options)
    for step in range(STEPS):
        found = []
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(trained, optimizer, step, world.rank, turns)
            found.append(clip(trained, optimizer))
            optimizer.step()
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(whole_values(model, mine), values(judge.module), rtol=1e-4, atol=1e-5)
        same_on_all_ranks(world, whole_values(model, mine))
        assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("clip", [by_norm, by_largest, by_other_norms, by_lists, by_total_norm, by_value, by_module,
                                  by_parameter, by_both])
@pytest.mark.parametrize("options", STAGES)
def test_clips_as_ddp(shared, clip, options):
    shared(2).run(run_clipped, clip, network, "sgd", 1, options)


CASES = [(1, by_norm, network, "adamw", 1), (1, by_value, network, "none", 1), (3, by_norm, network, "momentum", 1),
         (3, by_total_norm, network, "none", 2), (3, by_value, Picky, "momentum", 1), (2, by_norm, Picky, "sgd", 1),
         (4, by_largest, Picky, "none", 1), (3, by_both, network, "sgd", 2)]
SHARDED = [case for case in CASES if case[2] is network]            # ranks of a Picky use different units


@pytest.mark.parametrize("size, clip, make, name, turns, options", [
    *((*case, {"stage": stage}) for case in CASES for stage in (0, 2)),
    *((*case, {"stage": 3, "hosts": "sharded"}) for case in SHARDED),
])
def test_clips_other_models(shared, size, clip, make, name, turns, options):
    shared(size).run(run_clipped, clip, make, name, turns, options)


def run_ahead(world):
    """A step that is clipped by torch's function returns early, like others."""
    judge, theirs, model, mine = pair(network, "adamw", 1, ahead=True)
    for step in range(STEPS):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(trained, optimizer, step, world.rank)
            by_norm(trained, optimizer)
            optimizer.step()
    mine.wait()
    torch.testing.assert_close(values(model), values(judge.module), rtol=1e-4, atol=1e-5)


def test_clips_before_an_async_step(shared):
    shared(2).run(run_ahead)


def run_step_hook(world):
    """A hook of steps that clips, as trainers have."""
    judge, theirs, model, mine = pair(network, "adamw", 3)
    for module, optimizer in ((judge, theirs), (model, mine)):
        optimizer.register_step_pre_hook(lambda *_, module=module: by_value(module, None) and None)
    for step in range(STEPS):
        for module, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(module, optimizer, step, world.rank)
            optimizer.step()
        torch.testing.assert_close(values(model), values(judge.module), rtol=1e-4, atol=1e-5)


def test_clips_in_a_hook_of_steps(shared):
    shared(2).run(run_step_hook)


def run_bfloat16(world, options):
    """A bfloat16 gradient has bfloat16 norms, and is scaled in bfloat16."""
    model = network().bfloat16()
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    go_back(model, optimizer, 0, world.rank)
    before = by_norm(model, optimizer)
    after = get_total_norm([parameter.grad for parameter in model.parameters()])
    assert before.dtype == after.dtype == torch.bfloat16
    torch.testing.assert_close(after, torch.tensor(BOUND, dtype=torch.bfloat16), rtol=0.02, atol=0)
    optimizer.step()
    same_on_all_ranks(world, whole_values(model, optimizer))


@pytest.mark.parametrize("options", STAGES)
def test_bfloat16(shared, options):
    shared(2).run(run_bfloat16, options)


# ---- what a gradient in parts cannot do ----
def run_refusals(world):
    """Operations that need whole gradients are errors that say what works instead; so are later backward passes."""
    model = network()
    given = torch.optim.AdamW(model.parameters())
    model, optimizer = zero.shard(model, given)
    weight = model.blocks[0].inner[1].weight
    assert weight.grad is None
    go_back(model, optimizer, 0, world.rank)
    assert weight.grad.shape == weight.shape and weight.grad.dtype == weight.dtype
    assert repr(weight.grad) == "DividedGradient((32, 16), torch.float32)"
    text = "of a gradient that is divided among the ranks. Only norms of whole gradients, and mul_, .* work on it; a"
    for operation in (lambda: weight.grad.clone(), lambda: weight.grad + 1, lambda: weight.grad.isfinite(),
                      lambda: weight.grad.norm(dim=0), lambda: weight.grad.mul_(torch.ones(16)), given.step,
                      lambda: torch.ones(32, 16).mul_(weight.grad), lambda: weight.grad.mul_(weight.grad)):
        refused(RuntimeError, text, operation)
    by_norm(model, optimizer)
    refused(Exception, "gradients of this step have been averaged: take the step first",
            lambda: go_back(model, optimizer, 1, world.rank))
    dist.barrier()


def test_what_is_refused(fresh):
    fresh(2).run(run_refusals)


def run_dropped(world):
    """zero_grad of model or optimizer drops clipped gradients, and `grad` is None again; get_state_dict does not."""
    model = network()
    model, optimizer = zero.shard(model, torch.optim.AdamW(model.parameters()), stage=2)
    before = values(model)
    for drop in (model.zero_grad, optimizer.zero_grad, lambda: model.zero_grad(set_to_none=False)):
        go_back(model, optimizer, 0, world.rank)
        by_value(model, optimizer)
        drop()
        assert all(parameter.grad is None for parameter in model.parameters())
        optimizer.step()
        assert torch.equal(values(model), before)
    go_back(model, optimizer, 0, world.rank)
    by_value(model, optimizer)
    get_state_dict(model, optimizer)
    optimizer.step()
    assert not torch.equal(values(model), before)


def test_dropped_gradients(shared):
    shared(2).run(run_dropped)


def run_alone(world, options):
    """A rank that asks for the norm of a gradient alone waits no longer than the group's timeout, and neither do the
    others."""
    model = network()
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    with pytest.raises(Exception) as raised:
        for step in range(3):
            go_back(model, optimizer, step, world.rank)
            if world.rank == 0 and step:
                model.scale.grad.norm()
            optimizer.step()
    return type(raised.value).__name__, str(raised.value)


@pytest.mark.parametrize("options", [{"stage": 2}, {"stage": 3, "hosts": "sharded"}])
def test_a_norm_on_one_rank(fresh, options):
    (name, text), (other_name, _) = fresh(2, timeout_s=1).run(run_alone, options)
    assert name == other_name == "TimeoutError"
    assert "zero: norms of gradients are for all ranks of the group: " in text and "not been made by rank 1" in text


def test_a_norm_on_one_rank_of_stage_0(fresh):
    for name, text in fresh(2).run(run_alone, {"stage": 0}):
        assert name == "MismatchError" and "ranks disagree about operation" in text

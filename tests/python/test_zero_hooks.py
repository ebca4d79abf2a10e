"""Hooks that a program registers on parameters and optimizers: with zero they do what they do with
DistributedDataParallel."""
import contextlib

import pytest
import torch
from torch.autograd.graph import save_on_cpu
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from zero_training import OPTIMIZERS, STEPS, Network, agree, go_back, pair, train_beside, values

from torch_tutti import zero

STAGES = [{"stage": 0}, {"stage": 2}, {"stage": 3}, {"stage": 3, "hosts": "sharded"}]


def whole_values(model, optimizer):
    with optimizer.whole():
        return values(model)


def hooked_weights(model):
    """Returns a weight of a Linear, an embedding that is also the head's weight, and a vector."""
    return model.blocks[1].inner[1].weight, model.embed.weight, model.scale


# ---- hooks of gradients ----
def expect_same_gradients(expected, found):
    """Both are the gradients that hooks of the three hooked weights have seen in all steps."""
    assert len(found) == len(expected) == 3 * STEPS
    for gradient, judged in zip(found, expected):
        torch.testing.assert_close(gradient, judged)


def run_tensor_hooks(world, checkpointed, context, options):
    """A hook on a weight sees the gradient and may replace it, also where autograd keeps another tensor for the
    weight."""
    judge, theirs, model, mine = pair(lambda: Network(16, checkpointed=checkpointed), "sgd", **options)
    seen = {judge: [], model: []}
    for module, found in seen.items():
        for weight in hooked_weights(getattr(module, "module", module)):
            weight.register_hook(lambda gradient, found=found: found.append(gradient.clone()) or gradient * 0.5)
    train_beside(world, judge, theirs, model, mine, context, whole_values)
    expect_same_gradients(seen[judge], seen[model])


@pytest.mark.parametrize("checkpointed, context", [(False, contextlib.nullcontext), (True, contextlib.nullcontext),
                                                   (False, save_on_cpu)])
@pytest.mark.parametrize("options", STAGES)
def test_hooks_of_tensors(shared, checkpointed, context, options):
    shared(2).run(run_tensor_hooks, checkpointed, context, options)


def halves(parameter, found):
    """A hook that records a gradient and halves it in place."""
    found.append(parameter.grad.clone())
    parameter.grad.mul_(0.5)


def run_accumulate_hooks(world, before, options):
    """A hook that is called after a gradient is accumulated finds it in `grad`, and may change it, whether it was
    registered before the model was sharded or afterwards."""
    kind, settings = OPTIMIZERS["sgd"]
    judge, model, seen = DistributedDataParallel(Network(16)), Network(16), {}
    theirs = kind(judge.parameters(), **settings)

    def register(module):
        found = seen[module] = []
        for weight in hooked_weights(getattr(module, "module", module)):
            weight.register_post_accumulate_grad_hook(lambda parameter: halves(parameter, found))
    register(judge)
    if before:
        register(model)
    model, mine = zero.shard(model, kind(model.parameters(), **settings), **options)
    if not before:
        register(model)
    train_beside(world, judge, theirs, model, mine, read=whole_values)
    expect_same_gradients(seen[judge], seen[model])


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("options", STAGES)
def test_hooks_after_accumulation(shared, before, options):
    shared(2).run(run_accumulate_hooks, before, options)


def run_dropping_hook(world):
    """A hook that sets `grad` to None drops the gradient, so the parameter keeps its values."""
    model = Network(16)
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), stage=2)
    weight = model.blocks[0].inner[1].weight
    handle = weight.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    before = weight.detach().clone()
    go_back(model, optimizer, 0, world.rank)
    optimizer.step()
    assert torch.equal(weight, before)
    handle.remove()
    go_back(model, optimizer, 1, world.rank)
    optimizer.step()
    assert not torch.equal(weight, before)


def test_a_hook_that_drops_its_gradient(shared):
    shared(2).run(run_dropping_hook)


# ---- hooks of steps ----
def run_step_hooks(world, name, registered_on):
    """Hooks before and after a step run once in each step, may change the options of groups, and may be removed. They
    may be registered before the model is sharded, or on either optimizer afterwards."""
    kind, settings = OPTIMIZERS[name]
    judge, model, calls = DistributedDataParallel(Network(16)), Network(16), {}
    theirs, given = (kind(module.parameters(), **settings) for module in (judge, model))

    def register(optimizer, key):
        found = calls[key] = []

        def before(called, arguments, keywords):
            found.append(("before", called, len(arguments), keywords))
            called.param_groups[0]["lr"] *= 0.7
        return (optimizer.register_step_pre_hook(before),
                optimizer.register_step_post_hook(lambda called, *_: found.append(("after", called))))
    handles = [*register(theirs, "judge")]
    if registered_on == "before":
        handles += register(given, "zero")
    model, mine = zero.shard(model, given)
    if registered_on != "before":
        handles += register(mine if registered_on == "returned" else given, "zero")
    for step in range(STEPS):
        for module, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(module, optimizer, step, world.rank)
            optimizer.step()
        agree(world, values(model), values(judge.module))
        if step == 2:
            for handle in handles:
                handle.remove()
    assert [call[0] for call in calls["zero"]] == ["before", "after"] * 3 == [call[0] for call in calls["judge"]]
    assert all(call[1] is mine for call in calls["zero"])
    assert calls["zero"][0][2:] == calls["judge"][0][2:]


@pytest.mark.parametrize("name", ["adamw", "none"])
@pytest.mark.parametrize("registered_on", ["before", "given", "returned"])
def test_hooks_of_steps(shared, name, registered_on):
    shared(2).run(run_step_hooks, name, registered_on)


def run_hooks_of_all_optimizers(world):
    """torch's hooks for the steps of all optimizers run once in a step, and not when the state is saved."""
    model, called = Network(16), []
    model, optimizer = zero.shard(model, torch.optim.RMSprop(model.parameters(), lr=0.01), stage=2)
    handle = register_optimizer_step_pre_hook(lambda optimizer, *_: called.append(optimizer))
    try:
        go_back(model, optimizer, 0, world.rank)
        optimizer.step()
        assert called == [optimizer]
        optimizer.state_dict()
        optimizer.sharded_state().state_dict()
        assert called == [optimizer]
    finally:
        handle.remove()


def test_hooks_of_all_optimizers(shared):
    shared(2).run(run_hooks_of_all_optimizers)

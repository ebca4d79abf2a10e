"""Hooks that a program registers on parameters and optimizers: with zero they do what they do with
DistributedDataParallel."""
import contextlib

import pytest
import torch
from torch.autograd.graph import save_on_cpu
from zero_training import STEPS, Network, agree, go_back, pair, values


def whole_values(model, optimizer):
    with optimizer.whole():
        return values(model)


def hooked_weights(model):
    """Returns a weight of a Linear, an embedding that is also the head's weight, and a vector."""
    return model.blocks[1].inner[1].weight, model.embed.weight, model.scale


# ---- hooks of gradients ----
def run_tensor_hooks(world, checkpointed, context, options):
    """A hook on a weight sees the gradient and may replace it, also where autograd keeps another tensor for the
    weight."""
    judge, theirs, model, mine = pair(lambda: Network(16, checkpointed=checkpointed), "sgd", **options)
    seen = {judge: [], model: []}
    for module, found in seen.items():
        for weight in hooked_weights(getattr(module, "module", module)):
            weight.register_hook(lambda gradient, found=found: found.append(gradient.clone()) or gradient * 0.5)
    for step in range(STEPS):
        for module, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            with context():
                go_back(module, optimizer, step, world.rank)
            optimizer.step()
        agree(world, whole_values(model, mine), values(judge.module))
    assert len(seen[model]) == len(seen[judge]) == 3 * STEPS
    for gradient, expected in zip(seen[model], seen[judge]):
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("checkpointed, context", [(False, contextlib.nullcontext), (True, contextlib.nullcontext),
                                                   (False, save_on_cpu)])
@pytest.mark.parametrize("options", [{"stage": 0}, {"stage": 2}, {"stage": 3}, {"stage": 3, "hosts": "sharded"}])
def test_hooks_of_tensors(shared, checkpointed, context, options):
    shared(2).run(run_tensor_hooks, checkpointed, context, options)

"""Reads of sharded parameters outside the forward of their own modules: the results of DistributedDataParallel, or an
error that names the parameter and the remedy."""
import contextlib
import copy
import io

import pytest
import torch
import torch.nn as nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from training import same_on_all_ranks
from zero_training import STEPS, Network, agree, go_back, ids_of, loss_of, pair, refused, values

from torch_tutti import zero


def whole(optimizer):
    """Returns a context in which all parameters may be read, for any optimizer."""
    return optimizer.whole() if isinstance(optimizer, zero.ZeroOptimizer) else contextlib.nullcontext()


def penalty_of(model, optimizer):
    """A sum of functions that save a parameter, or a view of it, for their backward pass."""
    with whole(optimizer):
        return 0.01 * sum(p.square().sum() + p.view(-1)[1:].square().sum() + (p * p.detach().exp()).sum()
                          for p in model.parameters())


# ---- graphs of a block of whole() ----
def penalty_first(model, optimizer, ids):
    penalty = penalty_of(model, optimizer)
    (loss_of(model(ids)) + penalty).backward()


def penalty_last(model, optimizer, ids):
    loss = loss_of(model(ids))
    (loss + penalty_of(model, optimizer)).backward()


def penalty_alone(model, optimizer, ids):
    penalty = penalty_of(model, optimizer)
    loss_of(model(ids)).backward()
    penalty.backward()


def penalty_without_loss(model, optimizer, ids):
    penalty_of(model, optimizer).backward()


def forward_in_the_block(model, optimizer, ids):
    with whole(optimizer):
        loss = loss_of(model(ids))
    loss.backward()


def all_in_the_block(model, optimizer, ids):
    with whole(optimizer):
        (loss_of(model(ids)) + penalty_of(model, optimizer)).backward()


def run_as_ddp(world, make, step_of, options):
    judge, theirs, model, mine = pair(make, "momentum", 3, hosts="sharded", **options)
    for step in range(STEPS):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            step_of(trained, optimizer, ids_of(step, world.rank))
            optimizer.step()
        with mine.whole():
            torch.testing.assert_close(values(model), values(judge.module), rtol=2e-5, atol=2e-5)
            same_on_all_ranks(world, values(model))


def network():
    return Network(16)


@pytest.mark.parametrize("options", [{}, {"prefetch": 0}], ids=["prefetch", "no prefetch"])
@pytest.mark.parametrize("step_of", [penalty_first, penalty_last, penalty_alone, penalty_without_loss,
                                     forward_in_the_block, all_in_the_block])
def test_graph_of_a_block(shared, step_of, options):
    shared(2).run(run_as_ddp, network, step_of, options)


def run_stale(world):
    """A graph of a block that outlives the step is an error, as it is without a block."""
    model = Network(16)
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), hosts="sharded")
    penalty = penalty_of(model, optimizer)
    go_back(model, optimizer, 0, world.rank)
    optimizer.step()
    refused(RuntimeError, "modified by an inplace operation", penalty.backward)
    optimizer.zero_grad()
    go_back(model, optimizer, 1, world.rank)
    optimizer.step()
    with optimizer.whole():
        assert values(model).isfinite().all()


def test_graph_of_a_block_before_the_step(shared):
    shared(2).run(run_stale)


# ---- modules that read parameters of other modules ----
class Borrowing(Network):
    """Its forward reads a weight of a block before the block computes, and after; and one of a block that does not
    compute, inside a checkpoint."""

    def __init__(self, reentrant=None):
        super().__init__(16)
        self.reentrant = reentrant

    def forward(self, ids):
        x = self.embed(ids).to(self.blocks[1].inner[1].weight.dtype)
        x = nn.functional.linear(x, self.blocks[1].inner[3].weight @ self.blocks[1].inner[1].weight)
        x = self.blocks[1](self.blocks[0](x))
        borrow = lambda y: y * self.blocks[2].inner[0].weight + self.blocks[0].inner[3].bias
        x = borrow(x) if self.reentrant is None else checkpoint(borrow, x, use_reentrant=self.reentrant)
        return self.head(x * self.scale)


def goes_back(model, optimizer, ids):
    loss_of(model(ids)).backward()


def evaluates(model, optimizer, ids):
    with torch.no_grad():
        loss_of(model(ids))
    goes_back(model, optimizer, ids)
    assert loss_of(model(ids)).isfinite()


def run_borrowing(world, step_of):
    run_as_ddp(world, Borrowing, step_of, {"ddp": {"find_unused_parameters": True}})


@pytest.mark.parametrize("step_of", [goes_back, evaluates])
def test_parameters_of_other_modules(shared, step_of):
    shared(2).run(run_borrowing, step_of)


def run_checkpointed(world, reentrant):
    """Sharded parameters beside shared ones: DistributedDataParallel cannot train this model."""
    models = []
    for hosts in ("shared", "sharded"):
        model = Borrowing(reentrant)
        models.append(zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.05), hosts=hosts))
    for step in range(STEPS):
        for model, optimizer in models:
            goes_back(model, optimizer, ids_of(step, world.rank))
            optimizer.step()
        with models[1][1].whole():
            agree(world, values(models[1][0]), values(models[0][0]))


@pytest.mark.parametrize("reentrant", [False, True])
def test_parameters_of_other_modules_in_a_checkpoint(shared, reentrant):
    shared(2).run(run_checkpointed, reentrant)


def run_fails(world):
    """An exception in a forward leaves nothing behind."""
    model = Borrowing()
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), hosts="sharded")
    refused(IndexError, "out of range", lambda: model(ids_of(0, world.rank) + 48))
    assert model._forward_hooks and optimizer._manager.uses.forwards == 0
    for step in range(2):
        go_back(model, optimizer, step, world.rank)
        optimizer.step()
    with optimizer.whole():
        same_on_all_ranks(world, values(model))


def test_a_forward_that_fails(shared):
    shared(2).run(run_fails)


# ---- copies ----
def run_copies(world):
    """A copy outside a block is an error that names the parameter; inside, it has the values. Other models are copied
    as before."""
    judge, theirs, model, mine = pair(network, "momentum", 3, hosts="sharded")
    text = r"parameter .* is sharded and not whole here.*`with optimizer.whole\(\):`"
    with mine.whole():
        averaged = AveragedModel(model)
    judge_averaged = AveragedModel(judge.module)
    for step in range(3):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(trained, optimizer, step, world.rank)
            optimizer.step()
        for call in (lambda: copy.deepcopy(model), lambda: torch.save(model, io.BytesIO()),
                     lambda: AveragedModel(model), lambda: averaged.update_parameters(model),
                     lambda: torch.save(list(model.parameters()), io.BytesIO()), lambda: copy.deepcopy(model.scale)):
            refused(RuntimeError, text, call)
        with mine.whole():
            averaged.update_parameters(model)
            copied = copy.deepcopy(model)
            torch.save(model, file := io.BytesIO())
        judge_averaged.update_parameters(judge.module)
        agree(world, values(copied), values(judge.module))
        agree(world, values(averaged), values(judge_averaged))
        loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        agree(world, values(loaded), values(judge.module))
        assert type(loaded._parameters) is type(copied._parameters) is dict
        copy.deepcopy(copied), copy.deepcopy(nn.Linear(1, 1))
        loss_of(copied(ids_of(step, world.rank))).backward()
    with mine.edit():
        copy.deepcopy(model)
    refused(RuntimeError, text, lambda: copy.deepcopy(model))


def test_copies(shared):
    shared(2).run(run_copies)

"""zero beside other parts of torch and of tutti: schedulers, copies of a model, and names in errors."""
import copy
import io
import pickle
import warnings
from datetime import timedelta

import pytest
import torch
import torch.nn as nn
from torch.optim.swa_utils import AveragedModel
from zero_training import Network, go_back, pair, refused, trained, values

from torch_tutti import zero


def network():
    return Network(16)


# ---- schedulers ----
def run_schedulers(world, first):
    """A scheduler of the given optimizer, or of the returned one, sees the steps: no warning, and DDP's rates."""
    judge, theirs, model, mine = pair(network, "sgd", 1)
    model = network()
    given = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(given, 1) if first else None
    model, mine = zero.shard(model, given, stage=1)
    scheduler = scheduler or torch.optim.lr_scheduler.StepLR(mine, 1)
    judged = torch.optim.lr_scheduler.StepLR(theirs, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(3):
            for each, optimizer, other in ((judge, theirs, judged), (model, mine, scheduler)):
                optimizer.zero_grad()
                go_back(each, optimizer, step, world.rank)
                optimizer.step()
                other.step()
    torch.testing.assert_close(values(model), values(judge.module))


@pytest.mark.parametrize("first", [True, False])
def test_schedulers_see_the_steps(shared, first):
    shared(2).run(run_schedulers, first)


# ---- copies ----
class Plain(nn.Module):
    """A model that torch.jit.script takes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.embed, self.layers = nn.Embedding(48, 16), nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def put_there_by_zero(module):
    return [value for each in module.modules() for value in (*vars(each).values(), *each._forward_pre_hooks.values())
            if type(value).__module__.startswith("torch_tutti") or "torch_tutti" in str(getattr(value, "__func__", ""))]


def run_copies(world, options):
    """A deep copy of a model, or of a module of it, is an ordinary module; the program's own hooks stay in it."""
    model = Plain()
    model, optimizer = zero.shard(model, torch.optim.AdamW(model.parameters()), **options)
    model.layers[0].register_forward_pre_hook(lambda module, arguments: (2 * arguments[0],))
    ids = torch.arange(6)
    go_back(model, optimizer, 0, world.rank)
    optimizer.step()
    with optimizer.whole():
        whole, layer, averaged = copy.deepcopy(model), copy.deepcopy(model.layers[1]), AveragedModel(model)
        loaded = pickle.loads(pickle.dumps(copy.deepcopy(whole.layers[1])))
        expected, expected_of_layer = model(ids), model.layers[1](torch.ones(16))
        file = io.BytesIO()
        torch.save(model.layers[2], file)
        file.seek(0)
        again = copy.deepcopy(torch.load(file, weights_only=False))
        assert torch.equal(again(torch.ones(16)), model.layers[2](torch.ones(16)))
    for copied in (whole, layer, averaged.module, loaded):
        assert not put_there_by_zero(copied) and type(copied.forward.__func__) is type(Plain.forward)
    assert torch.equal(whole(ids), expected)
    whole.layers[0]._forward_pre_hooks.clear()                  # torch.jit takes no lambda
    assert torch.equal(torch.jit.script(whole)(ids), whole(ids))
    assert torch.equal(torch.jit.script(layer)(torch.ones(16)), expected_of_layer)
    whole, other = zero.shard(whole, torch.optim.SGD(whole.parameters(), lr=0.1), stage=2)
    for each, taken in ((model, optimizer), (whole, other)):
        go_back(each, taken, 1, world.rank)
        taken.zero_grad()


@pytest.mark.parametrize("options", [{"stage": 1, "ahead": True}, {"stage": 3, "hosts": "sharded"}])
def test_copies_are_ordinary(shared, options):
    shared(2).run(run_copies, options)


# ---- names ----
def test_star_import_keeps_the_programs_copy():
    names = {}
    exec("import copy\nfrom torch_tutti.parallel import *", names)
    assert names["copy"] is copy


def run_alone(world, options, call, text):
    """Rank 0 alone makes a call of zero, and its error has names."""
    model = network()
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    if world.rank == 0:
        refused(Exception, text, lambda: call(model, optimizer))
        world.store.set("has ended", "1")
    world.store.wait(["has ended"], timedelta(seconds=20))


def take_step(model, optimizer):
    go_back(model, optimizer, 5, 0)
    optimizer.step()


def use_unit(model, optimizer):
    model.blocks[1](torch.ones(16))


@pytest.mark.parametrize("options, call, text", [
    ({"stage": 2}, take_step, "operation [0-9]* of zero stage 2 of Network: "),
    ({"hosts": "sharded"}, use_unit,
     "zero: unit blocks.1 was not gathered; .* operation [0-9]* of zero stage 3 of Net")])
def test_names_of_groups_and_units(fresh, options, call, text):
    outcomes = fresh(2, timeout_s=1).outcomes(run_alone, options, call, text)
    assert not outcomes[0].failed, outcomes[0].trace


def run_parameter(world):
    model, optimizer = trained(world, "adamw", 2)
    go_back(model, optimizer, 1, world.rank)
    optimizer.gradient_norms()
    refused(Exception, "zero: parameter [a-z][a-z0-9._]* has a new gradient, but",
            lambda: go_back(model, optimizer, 2, world.rank))


def test_names_of_parameters(fresh):
    fresh(2).run(run_parameter)

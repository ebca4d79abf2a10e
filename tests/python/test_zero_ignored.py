"""Tests of zero.shard with parameters that are no replicas: `ignored=` leaves them alone, and without it a model with
parts of layers or experts is refused. DistributedDataParallel, which ignores the same parameters, gives the
expected results."""
import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from training import same_on_all_ranks
from zero_training import Fading, Network, agree, go_back, refused, values

from torch_tutti import experts, parallel, zero

STEPS = 4


class WithOwnExpert(nn.Module):
    """A network, and a layer with values and a buffer that differ between ranks."""

    def __init__(self, rank):
        super().__init__()
        self.network = Network(16)
        torch.manual_seed(100 + rank)
        self.own = nn.Sequential(nn.Linear(48, 48), nn.BatchNorm1d(48))

    def forward(self, ids):
        x = self.network(ids)
        return x + self.own(x.flatten(0, 1)).view(x.shape)


def options(model):
    return [{"params": model.network.parameters()}, {"params": model.own.parameters(), "lr": 0.02}]


def begin(world, stage, kind=torch.optim.AdamW):
    judge, model = WithOwnExpert(world.rank), WithOwnExpert(world.rank)
    names = [f"own.{name}" for name in judge.own.state_dict()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(judge, names)
    theirs, given = kind(options(judge), lr=0.01), kind(options(model), lr=0.01)
    return DistributedDataParallel(judge), theirs, *zero.shard(model, given, stage=stage, ignored=[model.own])


def same_own_values(model, judge):
    for name, value in judge.own.state_dict().items():
        assert torch.equal(model.own.state_dict()[name], value), name


def train_both(world, step, judged, sharded):
    """Takes a step with both. Then they have the same parameters, also the ignored ones. judged, sharded: a model and
    its optimizer."""
    for trained, optimizer in (judged, sharded):
        optimizer.zero_grad()
        go_back(trained, optimizer, step, world.rank)
        optimizer.step()
    (judge, _), (model, _) = judged, sharded
    agree(world, values(model.network), values(judge.module.network))
    same_own_values(model, judge.module)


def run_own_expert(world, stage):
    judge, theirs, model, mine = begin(world, stage)
    for step in range(STEPS):
        if step == 2:                   # goes on from a state, which has this rank's values of its own layer
            state = mine.state_dict()
            _, _, other, mine = begin(world, stage)
            other.load_state_dict(model.state_dict())
            mine.load_state_dict(state)
            model = other
        train_both(world, step, (judge, theirs), (model, mine))
    of_ranks = [torch.empty(48, 48) for _ in range(world.size)]
    dist.all_gather(of_ranks, model.own[0].weight.detach())
    assert not torch.equal(*of_ranks)
    assert model.own[0].weight.grad is None
    with pytest.raises(KeyError):
        mine.sharded_state().state_dict()["model"]["own.0.weight"]


@pytest.mark.parametrize("stage", [0, 3])
def test_ignored_parameters_are_each_ranks_own(shared, stage):
    shared(2).run(run_own_expert, stage)


def run_counted_steps(world):
    judge, theirs, model, mine = begin(world, 2, Fading)
    for step in range(3):
        train_both(world, step, (judge, theirs), (model, mine))
    assert [group["steps"] for group in mine.param_groups] == [3, 3]


def test_steps_that_are_counted_in_groups(shared):
    shared(2).run(run_counted_steps)


def run_clipped(world):
    """A norm with ignored gradients differs between ranks, which would then scale the averaged ones differently."""
    _, _, model, mine = begin(world, 2)
    go_back(model, mine, 0, world.rank)
    refused(RuntimeError, "ranks change an averaged gradient by different numbers, mul_",
            lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.01))
    nn.utils.clip_grad_norm_(model.network.parameters(), 0.01)
    mine.step()
    same_on_all_ranks(world, values(model.network))


def test_clipping_with_ignored_parameters(shared):
    shared(2).run(run_clipped)


def shard(model, **options):
    return zero.shard(model, torch.optim.AdamW(model.parameters()), **options)


def run_refusals(world):
    pair, alone = dist.new_group([0, 1]), [dist.new_group([rank]) for rank in range(2)][world.rank]
    model = nn.Sequential(parallel.ColumnLinear(8, 8, group=pair), nn.Linear(8, 8))
    refused(ValueError, r"parameter 0.weight is divided among ranks \[0, 1\].*name the parameter or its module in "
            "ignored=", lambda: shard(model))
    before = model[0].weight.detach().clone()
    shard(model, ignored=[model[0]])
    assert torch.equal(model[0].weight, before)
    shard(nn.Sequential(parallel.ColumnLinear(8, 8, group=alone)))
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Linear(8, 8)
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
    refused(ValueError, r"parameter weight is divided among ranks \[0, 1\].*ignored=", lambda: shard(model))
    shard(model, ignored=[model.weight])
    model = nn.Linear(8, 8)
    model.dispatcher = experts.Dispatcher(4, group=pair)
    refused(ValueError, r"the model has a Dispatcher for experts that are divided among ranks \[0, 1\].*ignored=",
            lambda: shard(model))
    refused(ValueError, "ignored= has a Linear that is not part of the model",
            lambda: shard(model, ignored=[nn.Linear(8, 8)]))
    refused(TypeError, "ignored= has a str", lambda: shard(model, ignored=["weight"]))
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    refused(ValueError, "0.weight is ignored and on the meta device", lambda: shard(model, ignored=[model[0]]))


def test_parts_that_are_not_ignored(shared):
    shared(2).run(run_refusals)


class Layer(nn.Module):
    """A layer whose dispatcher is in a module without parameters, apart from the experts."""

    def __init__(self, dispatcher, has_experts=True):
        super().__init__()
        self.router, self.attention = nn.Identity(), nn.Linear(8, 8)
        self.router.dispatcher = dispatcher
        if has_experts:
            self.experts = nn.Linear(8, 8)


def run_experts_elsewhere(world):
    """Each dispatcher needs ignored experts of its own, in its layer or further outside."""
    dispatcher = experts.Dispatcher(4, group=dist.new_group([0, 1]))
    model = nn.ModuleList(Layer(dispatcher) for _ in range(2))
    refused(ValueError, "1.router has a Dispatcher", lambda: shard(model, ignored=[model[0].experts]))
    refused(ValueError, "0.router has a Dispatcher", lambda: shard(model, ignored=[model[1].experts.weight]))
    shard(model, ignored=[each.experts for each in model])
    model = nn.ModuleList(Layer(dispatcher, has_experts=False) for _ in range(2))
    model.append(nn.Linear(8, 8))
    refused(ValueError, "0.router has a Dispatcher", lambda: shard(model))
    shard(model, ignored=[model[2]])
    model = nn.ModuleList([Layer(dispatcher), nn.Linear(8, 8)])
    model[1].dispatcher = dispatcher
    refused(ValueError, "0.router has a Dispatcher", lambda: shard(model, ignored=[model[1]]))


def test_experts_apart_from_their_dispatcher(shared):
    shared(2).run(run_experts_elsewhere)

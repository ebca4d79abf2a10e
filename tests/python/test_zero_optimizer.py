"""ZeroRedundancyOptimizer: each rank keeps the optimizer's state of its part of the parameters and sends the others
the new values. The judge is the ordinary optimizer, whose state is whole on every rank, with gradients from gloo."""
import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from training import agree, batch, flat, in_one_process, loss_of, network, same_on_all_ranks, train

STEPS = 4
OPTIMIZERS = {
    "descent": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}


def wrapped(group=None):
    return DistributedDataParallel(network(), process_group=group)


def tensors_of(state):
    """Everything an optimizer remembers, in the order of its parameters."""
    values = [value for _, of_parameter in sorted(state["state"].items()) for _, value in sorted(of_parameter.items())]
    return flat(torch.as_tensor(value) for value in values if value is not None)


def run_optimizer(world, name, as_view):
    kind, settings = OPTIMIZERS[name]
    model, judge_model = wrapped(), wrapped(world.gloo)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), kind, parameters_as_bucket_view=as_view, **settings)
    judge_optimizer = kind(judge_model.parameters(), **settings)
    mine = train(model, optimizer, STEPS, world.rank)
    judge = train(judge_model, judge_optimizer, STEPS, world.rank)
    agree(world, mine, judge)
    same_on_all_ranks(world, mine)

    held = sum(len(state) > 0 for state in optimizer.optim.state.values())
    assert 0 < held < len(list(model.parameters()))              # a part of the state, not all of it
    optimizer.consolidate_state_dict(to=world.size - 1)
    if world.rank == world.size - 1:
        agree(world, tensors_of(optimizer.state_dict()), tensors_of(judge_optimizer.state_dict()))
        return optimizer.state_dict()
    with pytest.raises(RuntimeError, match="consolidated"):
        optimizer.state_dict()
    return None


@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("size, name", [(2, "descent"), (2, "Adam"), (3, "AdamW")])
def test_trains_and_remembers_as_the_whole_optimizer(shared, size, name, as_view):
    states = shared(size).run(run_optimizer, name, as_view)
    assert [state is None for state in states] == [True] * (size - 1) + [False]


def run_loaded(world):
    """Half of the steps, then everything goes through a state dict into new objects."""
    kind, settings = OPTIMIZERS["Adam"]
    model = wrapped()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), kind, **settings)
    train(model, optimizer, STEPS, world.rank)
    optimizer.consolidate_state_dict(to=0)
    told = [copy.deepcopy(optimizer.state_dict()) if world.rank == 0 else None]      # loading does not copy tensors
    dist.broadcast_object_list(told, src=0)
    continued = wrapped()
    continued.load_state_dict(model.state_dict())
    other = ZeroRedundancyOptimizer(continued.parameters(), kind, lr=1.0)
    other.load_state_dict(told[0])
    ahead, behind = (train(m, o, STEPS, world.rank) for m, o in ((model, optimizer), (continued, other)))
    assert torch.equal(ahead, behind)
    same_on_all_ranks(world, ahead)


def test_goes_on_from_a_state_dict(shared):
    shared(2).run(run_loaded)


def run_groups_of_parameters(world):
    """A second group of parameters, added later and with a rate of its own."""
    vectors = []
    for sharded in (True, False):
        model = wrapped(None if sharded else world.gloo)
        layers = list(model.module)
        first, last = list(layers[0].parameters()), list(layers[-1].parameters())
        optimizer = (ZeroRedundancyOptimizer(first, torch.optim.SGD, lr=0.1) if sharded
                     else torch.optim.SGD(first, lr=0.1))
        optimizer.add_param_group({"params": last, "lr": 0.02})
        vectors.append(train(model, optimizer, STEPS, world.rank))
    agree(world, *vectors)


def test_groups_of_parameters(shared):
    shared(2).run(run_groups_of_parameters)


def train_uneven(world, group):
    model = wrapped(group)
    kind, settings = OPTIMIZERS["descent"]
    optimizer = ZeroRedundancyOptimizer(model.parameters(), kind, process_group=group, **settings)
    with Join([model, optimizer]):
        for step in range(2 + world.rank):
            optimizer.zero_grad()
            loss_of(model(batch(step, world.rank))).backward()
            optimizer.step()
    return flat(model.parameters())


def run_uneven(world):
    mine = train_uneven(world, None)
    same_on_all_ranks(world, mine)
    agree(world, mine, train_uneven(world, world.gloo))


@pytest.mark.parametrize("size", [2, 3])
def test_join_with_uneven_inputs(shared, size):
    shared(size).run(run_uneven)


# ---- the optimizer's steps inside DDP's backward ----
def run_overlapping(world, hook, options, shard_buckets):
    """torch updates nothing in the steps in which it learns how DDP packs its buckets: two, or three if static."""
    learning = 3 if options.get("static_graph") else 2
    model = DistributedDataParallel(network(), **options)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1,
                                        momentum=0.9)
    model.register_comm_hook(None, getattr(ddp_zero_hook, hook)(default_hooks.allreduce_hook, model, optimizer,
                                                                shard_buckets=shard_buckets))
    for step in [0] * learning + list(range(STEPS)):
        loss_of(model(batch(step, world.rank))).backward()
        optimizer.step()
        model.zero_grad()
    mine = flat(model.parameters())
    same_on_all_ranks(world, mine)
    torch.testing.assert_close(mine, in_one_process(world.size, STEPS))


SEVERAL, STATIC, VIEWS = {"bucket_cap_mb": 0.005}, {"static_graph": True}, {"gradient_as_bucket_view": True}


@pytest.mark.parametrize("hook, options, shard_buckets", [
    ("hook_with_zero_step", SEVERAL, False),
    ("hook_with_zero_step", SEVERAL, True),                   # torch shards several buckets only
    ("hook_with_zero_step", STATIC, False),
    ("hook_with_zero_step", VIEWS, False),
    ("hook_with_zero_step_interleaved", {}, False),
    ("hook_with_zero_step_interleaved", STATIC, False),
])
def test_overlaps_with_ddp(shared, hook, options, shard_buckets):
    """gloo is refused here by its name (ddp_comm_hooks/ddp_zero_hook.py:244 and 405), so one process is the judge.

    The interleaved hook has one bucket only: with more, its broadcasts come from callbacks of futures while backward
    still makes calls, in an order that the ranks do not agree on unless futures are complete at once, as on a GPU.
    """
    shared(2).run(run_overlapping, hook, options, shard_buckets)

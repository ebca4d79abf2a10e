"""Calls for all ranks that only some ranks make end with an error within seconds, and the group goes on."""
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from training import same_on_all_ranks
from zero_training import OPTIMIZERS, Network, go_back, pair, refused, values

from torch_tutti import zero

STAGES = {"stage 1": {"stage": 1}, "stage 2": {"stage": 2}, "stage 3": {"stage": 3}, "sharded": {"hosts": "sharded"}}
SHORT = timedelta(milliseconds=300)


def short(world, options, name="adamw"):
    """Returns a model and an optimizer that waits a short time for other ranks."""
    kind, settings = OPTIMIZERS[name]
    model = Network(16)
    model, optimizer = zero.shard(model, kind(model.parameters(), **settings), **options)
    optimizer.arrival_timeout = SHORT
    train(world, model, optimizer, 0)
    return model, optimizer


def train(world, model, optimizer, step):
    go_back(model, optimizer, step, world.rank)
    optimizer.step()


def patient(optimizer):
    """Lets the optimizer wait as long as the group, however busy the machine is."""
    optimizer.arrival_timeout = None
    return optimizer


def equal_states(mine, other):
    assert mine["state"].keys() == other["state"].keys() and len(mine["param_groups"]) == len(other["param_groups"])
    for key, values_of in other["state"].items():
        for name, value in values_of.items():
            torch.testing.assert_close(mine["state"][key][name], value)


def run_alone(world, options):
    """The commonest checkpoint: rank 0 alone asks for the optimizer's state."""
    model, optimizer = short(world, options)
    if world.rank == 0:
        refused(RuntimeError, r"optimizer.state_dict\(\) is for all ranks, but after 0.3 s rank 0 had called "
                              r"optimizer.state_dict\(\), ranks 1, 2 had called no such function. Call it on all "
                              r"ranks, and write the result on rank 0; or call full_state_dict\(\)",
                optimizer.state_dict)
    patient(optimizer)
    train(world, model, optimizer, 1)
    state = optimizer.state_dict()
    same_on_all_ranks(world, state["state"][0]["exp_avg"])
    train(world, model, optimizer, 2)


@pytest.mark.parametrize("options", STAGES.values(), ids=STAGES)
def test_state_dict_on_rank_0_alone(fresh, options):
    fresh(3, timeout_s=20).run(run_alone, options)


def run_stage_0(world, name, options):
    """In stage 0 each rank has the whole state, so a rank alone gets it: that of DistributedDataParallel."""
    judge, theirs, model, mine = pair(lambda: Network(16), name, 0, **options)
    for step in range(2):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            train(world, trained, optimizer, step)
    if world.rank == 0:
        equal_states(mine.state_dict(), theirs.state_dict())
        before = mine.state_dict()
    for trained, optimizer in ((judge, theirs), (model, mine)):
        optimizer.zero_grad()
        train(world, trained, optimizer, 3)
    if world.rank == 0:                     # the state was a copy
        assert float(before["state"][0]["step"]) == 2 if name == "adamw" else True
        equal_states(mine.full_state_dict(), theirs.state_dict())


@pytest.mark.parametrize("name, options", [("adamw", {}), ("adamw", {"ahead": True}), ("none", {})])
def test_stage_0_answers_alone(fresh, name, options):
    fresh(2, timeout_s=20).run(run_stage_0, name, options)


def run_on_rank_0(world, options, name):
    """Rank 0 gets the state that state_dict() returns, the others an empty dict."""
    _, optimizer = short(world, options, name)
    patient(optimizer)
    whole, found = optimizer.state_dict(), optimizer.full_state_dict(rank0_only=True)
    if world.rank:
        assert found == {}
    else:
        equal_states(found, whole)
        assert found.get("lost", {}).keys() == whole.get("lost", {}).keys()
    equal_states(optimizer.full_state_dict(rank0_only=False), whole)


@pytest.mark.parametrize("options, name", [
    ({"stage": 0}, "adamw"), ({"stage": 1}, "adamw"), ({"stage": 3}, "none"), ({"hosts": "sharded"}, "momentum"),
    ({"stage": 2, "compression": "topk"}, "sgd"), ({"stage": 3, "precision": "bf16"}, "adamw")])
def test_full_state_dict(shared, options, name):
    shared(3).run(run_on_rank_0, options, name)


class Allocations(TorchDispatchMode):
    """Finds the largest tensor that is made."""
    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func._schema.name in ("aten::empty", "aten::clone", "aten::cat"):
            self.largest = max(self.largest, result.nbytes)
        return result


def run_memory(world):
    """Rank 0 allocates whole tensors; the others allocate none."""
    model = torch.nn.Linear(1000, 1000)
    model, optimizer = zero.shard(model, torch.optim.AdamW(model.parameters()))
    model(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    with Allocations() as found:
        optimizer.full_state_dict()
    assert found.largest == 4_000_000 if world.rank == 0 else found.largest < 10_000, found.largest


def test_full_state_dict_needs_memory_on_rank_0_only(shared):
    shared(2).run(run_memory)


# ---- other calls for all ranks ----
def enters(context):
    with context:
        pass


CALLS = {
    "optimizer.load_state_dict()": lambda model, optimizer, state: optimizer.load_state_dict(state["optimizer"]),
    "optimizer.edit()": lambda model, optimizer, state: enters(optimizer.edit()),
    "optimizer.trace()": lambda model, optimizer, state: enters(optimizer.trace("/dev/null")),
    "load_state_dict() of the model": lambda model, optimizer, state: model.load_state_dict(state["model"]),
    "optimizer.sharded_state().state_dict()":
        lambda model, optimizer, state: optimizer.sharded_state().state_dict(),
    "optimizer.sharded_state().load_state_dict()":
        lambda model, optimizer, state: optimizer.sharded_state().load_state_dict(state["parts"]),
}
DIVIDED_CALLS = {
    "optimizer.full_state_dict()": lambda model, optimizer, state: optimizer.full_state_dict(),
}
SHARDED_CALLS = {
    "optimizer.whole()": lambda model, optimizer, state: enters(optimizer.whole()),
    "state_dict() of a model whose parameters are sharded": lambda model, optimizer, state: model.state_dict(),
}


def run_others(world, options):
    """Each call that rank 1 makes alone is an error. The same calls of all ranks then succeed."""
    model, optimizer = short(world, options)
    patient(optimizer)
    state = {"optimizer": optimizer.state_dict(), "parts": optimizer.sharded_state().state_dict(),
             "model": model.state_dict()}
    calls = dict(CALLS)
    calls.update(DIVIDED_CALLS if options.get("stage") != 0 else {})
    calls.update(SHARDED_CALLS if options.get("hosts") == "sharded" else {})
    for name, call in calls.items():
        optimizer.arrival_timeout = SHORT
        if world.rank == 1:
            with pytest.raises(RuntimeError) as raised:
                call(model, optimizer, state)
            text = f"zero: {name} is for all ranks, but after 0.3 s rank 0 had called no such function"
            assert text in str(raised.value)
        dist.barrier()
        call(model, patient(optimizer), state)
    train(world, model, optimizer, 1)
    with optimizer.whole():
        same_on_all_ranks(world, values(model))


@pytest.mark.parametrize("options", [{}, {"stage": 0}, {"hosts": "sharded"}], ids=["shared", "stage 0", "sharded"])
def test_other_calls_alone(fresh, options):
    fresh(2, timeout_s=20).run(run_others, options)


# ---- ranks that come late, and ranks that make another call ----
def run_late(world):
    """Rank 1 comes when rank 0 waits: both get the state. Then rank 1 comes after rank 0 has given up: it gets an error
    of its own, and the next call of both succeeds."""
    _, optimizer = short(world, {})
    patient(optimizer)
    if world.rank == 1:
        optimizer._manager.arrivals._store.wait(["rank/0"], timedelta(seconds=20))
    equal_states(optimizer.state_dict(), optimizer.state_dict())
    optimizer.arrival_timeout = SHORT
    if world.rank == 1:
        world.store.wait(["rank 0 has given up"], timedelta(seconds=20))
    refused(RuntimeError, f"rank {1 - world.rank} had called no such function", optimizer.state_dict)
    world.store.set("rank 0 has given up", "yes")
    dist.barrier()
    equal_states(patient(optimizer).state_dict(), optimizer.state_dict())


def test_a_rank_that_comes_late(fresh):
    fresh(2, timeout_s=20).run(run_late)


def run_different(world):
    """Two ranks that make different calls get an error that names both calls."""
    _, optimizer = short(world, {})
    text = r"all ranks, but after 0.3 s rank 0 had called optimizer.state_dict\(\), rank 1 had called optimizer.edit"
    if world.rank:
        optimizer._manager.arrivals._store.wait(["rank/0"], timedelta(seconds=20))
        refused(RuntimeError, text, lambda: enters(optimizer.edit()))
    else:
        refused(RuntimeError, text, patient(optimizer).state_dict)
    with patient(optimizer).edit():
        pass


def test_ranks_that_make_different_calls(fresh):
    fresh(2, timeout_s=20).run(run_different)


def run_wrong_timeout(world):
    _, optimizer = short(world, {})
    assert zero.ZeroOptimizer.arrival_timeout == timedelta(seconds=30)
    optimizer.arrival_timeout = timedelta(0)
    refused(ValueError, "arrival_timeout is 0:00:00; it must be positive", optimizer.state_dict)


def test_a_timeout_that_is_not_positive(shared):
    shared(2).run(run_wrong_timeout)

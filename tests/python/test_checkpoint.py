"""Tests of torch.distributed.checkpoint: some ranks save, and the same or another number of ranks load.
The loaded state is compared with the saved one. Planning uses the object collectives of the group."""
import os

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict, get_state_dict,
                                                     set_model_state_dict, set_state_dict)
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

WIDTH = 10


def network(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))


def mesh_of(world):
    return world.made_once("mesh", lambda: init_device_mesh("cpu", (world.size,)))


def sharded(world, seed):
    """A model of FSDP and its optimizer. The seven rows of a layer do not divide evenly among two or four ranks."""
    model = network(seed)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh_of(world))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(model, optimizer, steps, first=0):
    """Trains with the same batch on every rank, so that the number of ranks does not matter."""
    for turn in range(first, first + steps):
        x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(turn))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def full(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def whole_state(model, optimizer):
    """Returns the parameters and the optimizer's state as whole tensors."""
    state = {name: full(parameter) for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        state |= {f"{name}.{what}": full(moment) for what, moment in optimizer.state[parameter].items()}
    return state


def check_equal(ours, theirs):
    assert ours.keys() == theirs.keys() and len(ours) > 0
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


class Run:
    """A model and its optimizer as one thing to save; torch calls the two methods."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])


# ---- save and load ----
def saved(world, folder, steps):
    model, optimizer = sharded(world, seed=1)
    train(model, optimizer, steps)
    checkpoint.save({"run": Run(model, optimizer), "step": steps}, checkpoint_id=folder)
    return whole_state(model, optimizer)


def loaded(world, folder, steps):
    model, optimizer = sharded(world, seed=2)
    state = {"run": Run(model, optimizer), "step": 0}
    checkpoint.load(state, checkpoint_id=folder)
    assert state["step"] == steps
    before = whole_state(model, optimizer)
    train(model, optimizer, 2, first=steps)
    return before, whole_state(model, optimizer)


def gone_on(world, steps):
    model, optimizer = sharded(world, seed=1)
    train(model, optimizer, steps)
    return whole_state(model, optimizer)


@pytest.mark.parametrize("writers, readers", [(2, 2), (4, 2), (2, 4), (3, 2)], ids=lambda size: str(size))
def test_fsdp_state_is_loaded_by_other_numbers_of_ranks(shared, tmp_path, writers, readers):
    """The readers get the state that the writers saved, and train on as if training had not stopped."""
    folder = str(tmp_path / "saved")
    before = shared(writers).run(saved, folder, 3)
    judged = shared(readers).run(gone_on, 5)
    for rank, (ours, later) in enumerate(shared(readers).run(loaded, folder, 3)):
        check_equal(ours, before[0])
        for name in later:
            torch.testing.assert_close(later[name], judged[rank][name], msg=lambda text: f"{name}: {text}")


def one_process_reads(folder):
    target = os.path.join(os.path.dirname(folder), "whole.pt")
    dcp_to_torch_save(folder, target)
    return torch.load(target, weights_only=False)


def test_one_process_reads_what_four_ranks_saved(shared, tmp_path):
    folder = str(tmp_path / "saved")
    before = shared(4).run(saved, folder, 1)[0]
    state = one_process_reads(folder)["run"]["model"]
    check_equal(state, {name: before[name] for name in state})
    assert set(state) == {name for name, _ in network(0).named_parameters()}


# ---- while training goes on ----
def saved_meanwhile(world, folder, kind):
    """Trains on while the checkpoint is saved. It must hold the state at the call."""
    model, optimizer = sharded(world, seed=1)
    train(model, optimizer, 2)
    at_call = whole_state(model, optimizer)
    # A group of its own, because calls of two threads on one group could have another order on each rank.
    group = dist.new_group()
    future = checkpoint.async_save({"run": Run(model, optimizer), "step": 2}, checkpoint_id=folder,
                                   process_group=group, async_checkpointer_type=AsyncCheckpointerType[kind])
    train(model, optimizer, 3, first=2)
    getattr(future, "upload_completion", future).result(timeout=30)
    dist.barrier()
    return at_call


def test_asynchronous_save_has_the_state_at_the_call(shared, tmp_path):
    at_call = shared(2).run(saved_meanwhile, str(tmp_path), "THREAD")
    for ours, _ in shared(2).run(loaded, str(tmp_path), 2):
        check_equal(ours, at_call[0])


# ---- other states ----
def divided(world, folder):
    """A tensor that is saved with one placement is loaded with another, beside a tensor that only one rank has."""
    whole = torch.arange(35.0).reshape(7, 5)
    mesh, ways = mesh_of(world), [[Shard(0)], [Shard(1)], [Replicate()]]
    for number, before in enumerate(ways):
        state = {"x": distribute_tensor(whole, mesh, before), f"of rank {world.rank}": torch.tensor([world.rank])}
        checkpoint.save(state, checkpoint_id=f"{folder}/{number}")
        for after in ways:
            state = {"x": distribute_tensor(torch.zeros(7, 5), mesh, after),
                     f"of rank {world.rank}": torch.tensor([-1])}
            checkpoint.load(state, checkpoint_id=f"{folder}/{number}")
            assert torch.equal(state["x"].full_tensor(), whole), (before, after)
            assert state["x"].placements == tuple(after) and state[f"of rank {world.rank}"].item() == world.rank


def test_tensor_is_loaded_with_another_placement(shared, tmp_path):
    shared(3).run(divided, str(tmp_path))


def from_ddp_to_fsdp(world, folder):
    model = DistributedDataParallel(network(1))
    checkpoint.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    other, _ = sharded(world, seed=2)
    state = {"model": get_model_state_dict(other)}
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(other, state["model"])
    check_equal({name: full(p) for name, p in other.named_parameters()},
                {name: full(p) for name, p in model.module.named_parameters()})


def test_state_of_ddp_is_loaded_into_fsdp(shared, tmp_path):
    shared(2).run(from_ddp_to_fsdp, str(tmp_path))


def through_one_rank(world):
    """The whole state is gathered on rank 0, and broadcast from it into another model."""
    model, _ = sharded(world, seed=1)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    assert bool(state) == (world.rank == 0)
    other, _ = sharded(world, seed=2)
    set_model_state_dict(other, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    check_equal({name: full(p) for name, p in other.named_parameters()},
                {name: full(p) for name, p in model.named_parameters()})


def test_state_is_gathered_and_broadcast_by_one_rank(shared):
    shared(3).run(through_one_rank)


# ---- failures ----
def without_the_file(world, folder):
    checkpoint.load({"x": distribute_tensor(torch.zeros(4), mesh_of(world), [Shard(0)])}, checkpoint_id=folder)


def test_a_missing_checkpoint_is_an_error_on_every_rank(shared, tmp_path):
    """Every rank gets the error that rank 0 has found, and the group still works."""
    for outcome in shared(2).outcomes(without_the_file, str(tmp_path / "nothing")):
        assert outcome.error == "CheckpointException" and ".metadata" in outcome.text, outcome
    shared(2).run(from_ddp_to_fsdp, str(tmp_path / "saved"))

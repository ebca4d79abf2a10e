"""ZeroOptimizer.sharded_state through torch.distributed.checkpoint: each rank writes its parts, and other numbers of
ranks, other stages, and models that are not sharded go on from them, to the bit."""
import copy
import os

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.nn.parallel import DistributedDataParallel
from training import flat, same_on_all_ranks
from zero_training import (OPTIMIZERS, Network, equal, go_back, goes_on, ids_of, loss_of, refused, trained,
                           values)

from torch_tutti import zero
from torch_tutti.zero._parts import Parts, boxes


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4), (2, 1, 3, 2)])
def test_boxes_fill_a_range(shape):
    whole = torch.arange(max(1, torch.Size(shape).numel())).view(shape)
    for begin in range(whole.numel()):
        for end in range(begin, whole.numel() + 1):
            found = [whole[tuple(slice(o, o + s) for o, s in zip(offsets, sizes))].reshape(-1)
                     for offsets, sizes in boxes(shape, begin, end)]
            assert torch.equal(torch.cat([*found, torch.empty(0, dtype=torch.long)]), whole.view(-1)[begin:end])
            assert len(found) <= max(1, 2 * len(shape) - 1)


class Bare(torch.nn.Module):
    """A number, a buffer, something frozen, something odd, weights with two names."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.inner = Network(16)
        self.factor = torch.nn.Parameter(torch.tensor(float(seed)))
        self.odd = torch.nn.Parameter(torch.randn(3, 5, 7))
        self.register_buffer("seen", torch.full((3,), float(seed)))
        self.fixed = torch.nn.Parameter(torch.randn(4), requires_grad=False)

    def forward(self, ids):
        return self.inner(ids) * self.factor + self.odd.mean() + self.fixed.sum()


def sharded(seed, name, stage, **options):
    kind, settings = OPTIMIZERS[name]
    model = Bare(seed)
    return zero.shard(model, kind(model.parameters(), **settings), stage=stage, **options)


def steps(world, model, optimizer, first, count=3):
    """Trains with the same batch on every rank, so that the number of ranks changes nothing but rounding. Returns the
    parameters as one vector."""
    for step in range(first, first + count):
        optimizer.zero_grad()
        go_back(model, optimizer, step, 0)
        optimizer.step()
    if isinstance(optimizer, zero.ZeroOptimizer):
        with optimizer.whole():
            return flat(p.detach().clone() for p in model.parameters())
    return flat(p.detach().clone() for p in model.parameters())


def write(world, folder, name, stage, options):
    model, optimizer = sharded(1, name, stage, **options)
    steps(world, model, optimizer, 0)
    dcp.save({"training": optimizer.sharded_state()}, checkpoint_id=folder)
    with optimizer.whole():
        now = flat(p.detach().clone() for p in model.parameters())
    return now, steps(world, model, optimizer, 3)


def read(world, folder, name, stage, options):
    model, optimizer = sharded(2, name, stage, **options)
    for group in optimizer.param_groups:
        group["lr"] = 7.0
    dcp.load({"training": optimizer.sharded_state()}, checkpoint_id=folder)
    assert optimizer.param_groups[0]["lr"] == OPTIMIZERS[name][1]["lr"]
    assert model.seen[0] == 1
    with optimizer.whole():
        now = flat(p.detach().clone() for p in model.parameters())
    same_on_all_ranks(world, now)
    return now, steps(world, model, optimizer, 3)


SHARDED = {"hosts": "sharded"}


@pytest.mark.parametrize("writers, readers, name, stages, options", [
    (2, 2, "adamw", (3, 3), {}), (2, 2, "adamw", (3, 3), SHARDED), (4, 2, "adam", (3, 2), {}),
    (2, 4, "adamw", (1, 3), SHARDED), (2, 3, "momentum", (0, 2), {}), (3, 2, "momentum", (2, 0), {}),
    (2, 2, "none", (3, 2), {}), (1, 2, "sgd", (3, 3), {}),
])
@pytest.mark.one_host("numbers of ranks that no two hosts share evenly")
def test_others_go_on(shared, tmp_path, writers, readers, name, stages, options):
    folder = str(tmp_path / "saved")
    written = shared(writers).run(write, folder, name, stages[0], options if stages[0] == 3 else {})
    for now, later in shared(readers).run(read, folder, name, stages[1], options if stages[1] == 3 else {}):
        assert torch.equal(now, written[0][0])
        torch.testing.assert_close(later, written[0][1], rtol=2e-5, atol=2e-5)
        if (writers, readers) == (2, 2) and stages[0] == stages[1]:
            assert torch.equal(later, written[0][1])


# ---- between torch's own and ours ----
def ordinary(seed, name):
    kind, settings = OPTIMIZERS[name]
    model = DistributedDataParallel(Bare(seed))
    return model, kind(model.parameters(), **settings)


def run_torch_reads(world, folder, name, stage):
    model, optimizer = sharded(1, name, stage)
    steps(world, model, optimizer, 0)
    dcp.save({"training": optimizer.sharded_state()}, checkpoint_id=folder)
    theirs, theirs_optimizer = ordinary(2, name)
    state = {"training": dict(zip(("model", "optimizer"), get_state_dict(theirs, theirs_optimizer)))}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(theirs, theirs_optimizer, model_state_dict=state["training"]["model"],
                   optim_state_dict=state["training"]["optimizer"])
    agree(steps(world, theirs, theirs_optimizer, 3), steps(world, model, optimizer, 3))


def agree(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def run_torch_writes(world, folder, name, stage):
    theirs, theirs_optimizer = ordinary(1, name)
    steps(world, theirs, theirs_optimizer, 0)
    state = dict(zip(("model", "optimizer"), get_state_dict(theirs, theirs_optimizer)))
    dcp.save({"training": state}, checkpoint_id=folder)
    model, optimizer = sharded(2, name, stage)
    dcp.load({"training": optimizer.sharded_state()}, checkpoint_id=folder)
    agree(steps(world, model, optimizer, 3), steps(world, theirs, theirs_optimizer, 3))


@pytest.mark.parametrize("program", [run_torch_reads, run_torch_writes])
@pytest.mark.parametrize("name, stage", [("momentum", 3), ("adam", 0), ("sgd", 2)])
@pytest.mark.one_host("DistributedDataParallel sums in another order over hosts")
def test_with_ddp(shared, tmp_path, program, name, stage):
    shared(2).run(program, str(tmp_path / "saved"), name, stage)


# ---- what else is kept ----
def run_bfloat16(world, folder, options):
    """A checkpoint keeps the float32 values of bfloat16 parameters, beside the model's own values in bfloat16."""
    model, optimizer = trained(world, "adamw", 3, bits=torch.bfloat16)
    dcp.save({"training": optimizer.sharded_state()}, checkpoint_id=folder)
    expected = goes_on(world, model, optimizer)
    other = Network(16).to(torch.bfloat16)
    other, again = zero.shard(other, torch.optim.AdamW(other.parameters(), lr=3.0), stage=2)
    dcp.load({"training": again.sharded_state()}, checkpoint_id=folder)
    equal(world, goes_on(world, other, again), expected)
    state = again.sharded_state()
    kept = copy.deepcopy({name: again._checkpoint._own_part(number, name, value) for number, (name, value) in
                          enumerate(state.state_dict()["model"].items()) if number < 3})
    assert all(value.dtype == torch.bfloat16 for value in kept.values())


def run_compressed(world, folder, options):
    def make(seed):
        model = Network(16)
        return zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1 * seed), stage=2, compression="topk")
    model, optimizer = make(1)
    for step in range(3):
        go_back(model, optimizer, step, world.rank)
        optimizer.step()
    dcp.save({"training": optimizer.sharded_state()}, checkpoint_id=folder)
    before = optimizer.state_dict()["lost"]
    assert any(lost.any() for lost in before.values())
    other, again = make(2)
    dcp.load({"training": again.sharded_state()}, checkpoint_id=folder)
    for name, lost in again.state_dict()["lost"].items():
        torch.testing.assert_close(lost, before[name])


def run_in_the_background(world, folder, options):
    """torch copies what is saved before training goes on."""
    model, optimizer = sharded(1, "adamw", 3, **options)
    steps(world, model, optimizer, 0)
    saving = dcp.async_save({"training": optimizer.sharded_state()}, checkpoint_id=folder, process_group=world.gloo,
                            async_checkpointer_type=AsyncCheckpointerType.THREAD)
    later = steps(world, model, optimizer, 3)
    saving.result()
    other, again = sharded(2, "adamw", 3, **options)
    dcp.load({"training": again.sharded_state()}, checkpoint_id=folder)
    equal(world, steps(world, other, again, 3), later)


def run_before_a_step(world, folder, options):
    """A state that was saved before the first step is loaded, and the training from there is the same."""
    for name in ("adamw", "none"):
        model, optimizer = sharded(1, name, 3, **options)
        dcp.save({"training": optimizer.sharded_state()}, checkpoint_id=os.path.join(folder, name))
        other, again = sharded(2, name, 3, **options)
        dcp.load({"training": again.sharded_state()}, checkpoint_id=os.path.join(folder, name))
        equal(world, steps(world, other, again, 0), steps(world, model, optimizer, 0))


def run_without_files(world, folder, options):
    """The state_dict of one optimizer is loaded by another, without files. A state that does not fit is refused."""
    model, optimizer = sharded(1, "adamw", 3, **options)
    steps(world, model, optimizer, 0)
    state = optimizer.sharded_state().state_dict()
    other, again = sharded(2, "adamw", 3, **options)
    again.sharded_state().load_state_dict(state)
    equal(world, steps(world, other, again, 3), steps(world, model, optimizer, 3))
    small = Network(8)
    small, third = zero.shard(small, torch.optim.AdamW(small.parameters()))
    whole = {"model": small.state_dict(), "optimizer": third.sharded_state().state_dict()["optimizer"]}
    third.sharded_state().load_state_dict(whole)
    small_state = third.sharded_state().state_dict()
    refused(ValueError, "elements in the state, but should have", lambda: third.sharded_state().load_state_dict(
        {**small_state, "model": dict.fromkeys(small_state["model"], torch.zeros(9, 9, 9))}))
    refused(ValueError, "it was saved with another number of ranks", lambda: third.sharded_state().load_state_dict(
        {**small_state, "model": dict.fromkeys(small_state["model"], Parts((9, 9), torch.float32))}))
    refused(ValueError, "the state has no 'scale'", lambda: third.sharded_state().load_state_dict(
        {**small_state, "model": {}}))
    refused(RuntimeError, "of a tensor in parts", lambda: small_state["model"]["scale"] + 1)


@pytest.mark.parametrize("options", [{}, SHARDED])
@pytest.mark.parametrize("program", [run_bfloat16, run_compressed, run_in_the_background, run_before_a_step,
                                     run_without_files])
def test_keeps(shared, tmp_path, program, options):
    shared(2).run(program, str(tmp_path / "saved"), options)


class Told(torch.nn.Module):
    """Extra state, a buffer that each rank has its own values of, a parameter that no step updates."""

    def __init__(self, number):
        super().__init__()
        torch.manual_seed(4)
        self.layer, self.unused = torch.nn.Linear(64, 8), torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(8)
        self.number = number

    def forward(self, ids):
        return self.norm(self.layer(ids.float() / 48))

    def get_extra_state(self):
        return self.number

    def set_extra_state(self, number):
        self.number = number


UPDATES = {"rmsprop": (torch.optim.RMSprop, {"weight_decay": 0.1, "momentum": 0.5}),
           "nadam": (torch.optim.NAdam, {"weight_decay": 0.1}), "rprop": (torch.optim.Rprop, {"lr": 0.01}),
           "amsgrad": (torch.optim.AdamW, {"amsgrad": True}), "adamw": (torch.optim.AdamW, {}),
           "adagrad": (torch.optim.Adagrad, {})}


def run_told(world, folder, name, options):
    """Saving changes nothing, at any time. A training that loads the state goes on as the saved one, with rank 0's
    buffers on all ranks."""
    kind, settings = UPDATES[name]

    def made(number):
        model = Told(number)
        return zero.shard(model, kind(model.parameters(), **settings), **options)
    (model, optimizer), (judge, theirs), (other, again) = made(world.rank), made(world.rank), made(7)
    for step in range(2):
        dcp.save({"training": optimizer.sharded_state()}, checkpoint_id=f"{folder}/{step}")
        dcp.load({"training": again.sharded_state()}, checkpoint_id=f"{folder}/{step}")
        assert other.number == 0
        same_on_all_ranks(world, other.norm.running_mean)
        if world.rank == 0:
            assert torch.equal(other.norm.running_mean, model.norm.running_mean)
        for trained_, taken in ((model, optimizer), (judge, theirs), (other, again)):
            taken.zero_grad()
            loss_of(trained_(ids_of(step, world.rank))).backward()
            taken.step()
        for changed in (model, other):
            with optimizer.whole(), theirs.whole(), again.whole():
                equal(world, values(changed), values(judge))
    with optimizer.whole():
        dcp.save({"training": optimizer.sharded_state()}, checkpoint_id=f"{folder}/whole")
        assert not values(model).isnan().any()


@pytest.mark.parametrize("options", [{}, SHARDED, {"stage": 0}])
@pytest.mark.parametrize("name", UPDATES)
def test_is_told_all(shared, tmp_path, name, options):
    shared(2).run(run_told, str(tmp_path), name, options)


class Renamed(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 4)
        self.register_state_dict_post_hook(lambda module, state, *_: state.update(
            {name: value.clone() for name, value in state.items()}))


def run_hooked(world, folder):
    """zero finds the parameters in a state_dict of copies by their names. If the names differ, too, it refuses the
    model."""
    model = Renamed()
    model, optimizer = zero.shard(model, torch.optim.AdamW(model.parameters()))
    dcp.save({"training": optimizer.sharded_state()}, checkpoint_id=folder)
    before = values(model).clone()
    with optimizer.edit(), torch.no_grad():
        model.weight.zero_()
    dcp.load({"training": optimizer.sharded_state()}, checkpoint_id=folder)
    assert torch.equal(values(model), before)
    model.register_state_dict_post_hook(lambda module, state, *_: state.update(other=state.pop("weight")))
    refused(ValueError, "has no entry for parameter weight", lambda: optimizer.sharded_state().state_dict())


def test_hooks_of_a_state_dict(shared, tmp_path):
    shared(2).run(run_hooked, str(tmp_path / "saved"))


def run_mistakes(world, folder):
    model, optimizer = sharded(1, "adamw", 3)
    dcp.save({"training": optimizer.sharded_state()}, checkpoint_id=folder)
    other = torch.nn.Linear(3, 4)
    other, again = zero.shard(other, torch.optim.AdamW(other.parameters()))
    refused(CheckpointException, "(?s)Missing key in checkpoint state_dict: training.model.weight",
            lambda: dcp.load({"training": again.sharded_state()}, checkpoint_id=folder))


def test_another_model(shared, tmp_path):
    shared(2).run(run_mistakes, str(tmp_path / "saved"))

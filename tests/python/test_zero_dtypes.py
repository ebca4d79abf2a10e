"""Tests of zero.shard with all types of parameters: float16, float64, several in one unit, none of any, GradScaler, and
norms that stay in float32."""
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from training import same_on_all_ranks
from zero_training import OPTIMIZERS, STEPS, Network, agree, equal, go_back, ids_of, loss_of, pair, step_rounded, values

from torch_tutti import zero


class Mixed(nn.Module):
    """Several types in one module, a parameter without elements, and one that is a single number."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(11)
        self.words = nn.Embedding(48, 12)
        self.gain = nn.Parameter(torch.randn(12, dtype=dtype))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.norm = nn.LayerNorm(12)
        self.blocks = nn.ModuleList([nn.Linear(12, 12), nn.Linear(12, 12).to(dtype)])
        self.power = nn.Parameter(torch.ones(()))

    def forward(self, ids):
        x = self.norm(self.words(ids)) * self.power + self.nothing.sum()
        x = self.blocks[0](x).tanh() * self.gain
        return self.blocks[1](x.to(self.gain.dtype))


def run_float64(world, make, name, options):
    """Sums in float64, and the program's own optimizer on pieces in float64."""
    judge, model = make(), make()
    kind, settings = OPTIMIZERS[name]
    judge = DistributedDataParallel(judge)
    theirs = kind(judge.parameters(), **settings)
    model, mine = zero.shard(model, kind(model.parameters(), **settings), **options)
    for step in range(STEPS):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(trained, optimizer, step, world.rank)
            if step == 2:
                nn.utils.clip_grad_norm_(trained.parameters(), 1e6)
            optimizer.step()
        with mine.whole():
            agree(world, *(torch.cat([p.detach().double().flatten() for p in each.parameters()])
                           for each in (model, judge)))
    state = mine.state_dict()
    assert [set(each) for each in state["state"].values()] == [
        set(each) for each in theirs.state_dict()["state"].values()]
    theirs.load_state_dict(state)
    mine.load_state_dict(theirs.state_dict())


def wide():
    return Network(16).double()


def mixed():
    return Mixed(torch.float64)


@pytest.mark.parametrize("make, name, options", [
    (wide, "momentum", {"stage": 2}), (wide, "adamw", {"stage": 3, "hosts": "sharded"}), (mixed, "none", {"stage": 3}),
    (mixed, "momentum", {"stage": 0}), (mixed, "adam", {"stage": 3, "hosts": "sharded"})])
def test_float64_and_several_types(shared, make, name, options):
    shared(2).run(run_float64, make, name, options)


def run_float64_norms(world, make, kind):
    """The norm of float64 gradients is float64, as torch's."""
    model = make()
    model, mine = zero.shard(model, adamw(model), stage=2)
    go_back(model, mine, 0, world.rank)
    theirs = nn.utils.clip_grad_norm_(model.parameters(), 1e6, kind)
    norm = mine.clip_grad_norm_(1e6, kind)
    assert norm.dtype == torch.float64
    if make is wide:
        torch.testing.assert_close(norm, theirs, rtol=1e-14, atol=0)


@pytest.mark.parametrize("make, kind", [(wide, 2.0), (wide, 1.0), (mixed, 2.0)])
def test_norms_of_float64(shared, make, kind):
    shared(2).run(run_float64_norms, make, kind)


def run_float64_checkpoint(world, folder):
    """An optimizer that has not stepped gets the moments of a checkpoint in float64."""
    def make():
        model = wide()
        return zero.shard(model, adamw(model), stage=1)
    (model, mine), (other, later) = make(), make()
    for step in range(2):
        go_back(model, mine, step, world.rank)
        mine.step()
    dcp.save({"training": mine.sharded_state()}, checkpoint_id=folder)
    dcp.load({"training": later.sharded_state()}, checkpoint_id=folder)
    torch.testing.assert_close(later.state_dict()["state"], mine.state_dict()["state"], rtol=0, atol=0)
    for trained, optimizer in ((model, mine), (other, later)):
        optimizer.zero_grad()
        go_back(trained, optimizer, 2, world.rank)
        optimizer.step()
    equal(world, values(other), values(model))


def test_float64_moments_of_checkpoints(shared, tmp_path):
    shared(2).run(run_float64_checkpoint, str(tmp_path))


def train_rounded(world, judge, model, optimizer, first=None):
    """The judge keeps float32 values beside its parameters, of any type, and rounds after each step. first: a model
    with the first of these values; None: they are the judge's."""
    trained = nn.ParameterList(p for p in judge.parameters() if p.numel() and p.requires_grad)
    kept = [p.detach().float().requires_grad_() for p in (first or judge).parameters() if p.numel() and p.requires_grad]
    theirs = torch.optim.AdamW(kept, lr=0.01, weight_decay=0.1)
    for step in range(STEPS):
        for each in (judge, model):
            (loss_of(each(ids_of(step, world.rank))) * 512).backward()
        step_rounded(world, trained, kept, theirs)
        optimizer.step()
        for mine, other in zip(model.parameters(), judge.parameters()):
            equal(world, mine.detach().float(), other.detach().float())


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def run_narrow(world, dtype, stage):
    """One unit has float32, and bfloat16 or float16 beside it."""
    model = Mixed(dtype)
    train_rounded(world, Mixed(dtype), *zero.shard(model, adamw(model), stage=stage))


@pytest.mark.parametrize("dtype, stage", [(torch.bfloat16, 2), (torch.float16, 3), (torch.float16, 0)])
def test_narrow_types_beside_float32(shared, dtype, stage):
    shared(2).run(run_narrow, dtype, stage)


def normed():
    torch.manual_seed(12)
    return nn.Sequential(nn.Linear(64, 24), nn.BatchNorm1d(24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 5))


def run_batch_norm(world, precision, dtype):
    """BatchNorm stays in float32, and all else is converted."""
    judge, model = normed().to(dtype), normed()
    judge[1].float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    model, optimizer = zero.shard(model, adamw(model), stage=3, precision=precision)
    assert [p.dtype for p in model.parameters()] == [p.dtype for p in judge.parameters()]
    assert model[1].weight.dtype == torch.float32
    for step in range(STEPS):
        for each in (judge, model):
            output = each(ids_of(step, world.rank).to(dtype) / 48)
            assert output.dtype == dtype
    state = model.state_dict()
    assert torch.equal(state["1.running_mean"], judge.state_dict()["1.running_mean"])
    loss_of(model(ids_of(0, world.rank).float() / 48)).backward()
    optimizer.step()
    same_on_all_ranks(world, values(model))


@pytest.mark.parametrize("precision, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_batch_norm_stays_in_float32(shared, precision, dtype):
    shared(2).run(run_batch_norm, precision, dtype)


def run_scaled(world, stage, clips):
    """float16 by autocast. In one step a rank has an infinite gradient, and all ranks skip it, as without zero."""
    judge, theirs, model, mine = pair(lambda: Network(16), "momentum", stage)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0 ** 12, growth_interval=2) for _ in range(2)]
    for step in range(STEPS):
        before = values(model)
        for trained, optimizer, scaler in ((judge, theirs, scalers[0]), (model, mine, scalers[1])):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(trained(ids_of(step, world.rank)))
            scaler.scale(loss * (float("inf") if (step, world.rank) == (2, 1) else 1.0)).backward()
            if clips:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(trained.parameters(), 1e-3)
            scaler.step(optimizer)
            scaler.update()
        assert torch.equal(before, values(model)) == (step == 2)
        assert scalers[0].get_scale() == scalers[1].get_scale()
        same_on_all_ranks(world, values(model))
        if clips:
            torch.testing.assert_close(values(model), values(judge.module))
        else:
            agree(world, values(model), values(judge.module))


@pytest.mark.parametrize("stage, clips", [(3, False), (2, True), (0, True)])
def test_grad_scaler(shared, stage, clips):
    shared(2).run(run_scaled, stage, clips)


class Adapted(nn.Module):
    """A model of which little is trained: all else is frozen, also the bias of a trained layer, and one layer is in
    another memory format."""

    def __init__(self, seed=13):
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Embedding(48, 12)
        self.body = nn.Sequential(nn.Conv1d(64, 7, 3), nn.LayerNorm(10), nn.BatchNorm1d(7), nn.Linear(10, 11))
        self.head = nn.Linear(11, 5)
        self.quantized = nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
        for parameter in (*self.words.parameters(), *self.body.parameters(), self.head.bias):
            parameter.requires_grad_(False)
        self.body[0].weight.data = self.body[0].weight.data.transpose(0, 1).contiguous().transpose(0, 1)

    def forward(self, ids):
        return self.head(self.body(self.words(ids)))


def narrowed(dtype):
    model = Adapted().to(dtype)
    model.body[2].float()
    return model


def run_frozen(world, precision, dtype, options):
    """Frozen parameters have the type of the others, and their own values again after unshard()."""
    model = Adapted(13 + world.rank)
    model, optimizer = zero.shard(model, adamw(model), precision=precision, **options)
    assert [p.dtype for p in model.parameters()] == [p.dtype for p in narrowed(dtype).parameters()]
    assert model.quantized.dtype == torch.int8
    train_rounded(world, narrowed(dtype), model, optimizer, Adapted())
    with optimizer.edit(), torch.no_grad():
        if world.rank == 0:
            model.head.bias[:2] = 3.0
    optimizer.zero_grad()
    optimizer.unshard()
    first = Adapted()
    with torch.no_grad():
        first.head.bias[:2] = 3.0
    for (name, parameter), other in zip(model.named_parameters(), first.parameters()):
        assert parameter.dtype == other.dtype and parameter.stride() == other.stride(), name
        assert parameter.requires_grad or torch.equal(parameter, other), name


@pytest.mark.parametrize("precision, dtype, options", [
    ("bf16", torch.bfloat16, {"stage": 3}), ("fp16", torch.float16, {"stage": 0})])
def test_frozen_parameters_are_converted(shared, precision, dtype, options):
    shared(2).run(run_frozen, precision, dtype, options)


def run_unfrozen(world):
    """A parameter that is trained later begins with its float32 values."""
    model = Adapted()
    model, optimizer = zero.shard(model, adamw(model), precision="bf16", stage=2)
    model.body[3].requires_grad_(True)
    optimizer.divide_again()
    masters = [state["master"] for _, state in sorted(optimizer.state_dict()["state"].items()) if "master" in state]
    torch.testing.assert_close(masters, [p.detach() for p in (*Adapted().body[3].parameters(), Adapted().head.weight)],
                               rtol=0, atol=0)
    go_back(model, optimizer, 0, world.rank)
    optimizer.step()


def test_frozen_parameters_that_are_trained_later(shared):
    shared(3).run(run_unfrozen)

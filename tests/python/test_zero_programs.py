"""zero.shard in programs that do more than train: checkpoints, gradients for other things, evaluation, copies."""
import copy
import pickle
import gc
import time

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from training import flat, same_on_all_ranks
from zero_training import (OPTIMIZERS, STEPS, Images, Network, agree, equal, go_back, goes_on, ids_of, loss_of,
                           one_sum, pair, train_beside, trained, values)

from torch_tutti import zero


# ---- checkpoints ----
def run_checkpoint(world, name, bits):
    """Saved at stage 3, it goes on at stage 2 and 3 as if nothing had happened."""
    model, optimizer = trained(world, name, 3, bits)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    expected = goes_on(world, model, optimizer)
    for stage in (2, 3):
        kind, settings = OPTIMIZERS[name]
        other = Network(16).to(bits)
        with torch.no_grad():
            other.scale.fill_(9)
        other, again = zero.shard(other, kind(other.parameters(), **{**settings, "lr": 7.0}), stage=stage)
        again.load_state_dict(saved[1])
        other.load_state_dict(saved[0])
        again.load_state_dict(saved[1])
        equal(world, goes_on(world, other, again), expected)


@pytest.mark.parametrize("name, bits", [("adamw", torch.float32), ("momentum", torch.float32), ("none", torch.float32),
                                        ("adamw", torch.bfloat16)])
def test_goes_on_from_a_checkpoint(shared, name, bits):
    shared(2).run(run_checkpoint, name, bits)


def run_torchs_checkpoint(world):
    """zero loads the states that DistributedDataParallel and its optimizer have saved, and the other way round."""
    judge, theirs, model, mine = pair(lambda: Network(16), "adamw", 3)
    for step in range(2):
        go_back(judge, theirs, step, world.rank)
        theirs.step()
        theirs.zero_grad()
    model.load_state_dict(judge.module.state_dict())
    mine.load_state_dict(theirs.state_dict())
    for step in range(2, 4):
        go_back(model, mine, step, world.rank)
        mine.step()
    state = mine.state_dict()
    judge.module.load_state_dict(model.state_dict())
    theirs.load_state_dict(state)
    for step in range(4, 6):
        for trained_, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(trained_, optimizer, step, world.rank)
            optimizer.step()
    agree(world, values(model), values(judge.module))


def test_takes_and_gives_torchs_checkpoints(shared):
    shared(2).run(run_torchs_checkpoint)


# ---- what else programs do ----
def run_other_gradients(world):
    """torch.autograd.grad, for inputs or parameters, brings the optimizer nothing; hooks of weights see gradients."""
    judge, theirs, model, mine = pair(lambda: Images(), "sgd", 3)
    seen = []
    for step in range(STEPS):
        for trained_, optimizer, layer in ((judge, theirs, judge.module.layers[5]), (model, mine, model.layers[5])):
            optimizer.zero_grad()
            images = ids_of(step, world.rank).float().requires_grad_()
            gradient, = torch.autograd.grad(loss_of(layer(images[:, :11 * 4 * 4 // 4].repeat(1, 4))), images)
            again, = torch.autograd.grad(loss_of(layer(torch.ones(1, 176))), layer.weight)
            handle = layer.weight.register_hook(lambda g: seen.append(g.clone()))
            loss_of(trained_(images.detach() + gradient.sign() + again.sum())).backward()
            handle.remove()
            optimizer.step()
        assert torch.equal(seen[-1], seen[-2])
        agree(world, values(model), values(judge.module))


def test_gradients_for_something_else(shared):
    shared(2).run(run_other_gradients)


def run_forgotten(world):
    """The model's zero_grad forgets gradients as the optimizer's does; clipping twice clips twice."""
    model, optimizer = trained(world, "sgd", 3)
    before = values(model)
    go_back(model, optimizer, 5, world.rank)
    model.zero_grad()
    optimizer.step()
    equal(world, values(model), before)
    go_back(model, optimizer, 5, world.rank)
    norm = optimizer.clip_grad_norm_(float("inf"))
    torch.testing.assert_close(optimizer.clip_grad_norm_(norm / 2), norm)
    torch.testing.assert_close(optimizer.clip_grad_norm_(norm / 4), norm / 2, rtol=1e-4, atol=0)
    with optimizer.no_sync(), optimizer.no_sync():
        pass
    optimizer.step()
    copied = copy.deepcopy(model)
    # zero does not handle a copy, so one rank may train it alone.
    if world.rank == 0:
        copied.load_state_dict(copied.state_dict())
        loss_of(copied(ids_of(1, 0))).backward()
        copied.zero_grad()
    dist.barrier()


def run_own_hooks(world, options):
    """Hooks that were there before compute with parameters: they see whole ones, also of a step that is ahead."""
    def make():
        torch.manual_seed(3)
        return nn.Sequential(*(nn.utils.weight_norm(nn.Linear(64, 64)) for _ in range(4)))
    judge, model = DistributedDataParallel(make()), make()
    theirs = torch.optim.SGD(judge.parameters(), lr=0.1)
    model, mine = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    for step in range(2 * STEPS):
        losses = []
        for trained_, optimizer in ((judge, theirs), (model, mine)):
            losses.append(loss_of(trained_(ids_of(step, world.rank).float() / 48)))
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        assert losses[0] == losses[1], step


@pytest.mark.parametrize("options", [{"stage": 2, "ahead": True}, {"hosts": "sharded"}])
def test_hooks_that_were_there_before(shared, options):
    shared(2).run(run_own_hooks, options)


def run_functions(world):
    """torch.func and forward-mode differentiation go through the model as if it were not sharded."""
    model, optimizer = trained(world, "sgd", 3)
    layer = model.blocks[0].inner[1]
    x = torch.ones(3, 16)
    assert torch.func.vmap(layer)(x).shape == (3, 32)
    assert torch.func.jacrev(layer)(x[0]).equal(layer.weight)
    assert torch.func.jvp(layer, (x,), (x,))[1].shape == (3, 32)
    with torch.autograd.forward_ad.dual_level():
        assert layer(torch.autograd.forward_ad.make_dual(x, x)).shape == (3, 32)
    ids = ids_of(1, 0)[:, :8]
    assert torch.func.vmap(model.embed)(ids).shape == (4, 8, 16)
    assert model.embed(ids.int()).requires_grad
    loss_of(model(ids.int())).backward()
    optimizer.step()
    again = pickle.loads(pickle.dumps(model))
    with optimizer.whole():
        assert torch.equal(values(again), values(model))
    loss_of(again(ids)).backward()
    assert all(p.grad is not None for p in again.parameters() if p.requires_grad)
    dist.barrier()


def test_functions_of_a_model_and_pickles(shared):
    shared(2).run(run_functions)


def run_user_hook(world):
    """A hook of the program on a weight sees its gradient."""
    model, seen = Network(16), []
    model.head.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    go_back(model, optimizer, 0, world.rank)
    assert len(seen) == 1 and seen[0].any()
    optimizer.step()


def test_hooks_of_weights(shared):
    shared(2).run(run_user_hook)


def run_probe(world):
    """torch's get_state_dict takes a step of zeros and forgets them: not the gradients that are there."""
    from torch.distributed.checkpoint.state_dict import get_state_dict
    (model, optimizer), (judge, theirs) = trained(world, "adamw", 3), trained(world, "adamw", 3)
    for trained_, taken in ((model, optimizer), (judge, theirs)):
        go_back(trained_, taken, 5, world.rank)
        if taken is optimizer:
            get_state_dict(model, optimizer)
        taken.step()
    equal(world, values(model), values(judge))
    model.zero_grad()
    go_back(model, optimizer, 6, world.rank)
    # This call is the program's own again, so it drops the gradients.
    optimizer.zero_grad()
    optimizer.step()
    equal(world, values(model), values(judge))


def test_torch_asks_for_a_state_before_a_step(shared):
    shared(2).run(run_probe)


def test_what_is_forgotten_and_copied(shared):
    shared(2).run(run_forgotten)


def run_dcp(world, folder):
    """torch.distributed.checkpoint names parameters, and takes a step of nothing first."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    model, optimizer = trained(world, "adamw", 3)
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.save(parts, checkpoint_id=folder)
    expected = goes_on(world, model, optimizer)
    other = Network(16)
    other, again = zero.shard(other, torch.optim.AdamW(other.parameters(), lr=3.0), stage=2)
    parts = dict(zip(("model", "optimizer"), get_state_dict(other, again)))
    dcp.load(parts, checkpoint_id=folder)
    set_state_dict(other, again, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])
    equal(world, goes_on(world, other, again), expected)


def test_torchs_distributed_checkpoint(shared, tmp_path):
    shared(2).run(run_dcp, str(tmp_path / "checkpoint"))


def run_logs_and_evaluates(world):
    """Between clipping and the step a rank may read, however slow it is; and load while others still evaluate."""
    model, optimizer = trained(world, "sgd", 3)
    kept = copy.deepcopy(model.state_dict())
    other = {name: torch.zeros_like(value) for name, value in kept.items()}
    for step in range(4):
        before = values(model)
        go_back(model, optimizer, step, world.rank)
        optimizer.clip_grad_norm_(1.0)
        time.sleep(0.02 * world.rank)
        assert torch.equal(values(model), before)
        optimizer.step()
    model.load_state_dict(kept)
    expected = model(ids_of(1, 0))
    for _ in range(4):
        time.sleep(0.02 * world.rank)
        assert torch.equal(model(ids_of(1, 0)), expected)
        model.load_state_dict(other)
        model.load_state_dict(kept)


def test_reads_beside_the_steps_of_others(shared):
    shared(2).run(run_logs_and_evaluates)


class Born(nn.Module):
    """A model of layers that have reset_parameters. One layer is not trained, and one has buffers."""

    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, 7))
        self.frozen = nn.Linear(7, 7).requires_grad_(False)

    def forward(self, ids):
        return self.frozen(self.layers(ids.float() / 48))


def run_born(world, stage):
    """A model on the meta device gets rank 0's first values, and trains as any."""
    torch.manual_seed(world.rank)
    with torch.device("meta"):
        model = Born()
    given = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, mine = zero.shard(model, given, stage=stage)
    assert not any(t.is_meta for t in (*model.parameters(), *model.buffers()))
    assert mine.param_groups[0]["params"][0] is model.layers[0].weight
    same_on_all_ranks(world, flat(model.state_dict().values()))
    assert 0.01 < model.layers[0].weight.std() < 1 and model.frozen.weight.std() > 0
    judge = Born()
    judge.load_state_dict(model.state_dict())
    judge = DistributedDataParallel(judge)
    theirs = torch.optim.SGD(judge.parameters(), lr=0.05, momentum=0.9)
    train_beside(world, judge, theirs, model, mine)


@pytest.mark.parametrize("stage", [2, 3])
def test_born_on_the_meta_device(shared, stage):
    shared(2).run(run_born, stage)


def run_unborn(world):
    """First values from a function; a module that can begin by itself in no way is refused on all ranks."""
    with torch.device("meta"):
        model = Network(16)
    given = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ValueError, match="a Network has tensors on the meta device and no reset_parameters"):
        zero.shard(model, given)

    def fill(module):
        for p in module.parameters(recurse=False):
            p.fill_(0.25)

    model, _ = zero.shard(model, given, init=fill)
    assert all((p == 0.25).all() for p in model.parameters()) and model.head.weight is model.embed.weight


def test_first_values_from_a_function(shared):
    shared(2).run(run_unborn)


def run_nested(world):
    """Units inside each other, a unit that is the model, and weights that two have."""
    model = Network(16)
    first, second, _ = model.blocks
    given = torch.optim.SGD(model.parameters(), lr=0.05)
    model, mine = zero.shard(model, given, units=[model, first, first.inner, first.inner[1], second, model.head])
    manager, names = mine._manager, {o.name: o.unit for o in mine._manager.managed}
    assert [type(module).__name__ for module in manager.modules] == ["Network", "Sequential", "Linear", "Residual",
                                                                     "Linear"]
    assert names["blocks.0.inner.1.weight"] == 2 and names["blocks.0.inner.3.weight"] == 1
    assert names["blocks.1.inner.1.weight"] == 3 and names["blocks.2.inner.1.weight"] == 0
    judge = DistributedDataParallel(Network(16))
    theirs = torch.optim.SGD(judge.parameters(), lr=0.05)
    train_beside(world, judge, theirs, model, mine)


def test_units_inside_each_other(shared):
    shared(2).run(run_nested)


def run_inner_lists(world):
    """Lists of lists: a unit without a forward of its own. And a scheduler that was made before."""
    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.layers = nn.ModuleList(nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64)]) for _ in range(3))

        def forward(self, ids):
            x = ids.float() / 48
            for first, second in self.layers:
                x = x + second(first(x).tanh())
            return x

    judge, model = DistributedDataParallel(Pairs()), Pairs()
    theirs = torch.optim.SGD(judge.parameters(), lr=0.1)
    given = torch.optim.SGD(model.parameters(), lr=0.1)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (theirs, given)]
    model, mine = zero.shard(model, given, stage=2, ahead=True)
    for step in range(STEPS):
        losses = []
        for trained_, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            losses.append(loss_of(trained_(ids_of(step, world.rank))))
            losses[-1].backward()
            optimizer.step()
        for schedule in schedules:
            schedule.step()
        assert not one_sum(world) or torch.equal(*losses)
    mine.wait()
    agree(world, values(model), values(judge.module))


def test_units_that_are_not_called(shared):
    shared(2).run(run_inner_lists)


def run_over_and_over(world):
    def mappings():
        gc.collect()
        with open("/proc/self/maps") as file:
            return sum("memfd" in line for line in file)

    counts = []
    for _ in range(6):
        trained(world, "adamw", 3)
        counts.append(mappings())
    return counts


def test_nothing_of_a_model_stays(shared):
    for counts in shared(2).run(run_over_and_over):
        assert counts[-1] <= counts[1] + 2, counts


def run_compiled(world, hosts):
    """Blocks that torch has compiled train as they would without."""
    model, other = Network(16), Network(16)
    for block in model.blocks:
        block.compile(backend="aot_eager")
    trained_ = [zero.shard(m, torch.optim.SGD(m.parameters(), lr=0.05), hosts=hosts) for m in (model, other)]
    for step in range(STEPS):
        for m, optimizer in trained_:
            go_back(m, optimizer, step, world.rank)
            optimizer.step()
    with trained_[0][1].whole(), trained_[1][1].whole():
        torch.testing.assert_close(values(model), values(other))
        same_on_all_ranks(world, values(model))


@pytest.mark.parametrize("hosts", ["shared", "sharded"])
def test_compiled_blocks(shared, hosts):
    shared(2).run(run_compiled, hosts)

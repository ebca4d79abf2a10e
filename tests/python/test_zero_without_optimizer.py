"""zero.shard(model) without an optimizer: gradients that stay in `grad`, and optimizers that the program makes
afterwards. Equal to DistributedDataParallel."""
import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from training import same_on_all_ranks
from test_zero_optimizers import Matrices, Together
from zero_training import STEPS, Fading, Network, Picky, agree, equal, ids_of, loss_of, refused, values

from torch_tutti import zero


def network():
    return Network(16)


def go_back(model, step, rank, turns=2):
    """Backward passes of one step; only the last one averages."""
    for turn in range(turns):
        quiet = model.no_sync if isinstance(model, DistributedDataParallel) else lambda: zero.no_sync(model)
        with quiet() if turn + 1 < turns else contextlib.nullcontext():
            loss_of(model(ids_of(step, rank, turn))).backward()


def gradients(model):
    return [p.grad for p in model.parameters() if p.grad is not None]


def run_averages(world, make, dtype):
    """Stage 0: whole gradients in grad, clipped by torch, and a loop that steps the parameters by hand."""
    judge = DistributedDataParallel(make().to(dtype), find_unused_parameters=True)
    model = make().to(dtype)
    if world.rank:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1)
    assert zero.shard(model, stage=0) is model
    equal(world, values(model), values(judge.module))
    for step in range(STEPS):
        for trained in (judge, model):
            go_back(trained, step, world.rank, 1 + step % 2)
            norm = nn.utils.clip_grad_norm_(trained.parameters(), 0.05)
            with torch.no_grad():
                for p in trained.parameters():
                    if p.grad is not None:
                        p.sub_(p.grad, alpha=0.1)
            if step != 2:               # then gradients add up
                trained.zero_grad()
        assert norm > 0
        agree(world, values(model), values(judge.module))
    with zero.whole(model), zero.edit(model), torch.no_grad():
        next(model.parameters()).add_(1 + world.rank)
    before = values(model)
    same_on_all_ranks(world, before)
    copied = copy.deepcopy(model)
    loss_of(copied(ids_of(step, world.rank))).backward()
    assert torch.equal(values(model), before) and not gradients(model)


@pytest.mark.parametrize("size, make, dtype", [(2, network, torch.float32), (3, Picky, torch.float32),
                                               (2, network, torch.float16)])
def test_stage_0_averages_as_ddp(shared, size, make, dtype):
    shared(size).run(run_averages, make, dtype)


def close(world, mine, judge):
    """Norms of gradients are summed in another order than in one process."""
    torch.testing.assert_close(mine, judge, rtol=2e-5, atol=2e-5)
    same_on_all_ranks(world, mine)


def run_late(world, make, kind, settings, options):
    """Stages 1 to 3: a torch optimizer that is made afterwards, its scheduler, hooks, closure and checkpoint."""
    judge = DistributedDataParallel(make(), find_unused_parameters=True)
    model = zero.shard(make(), **options)
    theirs, mine = kind(judge.parameters(), **settings), kind(model.parameters(), **settings)
    called = []
    mine.register_step_pre_hook(lambda *_: called.append([p.grad is None for p in model.parameters()]))
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8) for optimizer in (mine, theirs)]
    whole = options.get("gradients") == "whole"

    def read():
        with zero.whole(model):
            return values(model)
    for step in range(STEPS):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            go_back(trained, 90, world.rank, 1)         # gradients that are dropped
            optimizer.zero_grad()
            losses = []

            def closure():
                go_back(trained, step, world.rank, 1 + step % 2)
                nn.utils.clip_grad_norm_(trained.parameters(), 0.05)
                losses.append(step)
                return step
            if step == 3:
                assert optimizer.step(closure) == step and losses == [3]
            else:
                closure()
                if whole and trained is model:
                    torch.testing.assert_close(gradients(model), gradients(judge))
                optimizer.step()
        for schedule in schedules:
            schedule.step()
        close(world, read(), values(judge.module))
    # before the closure of step 3 there are no gradients
    assert [all(missing) for missing in called] == [step == 3 for step in range(STEPS)]
    own, torchs = mine.state_dict(), theirs.state_dict()
    assert own["state"].keys() == torchs["state"].keys()
    assert not mine.state, mine.state
    torch.testing.assert_close(own, torchs, rtol=2e-5, atol=2e-5)
    again = zero.shard(make(), **options)
    with zero.edit(again):
        if world.rank == 0:
            for p, q in zip(again.parameters(), judge.parameters()):
                p.detach().copy_(q.detach())
    goes_on = kind(again.parameters(), **settings)
    goes_on.load_state_dict(copy.deepcopy(torchs))
    for trained, optimizer in ((judge, theirs), (again, goes_on)):
        optimizer.zero_grad()
        go_back(trained, 7, world.rank)
        optimizer.step()
    model = again
    close(world, read(), values(judge.module))


ADAMW = torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}
MOMENTUM = torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}


@pytest.mark.parametrize("size, make, kind, settings, options", [
    (2, network, *ADAMW, {"stage": 3, "hosts": "sharded"}),
    (3, Picky, *MOMENTUM, {"stage": 2, "gradients": "whole"}),
    (2, network, *MOMENTUM, {"stage": 3, "hosts": "sharded", "gradients": "whole"}),
    (2, network, *MOMENTUM, {"stage": 3}),
    (2, Matrices, torch.optim.Adafactor, {"lr": 0.05}, {"stage": 2}),
    (2, Matrices, torch.optim.Muon, {"lr": 0.02}, {"stage": 3, "hosts": "sharded", "gradients": "whole"}),
])
def test_optimizers_that_are_made_afterwards(shared, size, make, kind, settings, options):
    shared(size).run(run_late, make, kind, settings, options)


def run_counted_steps(world):
    judge, model = DistributedDataParallel(network()), zero.shard(network(), stage=2)
    theirs, mine = (Fading(trained.parameters()) for trained in (judge, model))
    for step in range(3):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(trained, step, world.rank, 1)
            optimizer.step()
    agree(world, values(model), values(judge.module))
    assert mine.param_groups[0]["steps"] == 3


def test_steps_that_are_counted_in_groups(shared):
    shared(2).run(run_counted_steps)


def run_held(world, gradients, options):
    """Gradients of no_sync that zero_grad() drops before and after the first step, those that the next pass adds to,
    and those that a step takes alone: it averages them."""
    judge, model = DistributedDataParallel(network()), zero.shard(network(), gradients=gradients, **options)
    kind, settings = MOMENTUM
    both = [(each, kind(each.parameters(), **settings)) for each in (judge, model)]
    for step in range(3):
        for trained, optimizer in both:
            with trained.no_sync() if trained is judge else zero.no_sync(model):
                go_back(trained, 90, world.rank, 1)
            optimizer.zero_grad()
            go_back(trained, step, world.rank, 1 + step % 2)
            optimizer.step()
            optimizer.zero_grad()
        with zero.whole(model):
            close(world, values(model), values(judge.module))
    (_, theirs), (_, mine) = both
    with zero.no_sync(model):
        go_back(model, 7, world.rank, 1)
    mine.step()
    go_back(judge, 7, world.rank, 1)
    theirs.step()
    with zero.whole(model):
        close(world, values(model), values(judge.module))


@pytest.mark.parametrize("gradients, options", [("whole", {"stage": 2}), ("whole", {"stage": 3, "hosts": "sharded"}),
                                                ("shards", {"stage": 2})])
def test_gradients_of_no_sync(shared, gradients, options):
    shared(2).run(run_held, gradients, options)


def run_failed_pass(world, name, gradients):
    """An error ends the first backward pass, before an optimizer has stepped (random program 548). The gradients that
    the pass has made are not part of the first step."""
    judge, model = DistributedDataParallel(network()), zero.shard(network(), stage=2, gradients=gradients)
    hook = model.get_parameter(name).register_hook(lambda _: 1 / 0)
    refused(ZeroDivisionError, "division", lambda: go_back(model, 5, world.rank, 1))
    hook.remove()
    for trained in (judge, model):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        optimizer.zero_grad()
        go_back(trained, 0, world.rank, 1)
        optimizer.step()
    close(world, values(model), values(judge.module))


@pytest.mark.parametrize("name, gradients", [("scale", "whole"), ("scale", "shards"), ("embed.weight", "whole")])
def test_a_first_pass_that_fails(shared, name, gradients):
    shared(2).run(run_failed_pass, name, gradients)


def run_fused_and_scaled(world, gradients):
    """GradScaler leaves it to a fused optimizer to unscale gradients and to skip steps, also the first (random programs
    10162 and 20694)."""
    judge, model = DistributedDataParallel(network()), zero.shard(network(), stage=2, gradients=gradients)
    sides = [(trained, torch.optim.AdamW(trained.parameters(), lr=0.01, fused=True),
              torch.amp.GradScaler("cpu", init_scale=2.0 ** 10, growth_interval=1)) for trained in (judge, model)]
    for step in range(5):
        for trained, optimizer, scaler in sides:
            loss = loss_of(trained(ids_of(step, world.rank)))
            scaler.scale(loss * (float("inf") if (step, world.rank) in ((0, 1), (2, 1)) else 1.0)).backward()
            if step == 3:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        close(world, values(model), values(judge.module))


@pytest.mark.parametrize("gradients", ["whole", "shards"])
def test_fused_optimizers_with_grad_scaler(shared, gradients):
    shared(2).run(run_fused_and_scaled, gradients)


def run_outside(world):
    """The optimizer of trained parameters outside the model is refused, and another one becomes the model's."""
    model, outside = zero.shard(network(), stage=2), nn.Parameter(torch.ones(1))
    before = values(model)
    go_back(model, 0, world.rank, 1)
    refused(ValueError, "the SGD has trained parameters that are not in the model that zero.shard divided; make "
            "another optimizer for them", torch.optim.SGD([*model.parameters(), outside], lr=0.1).step)
    assert torch.equal(values(model), before)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not torch.equal(values(model), before)
    same_on_all_ranks(world, values(model))


def test_trained_parameters_outside_the_model(shared):
    shared(2).run(run_outside)


def sentences():
    torch.manual_seed(2)
    return nn.Sequential(nn.Embedding(48, 16), nn.LayerNorm(16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 48))


def run_beside_one_process(world, half):
    """Sharded parameters with whole gradients, beside one process that has the batches of all ranks."""
    judge, model = sentences(), zero.shard(sentences(), stage=3, hosts="sharded", gradients="whole")
    theirs, mine = (torch.optim.SGD(trained.parameters(), lr=0.1) for trained in (judge, model))
    for step in range(3):
        own = ids_of(step, world.rank)
        for trained, optimizer, ids in ((model, mine, own),
                                        (judge, theirs, torch.cat([ids_of(step, r) for r in range(world.size)]))):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16, enabled=half):
                found = trained(ids).float()
            nn.functional.cross_entropy(found.flatten(0, 1), ids.roll(1, 1).flatten()).backward()
            assert all(p.grad.shape == p.shape and p.grad.dtype == p.dtype for p in trained.parameters())
            if trained is model:
                same_on_all_ranks(world, torch.cat([p.grad.flatten() for p in model.parameters()]))
            optimizer.step()
        with zero.whole(model):
            tolerance = 1e-4 if half else 1e-6
            torch.testing.assert_close(values(model), values(judge), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("half", [False, True])
def test_steps_as_one_process_with_all_batches(shared, half):
    shared(2).run(run_beside_one_process, half)


def run_narrow_state(world, gradients):
    """An optimizer that has not stepped gets the float32 state of 16-bit parameters, and goes on as the saved one."""
    def make():
        model = zero.shard(network().bfloat16(), stage=2, gradients=gradients)
        return model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    (model, mine), (other, later) = make(), make()
    for step in range(3):
        go_back(model, step, world.rank, 1)
        mine.step()
        mine.zero_grad()
    state = mine.state_dict()
    other.load_state_dict(model.state_dict())
    later.load_state_dict(copy.deepcopy(state))
    assert later.state_dict()["state"].keys() == state["state"].keys()
    for trained, optimizer in ((model, mine), (other, later)):
        go_back(trained, 3, world.rank, 1)
        optimizer.step()
    torch.testing.assert_close(later.state_dict(), mine.state_dict(), rtol=0, atol=0)
    equal(world, values(other), values(model))


@pytest.mark.parametrize("gradients", ["shards", "whole"])
def test_states_of_16_bit_parameters_before_the_first_step(shared, gradients):
    shared(2).run(run_narrow_state, gradients)


class Reentrant(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return x


def run_refusals(world):
    model = zero.shard(Reentrant(), stage=2, gradients="whole")
    x = torch.ones(2, 16, requires_grad=True)
    refused(ValueError, r"take the step first, or .* zero.no_sync\(model\). .* with use_reentrant=False",
            lambda: model(x).sum().backward())
    model = zero.shard(network(), stage=2)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    go_back(model, 0, world.rank, 1)
    first.step()
    go_back(model, 0, world.rank, 1)
    refused(RuntimeError, "a second optimizer, SGD, steps parameters of a model", second.step)
    added = {"params": [nn.Parameter(torch.ones(1))]}
    refused(NotImplementedError, "a group cannot be added", lambda: first.add_param_group(added))
    first.step()
    same_on_all_ranks(world, values(model))
    matrix = zero.shard(nn.Linear(4, 4, bias=False), stage=1)
    together = Together(matrix.parameters(), lr=0.1)
    matrix(torch.ones(4)).sum().backward()
    refused(NotImplementedError, "Together looks at several parameters together", together.step)
    matrix.zero_grad()
    divided = zero.sharded(matrix.parameters(), torch.optim.SGD, lr=0.1)
    refused(ValueError, "needs a model of stage 0", divided.step)
    whole = zero.shard(network(), stage=2, gradients="whole")
    go_back(whole, 0, world.rank, 1)
    refused(ValueError, "take the step first", lambda: go_back(whole, 0, world.rank, 1))
    refused(ValueError, "'whole' without an optimizer", lambda: zero.shard(network(), first, gradients="whole"))
    refused(NotImplementedError, "pass the optimizer", lambda: zero.shard(network(), stage=0, precision="bf16"))
    model.new = nn.Parameter(torch.ones(1))
    go_back(model, 0, world.rank, 1)
    refused(RuntimeError, "parameter new was not trained .* set requires_grad before zero.shard", first.step)
    own = network()
    with torch.no_grad():
        own.scale.fill_(world.rank)
    zero.shard(own, stage=0, ignored=[own.scale])
    assert (own.scale == world.rank).all()
    refused(NotImplementedError, "state_directory= needs the optimizer", lambda: zero.shard(
        network(), stage=3, state_directory="."))
    averaged = zero.shard(network(), stage=0)
    refused(ValueError, "already sharded", lambda: zero.shard(averaged, stage=0))
    refused(ValueError, r"zero.no_sync: zero.shard was not called with this Network alone",
            lambda: zero.no_sync(network()))
    late = Network(16)
    late.scale.requires_grad = False
    zero.shard(late, stage=0)
    late.scale.requires_grad = True
    refused(RuntimeError, "parameter scale was not trained", lambda: go_back(late, 0, world.rank, 1))
    dist.barrier()


def test_refusals_without_optimizer(shared):
    shared(2).run(run_refusals)

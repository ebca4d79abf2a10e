"""Models that become ordinary again, and models whose trained parameters change: training goes on as with
DistributedDataParallel."""
from datetime import timedelta

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from training import same_on_all_ranks
from zero_training import OPTIMIZERS, Network, equal, go_back, pair, refused, trained, values

from torch_tutti import zero


def network():
    return Network(16)


def take_steps(world, steps, *models):
    for step in steps:
        for model, optimizer in models:
            optimizer.zero_grad()
            go_back(model, optimizer, step, world.rank)
            optimizer.step()


def whole_values(model, optimizer):
    with optimizer.whole():
        return values(model)


# ---- unshard ----
def run_unsharded(world, name, options):
    """After unshard the model and its optimizer train in DistributedDataParallel, with the scheduler of before."""
    judge, theirs, model, mine = pair(network, name, **options)
    parameters, calls = list(model.parameters()), []
    mine.register_step_post_hook(lambda optimizer, *_: calls.append(optimizer))
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) for optimizer in (theirs, mine)]
    take_steps(world, range(2), (judge, theirs), (model, mine))
    for scheduler in schedulers:
        scheduler.step()
    ordinary = mine.unshard()
    assert type(ordinary) is type(theirs) and ordinary.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]
    assert all(p is other for p, other in zip(parameters, model.parameters(), strict=True))
    assert not [each for each in vars(model) if each in ("zero_grad", "forward", "__deepcopy__")]
    same_on_all_ranks(world, values(model))
    take_steps(world, range(2, 4), (judge, theirs), (DistributedDataParallel(model), ordinary))
    assert calls[-1] is ordinary and len(calls) == 4
    assert model.scale.grad.norm() > 0
    torch.testing.assert_close(values(model), values(judge.module), rtol=1e-5, atol=1e-6)
    for key, state in theirs.state_dict()["state"].items():
        for kind, value in state.items():
            torch.testing.assert_close(ordinary.state_dict()["state"][key][kind], value, rtol=1e-4, atol=1e-6)
    text = "zero: this optimizer has ended by unshard.., .*; use the optimizer that unshard.. returned"
    for call in (mine.step, mine.zero_grad, mine.state_dict, mine.unshard, lambda: mine.clip_grad_norm_(1)):
        refused(RuntimeError, text, call)
    again, other = zero.shard(model, ordinary, stage=1)
    take_steps(world, range(4, 5), (judge, theirs), (again, other))
    torch.testing.assert_close(values(model), values(judge.module), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name, options", [
    ("adamw", {"stage": 3}), ("momentum", {"stage": 0, "ahead": True}), ("none", {"stage": 3, "hosts": "sharded"})])
def test_goes_on_in_ddp(shared, name, options):
    shared(2).run(run_unsharded, name, options)


def run_float32(world):
    """precision="bf16" ends with unshard: the parameters are the optimizer's float32 values."""
    model = network()
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=1e-4), stage=2, precision="bf16")
    take_steps(world, range(3), (model, optimizer))
    masters = [optimizer.state_dict()["state"][n]["master"] for n in range(len(list(model.parameters())))]
    rounded = values(model)
    ordinary = optimizer.unshard()
    for parameter, master in zip(model.parameters(), masters):
        assert parameter.dtype == torch.float32 and torch.equal(parameter, master)
    assert not torch.equal(values(model), rounded)
    take_steps(world, range(3, 4), (DistributedDataParallel(model), ordinary))


def test_float32_after_bfloat16(shared):
    shared(2).run(run_float32)


def run_refusals(world):
    model, optimizer = trained(world, "adamw", 2)
    go_back(model, optimizer, 4, world.rank)
    refused(RuntimeError, "optimizer.unshard.. between a backward pass and its step", optimizer.unshard)
    refused(RuntimeError, "optimizer.divide_again.. between a backward pass and its step", optimizer.divide_again)
    optimizer.zero_grad()
    refused(ValueError, "parameters that are not in the model",
            lambda: optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]}))
    optimizer.arrival_timeout = timedelta(milliseconds=300)
    if world.rank == 0:
        refused(RuntimeError, "optimizer.unshard.. is for all ranks, but after 0.3 s rank 0 had called",
                optimizer.unshard)
    optimizer.arrival_timeout = None
    ddp = DistributedDataParallel(network())
    wrapped = zero.wrap_ddp(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))
    refused(NotImplementedError, "unshard.. of a model that is in a DistributedDataParallel", wrapped.unshard)
    optimizer.unshard()


def test_what_is_refused(fresh):
    fresh(2, timeout_s=20).run(run_refusals)


# ---- parameters that are trained later ----
def run_narrow(world):
    """State stays in float32, whatever the type of the parameters is."""
    model = network().bfloat16()
    model.scale.requires_grad_(False)
    adamw = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    model, optimizer = zero.shard(model, adamw, stage=1)
    take_steps(world, range(3), (model, optimizer))
    before, rounded = optimizer.state_dict()["state"], values(model)
    optimizer.divide_again()
    torch.testing.assert_close(optimizer.state_dict()["state"], before, rtol=0, atol=0)
    model.scale.requires_grad_(True)
    optimizer.add_param_group({"params": [model.scale]})
    after = optimizer.state_dict()["state"]
    torch.testing.assert_close({number: after[number] for number in before}, before, rtol=0, atol=0)
    assert torch.equal(values(model), rounded)
    take_steps(world, range(3, 4), (model, optimizer))
    same_on_all_ranks(world, values(model))


def test_narrow_types_keep_float32_state(shared):
    shared(2).run(run_narrow)


class Coupled(torch.optim.SGD):
    """Divides the gradients by the mean over all parameters, if a group asks for it."""

    def step(self, closure=None):
        if any(group.get("couples") for group in self.param_groups):
            found = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            mean = torch.cat([gradient.abs().flatten() for gradient in found]).mean()
            for gradient in found:
                gradient.div_(mean)
        super().step()


def run_failed_division(world):
    """After a group that zero refuses the optimizer has ended, and the model can be divided with another one."""
    model = network()
    model.scale.requires_grad_(False)
    given = Coupled([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model, optimizer = zero.shard(model, given, stage=2)
    take_steps(world, range(2), (model, optimizer))
    before = values(model)
    model.scale.requires_grad_(True)
    refused(NotImplementedError, "Coupled looks at several parameters together",
            lambda: optimizer.add_param_group({"params": [model.scale], "couples": True}))
    for call in (optimizer.step, optimizer.zero_grad, optimizer.state_dict, optimizer.divide_again):
        refused(RuntimeError, "zero: this optimizer has ended by unshard.., or by an error in divide_again..; "
                ".* continue from a checkpoint", call)
    equal(world, values(model), before)
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), stage=2)
    take_steps(world, range(2, 3), (model, optimizer))
    assert not torch.equal(values(model), before)
    same_on_all_ranks(world, values(model))


def test_optimizer_ends_if_a_group_is_refused(shared):
    shared(2).run(run_failed_division)


def run_unfrozen(world, name, options):
    """Fine-tuning: first one block and the scale are trained, then all; then the scale no more."""
    kind, settings = OPTIMIZERS[name]

    def make():
        model = network()
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for parameter in (model.scale, *model.blocks[2].parameters()):
            parameter.requires_grad_(True)
        optimizer = kind([p for p in model.parameters() if p.requires_grad], **settings)
        return model, optimizer

    def unfreeze(model, optimizer):
        frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(True)
        return {"params": frozen, "lr": 0.02}
    (judged, theirs), (model, given) = make(), make()
    judge = DistributedDataParallel(judged)
    model, mine = zero.shard(model, given, **options)
    take_steps(world, range(2), (judge, theirs), (model, mine))
    theirs.add_param_group(unfreeze(judged, theirs))
    added = unfreeze(model, mine)
    refused(RuntimeError, "embed.weight was not trained when the model was sharded; call optimizer.divide_again",
            mine.step)
    mine.add_param_group(added)
    judge = DistributedDataParallel(judged)
    take_steps(world, range(2, 4), (judge, theirs), (model, mine))
    torch.testing.assert_close(whole_values(model, mine), values(judged), rtol=1e-5, atol=1e-6)
    for each in (judged, model):
        each.scale.requires_grad_(False)
    mine.divide_again()
    theirs.zero_grad()
    judge = DistributedDataParallel(judged)
    take_steps(world, range(4, 6), (judge, theirs), (model, mine))
    torch.testing.assert_close(whole_values(model, mine), values(judged), rtol=1e-5, atol=1e-6)
    state = mine.state_dict()
    for number, found in theirs.state_dict()["state"].items():
        for key, value in found.items() if number in state["state"] else ():
            torch.testing.assert_close(state["state"][number][key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name, options", [
    ("adamw", {"stage": 3}), ("momentum", {"stage": 1, "ahead": True}), ("none", {"stage": 3, "hosts": "sharded"})])
def test_trains_what_was_frozen(shared, name, options):
    shared(2).run(run_unfrozen, name, options)

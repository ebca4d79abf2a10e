"""Optimizers that look at whole tensors: zero finds them by trial, gives them whole parameters, and equals
DistributedDataParallel. It refuses those that look at several parameters together."""
import random

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import flat, same_on_all_ranks
from zero_training import Network, go_back, refused, step_rounded

from torch_tutti import zero
from torch_tutti._optimizer_trial import examine

STEPS = 4
STAGES = ({"stage": 0}, {"stage": 1}, {"stage": 2}, {"stage": 3}, {"stage": 3, "hosts": "sharded"})


class Lars(torch.optim.Optimizer):
    """You et al. 2017: a step is as long as the parameter, times a coefficient."""

    def __init__(self, params, lr=0.1, momentum=0.9, trust=0.02, weight_decay=1e-4):
        super().__init__(params, {"lr": lr, "momentum": momentum, "trust": trust, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    update = p.grad + group["weight_decay"] * p
                    update *= group["trust"] * p.norm() / (update.norm() + 1e-9)
                    state = self.state[p]
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = torch.zeros_like(p)
                    p.sub_(state["momentum_buffer"].mul_(group["momentum"]).add_(update), alpha=group["lr"])


class Lamb(torch.optim.Optimizer):
    """You et al. 2020, as it is usual: it clips the norm of all gradients, and counts the steps in its groups."""

    def __init__(self, params, lr=0.01, weight_decay=0.01, max_grad_norm=0.05):
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": weight_decay,
                                  "max_grad_norm": max_grad_norm})

    @torch.no_grad()
    def step(self, closure=None):
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        limit, scale = self.defaults["max_grad_norm"], 1.0
        if limit:
            scale = 1 / max(1.0, torch.stack([g.norm() for g in gradients]).norm().item() / limit)
        for group in self.param_groups:
            group["step"] = group.get("step", torch.zeros(())).add_(1)
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    if not state:
                        state.update(exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                    first = state["exp_avg"].lerp_(p.grad * scale, 1 - beta1) / (1 - beta1 ** group["step"])
                    second = state["exp_avg_sq"].lerp_((p.grad * scale) ** 2, 1 - beta2) / (1 - beta2 ** group["step"])
                    update = first / (second.sqrt() + 1e-6) + group["weight_decay"] * p
                    p.sub_(update, alpha=float(group["lr"] * p.norm() / update.norm()))


class Matrices(nn.Module):
    """A model whose parameters are matrices; one is not used. Ranks have parts of most: a slice has 1024 elements."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.embed = nn.Embedding(48, 40)
        self.layers = nn.ModuleList(nn.Linear(*sizes, bias=False) for sizes in ((40, 64), (64, 40), (3, 5)))
        self.out = nn.Linear(40, 30, bias=False)

    def forward(self, ids):
        return self.out(self.layers[1](self.layers[0](self.embed(ids)).tanh()))


# {name: (model, optimizer, options)}
CASES = {
    "lars": (lambda: Network(36), Lars, {}),
    "lamb": (lambda: Network(36), Lamb, {}),
    "adafactor": (lambda: Network(36), torch.optim.Adafactor, {"lr": 0.05, "weight_decay": 0.1}),
    "muon": (Matrices, torch.optim.Muon, {"lr": 0.02, "momentum": 0.9}),
}


def groups_of(model):
    """Two groups: vectors have no decay."""
    parameters = list(model.parameters())
    vectors = [p for p in parameters if p.dim() < 2]
    return [{"params": [p for p in parameters if p.dim() > 1]},
            *([{"params": vectors, "weight_decay": 0.0}] if vectors else [])]


def make(name, **options):
    """Returns a sharded model and its optimizer; without options, those of DistributedDataParallel."""
    build, kind, settings = CASES[name]
    model = build()
    optimizer = kind(groups_of(model), **settings)
    if options:
        return zero.shard(model, optimizer, **options)
    return DistributedDataParallel(model, find_unused_parameters=build is Matrices), optimizer


def train(world, model, optimizer, steps, schedule=True):
    """Trains, and returns the parameters as one vector."""
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)) if schedule else None
    for step in steps:
        optimizer.zero_grad()
        go_back(model, optimizer, step, world.rank)
        optimizer.step()
        if scheduler:
            scheduler.step()
    if isinstance(optimizer, zero.ZeroOptimizer):
        with optimizer.whole():
            return flat(p.detach().clone() for p in model.parameters())
    return flat(model.parameters())


def close(mine, judge):
    torch.testing.assert_close(mine, judge, rtol=1e-5, atol=2e-6)


def run_beside(world, name, stages):
    judge = train(world, *make(name), range(STEPS))
    for options in stages:
        mine = train(world, *make(name, **options), range(STEPS))
        close(mine, judge)
        same_on_all_ranks(world, mine)


@pytest.mark.parametrize("size, name", [(2, "lars"), (3, "adafactor"), (3, "lamb"), (4, "muon")])
@pytest.mark.one_host("DistributedDataParallel sums in another order over hosts, and Muon rounds to bfloat16")
def test_equals_ddp(shared, size, name):
    shared(size).run(run_beside, name, STAGES)


def run_bfloat16(world, name):
    """Whole parameters are the optimizer's float32 values."""
    model, optimizer = make(name, stage=3, precision="bf16")
    build, kind, settings = CASES[name]
    judge = build().bfloat16()
    kept = [torch.nn.Parameter(p.detach().clone()) for p in build().parameters()]
    theirs = kind([{**group, "params": [kept[i] for i, p in enumerate(judge.parameters())
                                        if any(p is q for q in group["params"])]} for group in groups_of(judge)],
                  **settings)
    for step in range(STEPS):
        go_back(model, optimizer, step, world.rank)
        optimizer.step()
        go_back(judge, optimizer, step, world.rank)
        step_rounded(world, judge, kept, theirs)
    torch.testing.assert_close(flat(model.parameters()), flat(judge.parameters()), rtol=2e-2, atol=2e-3)
    same_on_all_ranks(world, flat(model.parameters()))


def test_bfloat16_keeps_whole_float32_values(shared):
    shared(2).run(run_bfloat16, "lars")


# ---- checkpoints ----
def run_states(world, name):
    """DistributedDataParallel, then zero, then zero at other stages, then DistributedDataParallel again."""
    judge, theirs = make(name)
    model, optimizer = judge, theirs
    train(world, judge, theirs, range(2), schedule=False)
    for options in (STAGES[4], STAGES[1], STAGES[0], {}):
        state, values = optimizer.state_dict(), getattr(model, "module", model).state_dict()
        if isinstance(optimizer, zero.ZeroOptimizer):
            assert bool(optimizer.full_state_dict()) == (world.rank == 0)
        model, optimizer = make(name, **options)
        getattr(model, "module", model).load_state_dict(values)
        optimizer.load_state_dict(state)
        expected = train(world, judge, theirs, range(2, 4), schedule=False)
        close(train(world, model, optimizer, range(2, 4), schedule=False), expected)
    assert {index: {key: getattr(value, "shape", ()) for key, value in values.items()}
            for index, values in optimizer.state_dict()["state"].items()} == {
        index: {key: getattr(value, "shape", ()) for key, value in values.items()}
        for index, values in theirs.state_dict()["state"].items()}


@pytest.mark.parametrize("size, name", [(2, "adafactor"), (3, "lamb"), (3, "muon")])
def test_state_dict_there_and_back(shared, size, name):
    shared(size).run(run_states, name)


def train_alike(world, model, optimizer, steps):
    """Trains with the same batch on every rank."""
    for step in steps:
        optimizer.zero_grad()
        go_back(model, optimizer, step, 0)
        optimizer.step()
    with optimizer.whole():
        return flat(p.detach().clone() for p in model.parameters())


def run_write(world, folder, name, options):
    model, optimizer = make(name, **options)
    train_alike(world, model, optimizer, range(3))
    dcp.save({"training": optimizer.sharded_state()}, checkpoint_id=folder)
    return train_alike(world, model, optimizer, range(3, 5))


def run_read(world, folder, name, options):
    model, optimizer = make(name, **options)
    dcp.load({"training": optimizer.sharded_state()}, checkpoint_id=folder)
    return train_alike(world, model, optimizer, range(3, 5))


@pytest.mark.parametrize("name, writer, reader", [("adafactor", STAGES[4], STAGES[2]), ("lamb", STAGES[3], STAGES[0])])
def test_sharded_state_for_another_number_of_ranks(shared, tmp_path, name, writer, reader):
    written = shared(2).run(run_write, str(tmp_path / "saved"), name, writer)
    for later in shared(3).run(run_read, str(tmp_path / "saved"), name, reader):
        close(later, written[0])


# ---- the trial ----
class Together(torch.optim.SGD):
    """Divides the gradients by the mean over all parameters."""

    def step(self, closure=None):
        mean = torch.cat([p.grad.flatten().abs() for group in self.param_groups for p in group["params"]
                          if p.grad is not None]).mean()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.div_(mean)
        super().step()


class Projected(torch.optim.SGD):
    """Changes gradients that are orthogonal to their parameter, as AdamP does."""

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.dim() > 1 and torch.cosine_similarity(p.flatten(), p.grad.flatten(), 0).abs() < 1e-3 / p.numel():
                p.grad.mul_(0.9)
        super().step()


class Noisy(torch.optim.RMSprop):
    """Draws random numbers."""

    def step(self, closure=None):
        random.random()
        torch.rand(3)
        super().step()


class Wrapped(torch.optim.Optimizer):
    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        self.inner.step()


class Copying(torch.optim.Optimizer):
    """Steps copies of its parameters with another optimizer."""

    def __init__(self, params):
        super().__init__(params, {})
        self.copies = [p.detach().clone() for p in self.param_groups[0]["params"]]
        self.inner = torch.optim.SGD(self.copies, lr=0.1)

    @torch.no_grad()
    def step(self, closure=None):
        for p, copy in zip(self.param_groups[0]["params"], self.copies):
            copy.grad = None if p.grad is None else p.grad.clone()
        self.inner.step()
        for p, copy in zip(self.param_groups[0]["params"], self.copies):
            p.copy_(copy)


def found(kind, model=Network, width=12, **options):
    optimizer = kind(model(width).parameters(), **options)
    return tuple(examine(optimizer, optimizer.param_groups, "zero", "stop"))


@pytest.mark.parametrize("kind, options", [
    (torch.optim.RMSprop, {"momentum": 0.5}), (torch.optim.Adagrad, {}), (torch.optim.NAdam, {"weight_decay": 0.1}),
    (torch.optim.Rprop, {}), (torch.optim.ASGD, {}), (torch.optim.AdamW, {"amsgrad": True, "lr": torch.tensor(0.0)}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "lr": 0.0}),
])
def test_elementwise_optimizers_step_pieces(kind, options):
    assert found(kind, **options) == (True, None)


def test_whole_tensors_are_found():
    assert found(Lars, weight_decay=0.0, lr=0.0) == (False, None)
    assert found(Projected) == (False, None)
    assert found(Lamb) == (False, "max_grad_norm")
    assert found(Lamb, max_grad_norm=None) == (False, None)
    assert found(torch.optim.Adafactor, width=200) == (False, None)


def test_trial_disturbs_nothing():
    calls = []
    model = Network(8)
    optimizer = Noisy(model.parameters())
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    torch.manual_seed(3)
    random.seed(3)
    before = torch.get_rng_state(), random.getstate(), flat(model.parameters())
    examine(optimizer, optimizer.param_groups, "zero", "stop")
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert torch.equal(flat(model.parameters()), before[2])
    assert not calls and not optimizer.state and all(p.grad is None for p in model.parameters())


def test_trial_leaves_numbers_in_groups():
    optimizer = Lamb(Network(8).parameters())
    optimizer.param_groups[0]["step"] = torch.zeros(())
    examine(optimizer, optimizer.param_groups, "zero", "stop")
    assert optimizer.param_groups[0]["step"] == 0 and optimizer.defaults["max_grad_norm"] == 0.05


def run_wrapped(world):
    """Stage 0 refuses a wrapper that steps nothing itself, and takes one that does."""
    model = Network(12)
    refused(NotImplementedError, "Wrapped does not change the parameters of its param_groups .*; use "
            r"zero.shard\(model, stage=0\) without an optimizer",
            lambda: zero.shard(model, Wrapped(torch.optim.SGD(model.parameters())), stage=0))
    judge = DistributedDataParallel(Network(12))
    theirs, given = Copying(judge.parameters()), Copying(model.parameters())
    model, mine = zero.shard(model, given, stage=0)
    close(train(world, model, mine, range(2), schedule=False), train(world, judge, theirs, range(2), schedule=False))


def test_wrappers_in_stage_0(shared):
    shared(2).run(run_wrapped)


def run_refusals(world):
    def shard(kind, stage=3, **options):
        model = Network(12)
        return zero.shard(model, kind(model.parameters(), **options), stage=stage)
    refused(NotImplementedError, "Together looks at several parameters together, but a rank has only some of them; "
            "or use stage=0", lambda: shard(Together, lr=0.1))
    refused(NotImplementedError, "Wrapped does not change the parameters of its param_groups",
            lambda: shard(lambda parameters: Wrapped(torch.optim.SGD(parameters))))
    for stage in (0, 3):
        refused(NotImplementedError, "LBFGS computes the loss several times", lambda: shard(torch.optim.LBFGS, stage))
        refused(NotImplementedError, "SparseAdam needs sparse gradients", lambda: shard(torch.optim.SparseAdam, stage))
    model, optimizer = shard(Decaying)
    for group in optimizer.param_groups:
        group["adapts"] = True
    go_back(model, optimizer, 0, world.rank)
    refused(ValueError, "with them Decaying looks at other tensors", optimizer.step)
    dist.barrier()


class Decaying(Lars):
    """Looks at whole tensors only if asked to."""

    def __init__(self, params):
        super().__init__(params)
        self.param_groups[0]["adapts"] = False

    @torch.no_grad()
    def step(self, closure=None):
        if self.param_groups[0]["adapts"]:
            return super().step()
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.sub_(p.grad, alpha=0.1)
        return None


def test_what_is_refused(shared):
    shared(2).run(run_refusals)

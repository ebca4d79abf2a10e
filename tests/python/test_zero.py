"""zero.shard: the same training as DistributedDataParallel's, step by step, whatever is divided among the ranks."""
import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from ranks import hosts_of_job
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from training import flat, same_on_all_ranks

from torch_tutti import zero

STEPS = 5
ADAMW = (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1})
OPTIMIZERS = {
    "adamw": ADAMW,
    "adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "betas": (0.3, 0.9)}),
    "momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "sgd": (torch.optim.SGD, {"lr": 0.05}),
    "none": (torch.optim.RMSprop, {"lr": 0.001, "momentum": 0.5}),
}
ODD = ("momentum", "sgd", "none")       # torch's fused Adam rounds the last few elements of odd tensors otherwise


# ---- models ----
class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(),
                                   nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.inner(x)


class Network(nn.Module):
    """Blocks in a list, parameters of the model itself, weights that are used twice."""

    def __init__(self, width, blocks=3, checkpointed=False):
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Embedding(48, width)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(blocks))
        self.scale = nn.Parameter(torch.ones(width))
        self.head = nn.Linear(width, 48, bias=False)
        self.head.weight = self.embed.weight
        self.checkpointed = checkpointed

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x * self.scale)


class Picky(nn.Module):
    """Of its three experts a batch uses one; odd sizes; the last is never used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.experts = nn.ModuleList(nn.Linear(7, 13) for _ in range(3))
        self.out = nn.Linear(13, 5)

    def forward(self, ids):
        x = nn.functional.one_hot(ids[:, :1].squeeze(1) % 7, 7).float()
        return self.out(self.experts[int(ids[0, 0]) % 2](x).tanh())


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 11, 3), nn.ReLU(), nn.Flatten(),
                                    nn.Linear(11 * 4 * 4, 9))

    def forward(self, ids):
        return self.layers(ids.float().view(-1, 1, 8, 8) / 48)


def ids_of(step, rank, turn=0):
    generator = torch.Generator().manual_seed(7919 * step + 31 * turn + rank + 1)
    return torch.randint(48, (4, 64), generator=generator)


def loss_of(output):
    return output.float().square().mean()


# ---- training ----
def go_back(model, optimizer, step, rank, turns=1):
    for turn in range(turns):
        quiet = (optimizer if isinstance(optimizer, zero.ZeroOptimizer) else model).no_sync
        with quiet() if turn + 1 < turns else contextlib.nullcontext():
            loss_of(model(ids_of(step, rank, turn))).backward()


def fused(name):
    return {"fused": True} if name in ("adamw", "adam") else {}


def pair(make, name, stage, ddp={}, **options):
    kind, settings = OPTIMIZERS[name]
    judge = DistributedDataParallel(make(), **ddp)
    theirs = kind(judge.parameters(), **settings, **fused(name))
    model = make()
    model, mine = zero.shard(model, kind(model.parameters(), **settings), stage=stage, **options)
    return judge, theirs, model, mine


def values(model):
    return flat(model.parameters())


def equal(world, mine, judge):
    assert torch.equal(mine, judge), f"largest difference {(mine - judge).abs().max()}"
    same_on_all_ranks(world, mine)


def one_sum(world):
    """Where one host sums, DistributedDataParallel and zero add in the same order; over hosts in different ones."""
    return world.hosts == 1


def agree(world, mine, judge):
    if one_sum(world) or world.size == 2:
        equal(world, mine, judge)
    torch.testing.assert_close(mine, judge, rtol=2e-5, atol=2e-5)
    same_on_all_ranks(world, mine)


def run_as_ddp(world, name, stage, turns, ahead):
    judge, theirs, model, mine = pair(lambda: Network(16), name, stage, ahead=ahead)
    assert mine._rule == name
    for step in range(STEPS):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(trained, optimizer, step, world.rank, turns)
            optimizer.step()
        if not ahead:
            agree(world, values(model), values(judge.module))
    mine.wait()
    agree(world, values(model), values(judge.module))
    assert mine.report()["steps"] == STEPS


@pytest.mark.parametrize("size, name, stage, turns", [
    (1, "adamw", 3, 1), (2, "adamw", 1, 1), (2, "adamw", 2, 3), (2, "adamw", 3, 1), (2, "adam", 3, 2),
    (3, "momentum", 3, 1), (3, "adamw", 2, 1), (4, "adamw", 3, 2), (4, "sgd", 1, 1), (2, "none", 3, 1),
    (3, "none", 2, 2),
])
@pytest.mark.parametrize("ahead", [False, True])
def test_trains_as_ddp(shared, size, name, stage, turns, ahead):
    if stage == 3 and len(set(hosts := hosts_of_job(size))) > 1 and len(set(map(hosts.count, hosts))) > 1:
        pytest.skip("hosts have different numbers of ranks")
    shared(size).run(run_as_ddp, name, stage, turns, ahead)


def run_other_models(world, make, name, stage):
    """Parameters that some ranks do not use, or none; convolutions; weights computed twice."""
    judge, theirs, model, mine = pair(make, name, stage, ddp={"find_unused_parameters": True})
    for step in range(STEPS):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(trained, optimizer, step, world.rank)
            optimizer.step()
        agree(world, values(model), values(judge.module))


def checkpointed():
    return Network(16, checkpointed=True)


@pytest.mark.parametrize("make, name", [(Picky, "momentum"), (Images, "sgd"), (checkpointed, "adamw"), (Picky, "none")])
@pytest.mark.parametrize("stage", [2, 3])
def test_other_models(shared, make, name, stage):
    shared(2).run(run_other_models, make, name, stage)


def run_clipped(world):
    judge, theirs, model, mine = pair(lambda: Network(16), "sgd", 3)
    for step in range(STEPS):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(trained, optimizer, step, world.rank)
        norm = nn.utils.clip_grad_norm_(judge.parameters(), 0.01)
        torch.testing.assert_close(mine.clip_grad_norm_(0.01), norm)
        theirs.step()
        mine.step()
        torch.testing.assert_close(values(model), values(judge.module))
    same_on_all_ranks(world, values(model))


def test_gradients_are_clipped(shared):
    shared(2).run(run_clipped)


def run_scheduled(world):
    """Groups of parameters with rates of their own, which a scheduler changes; some are not trained."""
    def grouped(model):
        model.scale.requires_grad_(False)
        norms = [p for p in model.parameters() if p.dim() == 1]
        rest = [p for p in model.parameters() if p.dim() > 1]
        return torch.optim.AdamW([{"params": norms, "weight_decay": 0.0}, {"params": rest}], lr=0.02, fused=True)

    judge, model = Network(16), Network(16)
    theirs = grouped(judge)
    judge = DistributedDataParallel(judge)
    model, mine = zero.shard(model, grouped(model))
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 4) for o in (theirs, mine)]
    for step in range(STEPS):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(trained, optimizer, step, world.rank)
            optimizer.step()
        for schedule in schedules:
            schedule.step()
        agree(world, values(model), values(judge.module))


def test_groups_and_schedules(shared):
    shared(2).run(run_scheduled)


def run_bfloat16(world, stage):
    """The judge keeps float32 values beside the model's, and rounds after each step. Two ranks: a sum has one order."""
    judge, model = Network(16).bfloat16(), Network(16).bfloat16()
    kept = [p.detach().float().requires_grad_() for p in judge.parameters()]
    theirs = torch.optim.AdamW(kept, lr=0.01, weight_decay=0.1, fused=True)
    model, mine = zero.shard(model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1), stage=stage)
    for step in range(STEPS):
        loss_of(judge(ids_of(step, world.rank))).backward()
        go_back(model, mine, step, world.rank)
        for p, value in zip(judge.parameters(), kept):
            p.grad.mul_(1 / world.size)
            dist.all_reduce(p.grad)
            value.grad = p.grad.float()
            p.grad = None
        theirs.step()
        mine.step()
        with torch.no_grad():
            for p, value in zip(judge.parameters(), kept):
                p.copy_(value)
        equal(world, values(model), values(judge))


@pytest.mark.parametrize("stage", [2, 3])
def test_bfloat16_has_float32_values(shared, stage):
    shared(2).run(run_bfloat16, stage)


# ---- checkpoints ----
def trained(world, name, stage, bits=torch.float32):
    kind, settings = OPTIMIZERS[name]
    model = Network(16).to(bits)
    model, optimizer = zero.shard(model, kind(model.parameters(), **settings), stage=stage)
    for step in range(3):
        go_back(model, optimizer, step, world.rank)
        optimizer.step()
    return model, optimizer


def goes_on(world, model, optimizer):
    for step in range(3, 6):
        go_back(model, optimizer, step, world.rank)
        optimizer.step()
    return values(model)


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
    """What DistributedDataParallel and its optimizer have saved is loaded here, and the other way round."""
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


# ---- how much moves, and how much is kept ----
def run_report(world, stage):
    model, optimizer = trained(world, "adamw", stage)
    report, count = optimizer.report(), sum(p.numel() for p in model.parameters())
    shares, room = world.size // world.hosts, 4096 * 4 * world.size + 64 * 60     # whole pages, whole lines
    assert 4 * count / (shares if stage == 3 else 1) <= report["parameter_bytes"] <= 4 * count + room
    assert 8 * count / world.size <= report["state_bytes"] <= 8 * count / world.size + 2 * room
    assert report["sum_bytes"] >= 3 * 4 * count
    others = world.hosts - 1 if stage == 3 else world.size - 1
    slices = report["sum_bytes"] / world.size
    assert report["moved_bytes"] == others * slices             # of a slice for each other rank, in each step
    assert (report["moved_bytes"] == 0) == (stage == 3 and world.hosts == 1)


@pytest.mark.parametrize("stage", [2, 3])
def test_report_counts(shared, stage):
    shared(2).run(run_report, stage)


def run_pages(world):
    """With stage 3 the ranks of a host have parameters in the same pages: seen by writing to them."""
    model, optimizer = trained(world, "sgd", 3)
    weight = model.blocks[0].inner[1].weight
    dist.barrier()
    if world.rank == 0:
        with torch.no_grad():
            weight[0, 0] = 123.0
    dist.barrier()
    seen = weight[0, 0].item() == 123.0
    dist.barrier()
    model, optimizer = None, None
    return seen, weight[0, 0].item() == 123.0           # a parameter keeps its memory


@pytest.mark.one_host("what is shared is seen on one host")
def test_parameters_are_shared(fresh):
    assert fresh(2).run(run_pages) == [(True, True)] * 2


# ---- what goes wrong ----
def refused(error, text, call):
    with pytest.raises(error, match=text):
        call()


def run_refusals(world):
    model = Network(16)
    adam = torch.optim.AdamW(model.parameters())
    refused(ValueError, "stage 0; it can be 1, 2 or 3", lambda: zero.shard(model, adam, stage=0))
    refused(ValueError, "hosts='sharded' with stage 3", lambda: zero.shard(model, adam, hosts="sharded"))
    refused(ValueError, "backend for CPU tensors is gloo", lambda: zero.shard(model, adam, group=world.gloo))
    refused(ValueError, "no part of the model", lambda: zero.shard(model, adam, units=[nn.Linear(1, 1)]))
    some = torch.optim.AdamW([model.scale])
    refused(ValueError, "has not the parameter", lambda: zero.shard(model, some))
    more = torch.optim.AdamW([*model.parameters(), nn.Parameter(torch.ones(1))])
    refused(ValueError, "parameters that the model has not", lambda: zero.shard(model, more))
    wide = Network(16).double()
    refused(ValueError, "parameter scale is torch.float64",
            lambda: zero.shard(wide, torch.optim.AdamW(wide.parameters())))
    wide = Network(16)
    wide.scale.data = wide.scale.data.bfloat16()
    refused(ValueError, "a unit has one type", lambda: zero.shard(wide, torch.optim.AdamW(wide.parameters())))
    frozen = Network(16).requires_grad_(False)
    refused(ValueError, "no parameter that is trained",
            lambda: zero.shard(frozen, torch.optim.AdamW(frozen.parameters())))


def test_what_is_refused(shared):
    shared(2).run(run_refusals)


def run_other_model(world):
    model = Network(16 + 16 * world.rank)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(Exception, match="another model than some other rank") as raised:
        zero.shard(model, optimizer)
    assert type(raised.value).__name__ == "MismatchError"
    dist.barrier()


def test_ranks_with_other_models(shared):
    shared(2).run(run_other_model)


def run_changed(world):
    model, optimizer = trained(world, "sgd", 3)
    with torch.no_grad():
        model.scale.add_(1)
    refused(RuntimeError, "parameter scale was changed in place", optimizer.step)
    optimizer.restart()
    go_back(model, optimizer, 9, world.rank)
    optimizer.step()
    same_on_all_ranks(world, values(model))
    model.blocks[0].to(torch.float64)
    refused(RuntimeError, "blocks.0.inner.0.weight does not lie where zero.shard put it", optimizer.step)
    refused(NotImplementedError, "norm_type=1", lambda: optimizer.clip_grad_norm_(1.0, norm_type=1))
    refused(NotImplementedError, "cannot be added", lambda: optimizer.add_param_group({"params": []}))
    refused(ValueError, "groups of .2. parameters",
            lambda: optimizer.load_state_dict({"state": {}, "param_groups": [{"params": [0, 1]}]}))


def test_parameters_that_are_changed_by_others(shared):
    shared(2).run(run_changed)


def run_not_a_number(world):
    """What a step must not use is dropped by all, also when a rank has found it."""
    model, optimizer = trained(world, "sgd", 3)
    before = values(model)
    (loss_of(model(ids_of(7, world.rank))) * (float("nan") if world.rank == 1 else 1.0)).backward()
    refused(RuntimeError, "norm of the gradients is nan", lambda: optimizer.clip_grad_norm_(1, error_if_nonfinite=True))
    optimizer.zero_grad()
    equal(world, values(model), before)
    go_back(model, optimizer, 8, world.rank)
    optimizer.step()
    assert values(model).isfinite().all() and not torch.equal(values(model), before)
    same_on_all_ranks(world, values(model))


def test_gradients_that_are_no_numbers(shared):
    shared(2).run(run_not_a_number)


def run_stale_graph(world):
    """A graph kept over a step has other weights than it was made with: torch notices."""
    model, optimizer = trained(world, "sgd", 3)
    kept = loss_of(model(ids_of(7, world.rank)))
    go_back(model, optimizer, 8, world.rank)
    optimizer.step()
    refused(RuntimeError, "modified by an inplace operation", kept.backward)
    dist.barrier()


def test_a_graph_from_before_the_step(shared):
    shared(2).run(run_stale_graph)


def run_until_one_dies(world):
    model, optimizer = trained(world, "adamw", 3)
    if world.rank == 1:
        import os
        import signal
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(Exception, match="rank 1") as raised:
        go_back(model, optimizer, 7, world.rank)
        optimizer.step()
    return type(raised.value).__name__


def test_a_rank_that_dies(fresh):
    outcomes = fresh(2).outcomes(run_until_one_dies)
    assert outcomes[0].value == "PeerError" and outcomes[1].died is not None, outcomes

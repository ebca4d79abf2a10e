"""zero.shard: the same training as DistributedDataParallel's, step by step, whatever is divided among the ranks."""
import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from ranks import hosts_of_job
from torch.nn.parallel import DistributedDataParallel
from training import same_on_all_ranks
from zero_training import (STEPS, Images, Network, Picky, Words, agree, equal, go_back, ids_of, loss_of,
                           pair, step_rounded, train_beside, trained, values)

from torch_tutti import zero


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
    (3, "none", 2, 2), (2, "adamw", 0, 2), (3, "adam", 0, 1), (4, "none", 0, 1),
])
@pytest.mark.parametrize("ahead", [False, True])
def test_trains_as_ddp(shared, size, name, stage, turns, ahead):
    if stage == 3 and len(set(hosts := hosts_of_job(size))) > 1 and len(set(map(hosts.count, hosts))) > 1:
        pytest.skip("hosts have different numbers of ranks")
    shared(size).run(run_as_ddp, name, stage, turns, ahead)


def run_other_models(world, make, name, stage):
    """Parameters that some ranks do not use, or none; convolutions; weights computed twice."""
    judge, theirs, model, mine = pair(make, name, stage, ddp={"find_unused_parameters": True})
    train_beside(world, judge, theirs, model, mine)


def checkpointed():
    return Network(16, checkpointed=True)


@pytest.mark.parametrize("make, name", [(Picky, "momentum"), (Images, "sgd"), (checkpointed, "adamw"), (Picky, "none"),
                                        (Words, "momentum")])
@pytest.mark.parametrize("stage", [0, 2, 3])
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
        return torch.optim.AdamW([{"params": norms, "weight_decay": 0.0}, {"params": rest}], lr=0.02)

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


def network():
    return Network(16)


def run_bfloat16(world, make, stage):
    """The judge keeps float32 values beside the model's, and rounds after each step. Two ranks: a sum has one order."""
    judge, model = make().bfloat16(), make().bfloat16()
    kept = [p.detach().float().requires_grad_() for p in judge.parameters()]
    theirs = torch.optim.AdamW(kept, lr=0.01, weight_decay=0.1)
    model, mine = zero.shard(model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1), stage=stage)
    for step in range(STEPS):
        loss_of(judge(ids_of(step, world.rank))).backward()
        go_back(model, mine, step, world.rank)
        step_rounded(world, judge, kept, theirs)
        mine.step()
        equal(world, values(model), values(judge))


def run_precision(world, stage):
    """A float32 model asked to be bfloat16: the float32 values that it had are kept."""
    judge, model = Images().layers.bfloat16(), Images().layers
    kept = [p.detach().clone().requires_grad_() for p in model.parameters()]
    with torch.no_grad():
        for p in model.parameters() if world.rank else ():
            # zero.shard takes the values of rank 0.
            p.zero_()
    theirs = torch.optim.SGD(kept, lr=0.05, momentum=0.9)
    given = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, mine = zero.shard(model, given, stage=stage, precision="bf16")
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    for step in range(STEPS):
        images = ids_of(step, world.rank).float().view(-1, 1, 8, 8) / 48
        loss_of(judge(images.bfloat16())).backward()
        loss_of(model(images)).backward()
        step_rounded(world, judge, kept, theirs)
        mine.step()
        equal(world, values(model), values(judge))


@pytest.mark.parametrize("stage", [2, 3])
def test_precision_keeps_float32_values(shared, stage):
    shared(2).run(run_precision, stage)


@pytest.mark.parametrize("make, stage", [(network, 2), (network, 3), (Words, 3)])
def test_bfloat16_has_float32_values(shared, make, stage):
    shared(2).run(run_bfloat16, make, stage)


# ---- how much moves, and how much is kept ----
def run_report(world, stage):
    model, optimizer = trained(world, "adamw", stage)
    report, count = optimizer.report(), sum(p.numel() for p in model.parameters())
    shares, room = world.size // world.hosts, 4096 * 4 * world.size + 64 * 60     # whole pages, whole lines
    assert 4 * count / (shares if stage == 3 else 1) <= report["parameter_bytes"] <= 4 * count + room
    kept = 8 * count / (world.size if stage else 1)
    assert kept <= report["state_bytes"] <= kept + 2 * room
    assert report["sum_bytes"] >= 3 * 4 * count
    if not stage:
        assert report["moved_bytes"] == 0
        return
    others = world.hosts - 1 if stage == 3 else world.size - 1
    slices = report["sum_bytes"] / world.size
    assert report["moved_bytes"] == others * slices             # of a slice for each other rank, in each step
    assert (report["moved_bytes"] == 0) == (stage == 3 and world.hosts == 1)


@pytest.mark.parametrize("stage", [0, 2, 3])
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

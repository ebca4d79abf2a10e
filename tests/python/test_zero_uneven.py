"""Ranks with different numbers of batches: a block of join() ends as that of DistributedDataParallel; without it the
error names the rank that had fewer."""
import contextlib
from datetime import timedelta

import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from training import same_on_all_ranks
from zero_training import Network, go_back, pair, refused, values

from torch_tutti import zero


def network():
    return Network(16)


def run_uneven(world, name, divides_by_all, options):
    judge, theirs, model, mine = pair(network, name, **options)
    for each, optimizer in ((judge, theirs), (model, mine)):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
        with (judge if each is judge else mine).join(divides_by_all):
            for step in range(2 + 2 * world.rank):
                optimizer.zero_grad()
                go_back(each, optimizer, step, world.rank)
                if each is model:
                    mine.clip_grad_norm_(0.05)
                else:
                    clip_grad_norm_(judge.parameters(), 0.05)
                optimizer.step()
                scheduler.step()
    mine.wait()
    torch.testing.assert_close(values(model), values(judge.module), rtol=1e-5, atol=1e-6)
    same_on_all_ranks(world, values(model))
    assert mine.report()["steps"] == 2 + 2 * (world.size - 1)
    mine.zero_grad()
    go_back(model, mine, 9, world.rank)                             # all ranks go on together
    mine.step()
    mine.wait()
    same_on_all_ranks(world, values(model))


@pytest.mark.parametrize("size, name, divides_by_all, options", [
    (3, "adamw", True, {"stage": 1}), (2, "momentum", False, {"stage": 0, "ahead": True}),
    (2, "none", True, {"stage": 3})])
def test_ends_as_ddp(shared, size, name, divides_by_all, options):
    shared(size).run(run_uneven, name, divides_by_all, options)


def run_refused(world):
    model = network()
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), hosts="sharded")
    refused(NotImplementedError, "join.. with sharded parameters", lambda: optimizer.join().__enter__())
    model = network()
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), stage=1)
    with pytest.raises(RuntimeError, match="the ranks make different calls: rank 0 step, rank 1 clip_grad_norm_"):
        with optimizer.join():
            go_back(model, optimizer, 0, world.rank)
            (optimizer.clip_grad_norm_(1) if world.rank else optimizer.step())


def test_what_is_refused(fresh):
    fresh(2, timeout_s=20).run(run_refused)


def run_fewer(world):
    """Without join() the error names the rank that may have had fewer batches."""
    model = network()
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), stage=2)
    with contextlib.ExitStack() as stack:
        for step in range(2 + world.rank):
            if step == 2:
                stack.enter_context(pytest.raises(Exception, match="If rank 0 had fewer batches, put the loop into "
                                                                   "`with optimizer.join..:` on all ranks"))
            optimizer.zero_grad()
            go_back(model, optimizer, step, world.rank)
            optimizer.step()
    if world.rank == 1:
        world.store.set("has ended", "1")
    world.store.wait(["has ended"], timedelta(seconds=20))


def test_names_the_rank_with_fewer_batches(fresh):
    fresh(2, timeout_s=1).run(run_fewer)

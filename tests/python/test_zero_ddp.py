"""zero.wrap_ddp: a program of DistributedDataParallel goes on as it was, to the bit, at each stage."""
import copy

import pytest
import torch
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from training import flat, same_on_all_ranks
from zero_training import (OPTIMIZERS, STEPS, Network, Picky, agree, go_back, ids_of, loss_of, refused, values)

from torch_tutti import zero


class Normed(nn.Module):
    """Its running means are buffers, which DistributedDataParallel takes from rank 0."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.layers = nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 4))

    def forward(self, ids):
        return self.layers(ids.float() / 48)


def run_wrapped(world, make, name, stage, turns, ddp, options):
    kind, settings = OPTIMIZERS[name]
    judge, wrapped = DistributedDataParallel(make(), **ddp), DistributedDataParallel(make(), **ddp)
    theirs = kind(judge.parameters(), **settings)
    mine = zero.wrap_ddp(wrapped, kind(wrapped.parameters(), **settings), stage=stage, **options)
    assert isinstance(mine, zero.ZeroOptimizer)
    for step in range(STEPS):
        for model, optimizer in ((judge, theirs), (wrapped, mine)):
            optimizer.zero_grad()
            for turn in range(turns - 1):
                with model.no_sync():
                    loss_of(model(ids_of(step, world.rank, turn))).backward()
            loss_of(model(ids_of(step, world.rank, turns - 1))).backward()
            optimizer.step()
        mine.wait()
        with mine.whole():
            agree(world, values(wrapped.module), values(judge.module))
        torch.testing.assert_close(flat(b.float() for b in [*wrapped.module.buffers(), torch.zeros(1)]),
                                   flat(b.float() for b in [*judge.module.buffers(), torch.zeros(1)]))
    assert mine.report()["sum_bytes"] > 0
    assert wrapped.state_dict().keys() == judge.state_dict().keys()


def network():
    return Network(16)


@pytest.mark.parametrize("size, make, name, stage, turns, ddp, options", [
    (2, network, "adamw", 0, 1, {}, {}),
    (2, network, "adamw", 0, 1, {}, {"ahead": True}),
    (4, network, "sgd", 0, 2, {"gradient_as_bucket_view": True}, {}),
    (2, network, "adamw", 1, 1, {"static_graph": True}, {"ahead": True}),
    (2, network, "adamw", 3, 1, {"find_unused_parameters": True}, {}),
    (2, network, "momentum", 3, 2, {}, {"hosts": "sharded"}),
    (2, Picky, "sgd", 0, 1, {"find_unused_parameters": True}, {}),
    (2, Normed, "sgd", 0, 1, {}, {}),
    (2, Normed, "sgd", 2, 1, {"broadcast_buffers": False}, {}),
    (3, Picky, "none", 2, 1, {"find_unused_parameters": True}, {}),
])
def test_goes_on_as_ddp(shared, size, make, name, stage, turns, ddp, options):
    shared(size).run(run_wrapped, make, name, stage, turns, ddp, options)


class Remembers(nn.Module):
    """A model whose output depends on a buffer that its forward pass changes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.layer = nn.Linear(64, 10)
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, ids):
        out = self.layer(ids.float() / 48)
        self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
        return out - self.mean


def run_buffers(world):
    """Buffers of rank 0 reach the other ranks when DistributedDataParallel sends them: not within no_sync, and not in
    evaluations, of which ranks may make different numbers."""
    losses = {}
    for ours in (False, True):
        ddp = DistributedDataParallel(Remembers())
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        optimizer = zero.wrap_ddp(ddp, optimizer) if ours else optimizer
        found = losses[ours] = []
        for step in range(3):
            with ddp.no_sync():
                for turn in range(2):
                    found.append(loss_of(ddp(ids_of(step, world.rank, turn))))
                    found[-1].backward()
            found.append(loss_of(ddp(ids_of(step, world.rank, 2))))
            found[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for turn in range(world.rank + 1):
                    found.append(loss_of(ddp(ids_of(step, world.rank, 3 + turn))))
    assert torch.equal(torch.stack(losses[True]), torch.stack(losses[False]))


def test_buffers_follow(shared):
    shared(2).run(run_buffers)


def run_programs(world):
    """A pass without a backward before, gradients that are dropped, torch's clipping, a copy that trains."""
    judge, wrapped = (DistributedDataParallel(network()) for _ in range(2))
    for model in (judge, wrapped):
        model(ids_of(7, world.rank))
    theirs, mine = torch.optim.SGD(judge.parameters(), lr=0.1), torch.optim.SGD(wrapped.parameters(), lr=0.1)
    mine = zero.wrap_ddp(wrapped, mine, stage=2)
    for step in range(3):
        for model, optimizer in ((judge, theirs), (wrapped, mine)):
            loss_of(model(ids_of(9, world.rank))).backward()
            model.zero_grad()
            loss_of(model(ids_of(step, world.rank))).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            assert norm > 0.5
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(values(wrapped), values(judge))
    assert torch.nn.utils.clip_grad_norm_(network().parameters(), 1.0) == 0
    before, copied = values(wrapped), copy.deepcopy(wrapped)
    again = torch.optim.SGD(copied.parameters(), lr=0.1)
    loss_of(copied(ids_of(5, world.rank))).backward()
    again.step()
    same_on_all_ranks(world, values(copied))
    assert not torch.equal(values(copied), before) and torch.equal(values(wrapped), before)
    loss_of(wrapped(ids_of(5, world.rank))).backward()
    mine.step()
    agree(world, values(wrapped), values(copied))


def test_what_programs_do_with_it(shared):
    shared(2).run(run_programs)


def run_refusals(world):
    ddp = DistributedDataParallel(network())
    adam = torch.optim.AdamW(ddp.parameters())
    refused(ValueError, "use zero.wrap_ddp", lambda: zero.shard(ddp, adam))
    refused(ValueError, "a Network is not a DistributedDataParallel", lambda: zero.wrap_ddp(network(), adam))
    hooked = DistributedDataParallel(network())
    hooked.register_comm_hook(None, default_hooks.fp16_compress_hook)
    refused(ValueError, "has a communication hook", lambda: zero.wrap_ddp(hooked, adam))
    optimizer = zero.wrap_ddp(ddp, adam)
    refused(NotImplementedError, "zero handles the gradients",
            lambda: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook))
    refused(NotImplementedError, "zero handles the gradients", ddp._set_static_graph)
    with pytest.raises(NotImplementedError, match="zero handles the gradients"), Join([ddp]):
        pass
    refused(ValueError, "is already sharded", lambda: zero.wrap_ddp(ddp, adam))
    go_back(ddp.module, optimizer, 0, world.rank)
    optimizer.step()


def test_what_cannot_be_wrapped(shared):
    shared(2).run(run_refusals)

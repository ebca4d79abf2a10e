"""zero.wrap_ddp: a program of DistributedDataParallel goes on as it was, to the bit, at each stage."""
import pytest
import torch
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from training import flat
from zero_training import (OPTIMIZERS, STEPS, Network, Picky, agree, fused, go_back, ids_of, loss_of, refused, values)

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
    theirs = kind(judge.parameters(), **settings, **fused(name))
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


def run_refusals(world):
    ddp = DistributedDataParallel(network())
    adam = torch.optim.AdamW(ddp.parameters())
    refused(ValueError, "use zero.wrap_ddp", lambda: zero.shard(ddp, adam))
    refused(ValueError, "a Network is no DistributedDataParallel", lambda: zero.wrap_ddp(network(), adam))
    hooked = DistributedDataParallel(network())
    hooked.register_comm_hook(None, default_hooks.fp16_compress_hook)
    refused(ValueError, "has a hook of communication", lambda: zero.wrap_ddp(hooked, adam))
    optimizer = zero.wrap_ddp(ddp, adam)
    refused(NotImplementedError, "are zero's", lambda: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook))
    with pytest.raises(NotImplementedError, match="are zero's"), Join([ddp]):
        pass
    refused(ValueError, "is sharded already", lambda: zero.wrap_ddp(ddp, adam))
    go_back(ddp.module, optimizer, 0, world.rank)
    optimizer.step()


def test_what_cannot_be_wrapped(shared):
    shared(2).run(run_refusals)

"""Models whose training shows whether parts on different ranks are put together correctly, and functions that train
them, with zero.shard and with DistributedDataParallel beside it."""
import contextlib

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
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


class Fading(torch.optim.Optimizer):
    """An optimizer whose rate falls with the number of steps. It counts them in its groups, as some classes of other
    libraries do."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "steps": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"] / group["steps"])


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
    """A model of three experts with odd sizes. A batch uses the first or the second one; the third is never used.
    dtype: of the parameters."""
    dtype = torch.float32

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.experts = nn.ModuleList(nn.Linear(7, 13) for _ in range(3))
        self.out = nn.Linear(13, 5)

    def forward(self, ids):
        x = nn.functional.one_hot(ids[:, :1].squeeze(1) % 7, 7).to(self.dtype)
        return self.out(self.experts[int(ids[0, 0]) % 2](x).tanh())


class Words(nn.Module):
    """Embeddings: `words` is looked up twice, has a row that is not trained, and most of its rows do not occur. torch
    computes the gradient of `common`, because of scale_grad_by_freq."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(9)
        self.words, self.places = nn.Embedding(500, 12, padding_idx=-498), nn.Embedding(64, 12)
        self.common = nn.Embedding(48, 12, scale_grad_by_freq=True)
        self.out = nn.Linear(12, 500, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids):
        places = self.places(torch.arange(64))
        x = self.words(ids) + self.words(ids.flip(0) % 5) + places + self.common(ids)
        return self.out(x * self.places(ids % 7))


class Images(nn.Module):
    """Convolutions. dtype: of the parameters."""
    dtype = torch.float32

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 11, 3), nn.ReLU(), nn.Flatten(),
                                    nn.Linear(11 * 4 * 4, 9))

    def forward(self, ids):
        return self.layers((ids.float().view(-1, 1, 8, 8) / 48).to(self.dtype))


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


def pair(make, name, stage, ddp={}, **options):
    kind, settings = OPTIMIZERS[name]
    judge = DistributedDataParallel(make(), **ddp)
    theirs = kind(judge.parameters(), **settings)
    model = make()
    model, mine = zero.shard(model, kind(model.parameters(), **settings), stage=stage, **options)
    return judge, theirs, model, mine


def values(model):
    return flat(model.parameters())


def equal(world, mine, judge):
    assert torch.equal(mine, judge), f"largest difference {(mine - judge).abs().max()}"
    same_on_all_ranks(world, mine)


def one_sum(world):
    """Returns whether DistributedDataParallel and zero add in the same order: on one host they do, over hosts they do
    not."""
    return world.hosts == 1


def agree(world, mine, judge):
    if one_sum(world) or world.size == 2:
        equal(world, mine, judge)
    torch.testing.assert_close(mine, judge, rtol=2e-5, atol=2e-5)
    same_on_all_ranks(world, mine)


def train_beside(world, judge, theirs, model, mine, context=contextlib.nullcontext,
                 read=lambda model, _: values(model)):
    """Trains both models, and checks after each step that they have the same parameters. context: of each forward and
    backward pass. read: returns the parameters of a model and its optimizer."""
    for step in range(STEPS):
        for trained_, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            with context():
                go_back(trained_, optimizer, step, world.rank)
            optimizer.step()
        agree(world, read(model, mine), values(judge.module))


def step_rounded(world, judge, kept, optimizer):
    """A bfloat16 model takes the step of float32 values that are kept beside it, and rounds them."""
    for p, value in zip(judge.parameters(), kept):
        p.grad.mul_(1 / world.size)
        dist.all_reduce(p.grad)
        value.grad = p.grad.float()
        p.grad = None
    optimizer.step()
    with torch.no_grad():
        for p, value in zip(judge.parameters(), kept):
            p.copy_(value)


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


def refused(error, text, call):
    with pytest.raises(error, match=text):
        call()

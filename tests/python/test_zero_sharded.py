"""zero.shard with hosts="sharded": parameters are whole only while they are used, and training is the same."""
import copy
import functools
import io
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.checkpoint import checkpoint
from training import same_on_all_ranks
from zero_training import (ADAMW, STEPS, Images, Network, Picky, agree, go_back, ids_of, loss_of, pair, refused,
                           values)

from torch_tutti import zero
from torch_tutti.exceptions import MismatchError


def whole_values(model, optimizer):
    with optimizer.whole():
        return values(model)


class Segments(Network):
    """Checkpointed over several units at once."""
    reentrant = False

    def forward(self, ids):
        x = self.embed(ids)
        x = checkpoint(lambda y: self.blocks[1](self.blocks[0](y)), x, use_reentrant=self.reentrant)
        return self.head(self.blocks[2](x) * self.scale)


class Reentrant(Segments):
    reentrant = True


class Nested(nn.Module):
    """Units inside a unit, which uses parameters of its own before and after them."""

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
            self.inner = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

        def forward(self, x):
            x = self.first(x).tanh()
            return self.last(self.inner[0](x).sin() + self.inner[1](x)), x      # side by side

    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.layers = nn.ModuleList(self.Outer() for _ in range(2))

    def forward(self, ids):
        x = nn.functional.one_hot(ids[:, :1].squeeze(1) % 16, 16).float()
        for layer in self.layers:
            x, before = layer(x)
            x = x + before
        return x


def checkpointed():
    return Network(16, checkpointed=True)


MODELS = {"network": lambda: Network(16), "images": Images, "checkpointed": checkpointed, "nested": Nested,
          "segments": lambda: Segments(16), "reentrant": lambda: Reentrant(16)}


def run_as_ddp(world, make, name, turns, options):
    judge, theirs, model, mine = pair(MODELS[make], name, 3, hosts="sharded", **options)
    assert mine.report()["hosts"] == "sharded"
    for step in range(STEPS):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            go_back(trained, optimizer, step, world.rank, turns)
            optimizer.step()
        agree(world, whole_values(model, mine), values(judge.module))
        # Parameters that are not whole read as NaN, so that programs do not take them for values.
        assert values(model).isnan().any()


@pytest.mark.parametrize("size, make, name, turns, options", [
    (1, "network", "adamw", 1, {}), (2, "network", "adamw", 1, {"prefetch": 0}), (2, "network", "adam", 3, {}),
    (3, "network", "momentum", 1, {"prefetch": 2}), (4, "network", "adamw", 2, {}), (2, "network", "none", 2, {}),
    (2, "network", "sgd", 1, {"reshard": False}), (2, "images", "sgd", 1, {}), (2, "checkpointed", "adamw", 1, {}),
    (2, "segments", "adamw", 2, {}), (2, "reentrant", "adamw", 1, {}), (2, "nested", "sgd", 2, {}),
])
def test_trains_as_ddp(shared, size, make, name, turns, options):
    shared(size).run(run_as_ddp, make, name, turns, options)


def train(model, optimizer, steps, rank):
    for step in steps:
        go_back(model, optimizer, step, rank)
        optimizer.step()


def run_counts(world):
    """Each unit is gathered for the forward pass, and for the backward pass but the last two, which are there. Memory:
    a rank's part, and what is whole at a time, two units."""
    torch.manual_seed(9)
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(8)))
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.01), hosts="sharded")
    moved, unforeseen = [0], [0]
    for step in range(5):
        model(torch.randn(4, 128)).sum().backward()
        optimizer.step()
        report = optimizer.report()
        moved.append(report["moved_bytes"])
        unforeseen.append(report["unforeseen"])
    unit = report["sum_bytes"] / 5 / 8
    assert moved[5] - moved[4] == (8 + 8 - 2) * unit * (world.size - 1) / world.size
    assert unforeseen[5] == unforeseen[2]
    assert report["parameter_bytes"] == 8 * unit / world.size + 2 * unit


def test_gathers_what_it_must(shared):
    shared(2).run(run_counts)


def run_evaluates(world):
    """Between steps all ranks evaluate, read, copy, save; training goes on as without."""
    judge, theirs, model, mine = pair(lambda: Network(16), "adamw", 3, hosts="sharded")
    for step in range(STEPS):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            go_back(trained, optimizer, step, world.rank)
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            assert torch.equal(model.eval()(ids_of(step, 9)), judge(ids_of(step, 9))) or world.hosts > 1
            model.train()
        state, theirs_state = model.state_dict(), judge.module.state_dict()
        assert list(state) == list(theirs_state)
        for name, value in state.items():
            torch.testing.assert_close(value, theirs_state[name], rtol=2e-5, atol=2e-5)
        part = model.blocks[1].state_dict()             # of a part of it as well
        assert not any(value.isnan().any() for value in part.values())
    with mine.edit():
        with torch.no_grad():
            for p in model.parameters() if world.rank == 0 else ():
                p.fill_(0.25)
    assert (whole_values(model, mine) == 0.25).all()


def test_evaluation_and_state_dicts(shared):
    shared(2).run(run_evaluates)


def run_checkpoint(world):
    """Written by sharded ranks, read by shared ones and the other way round."""
    kind, settings = ADAMW
    files, ends = {}, {}
    for hosts in ("sharded", "shared"):
        model = Network(16)
        model, optimizer = zero.shard(model, kind(model.parameters(), **settings), hosts=hosts)
        train(model, optimizer, range(3), world.rank)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file := io.BytesIO())
        files[hosts] = file.getvalue()
        train(model, optimizer, range(3, 5), world.rank)
        ends[hosts] = whole_values(model, optimizer)
    for hosts, file in (("shared", files["sharded"]), ("sharded", files["shared"])):
        model = Network(16)
        model, optimizer = zero.shard(model, kind(model.parameters(), **settings), hosts=hosts)
        state = torch.load(io.BytesIO(file))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        train(model, optimizer, range(3, 5), world.rank)
        agree(world, whole_values(model, optimizer), ends[hosts])
        same_on_all_ranks(world, whole_values(model, optimizer))


def test_checkpoints_cross(shared):
    shared(2).run(run_checkpoint)


def run_born_sharded(world, precision):
    with torch.device("meta"):
        model = Network(16)
    def first(module):
        for p in module.parameters(recurse=False):
            nn.init.constant_(p, 0.01)
    model, optimizer = zero.shard(model, torch.optim.AdamW(model.parameters(), lr=0.01), hosts="sharded", init=first,
                                  precision=precision)
    assert (whole_values(model, optimizer) == torch.tensor(0.01).to(model.scale.dtype)).all()
    go_back(model, optimizer, 0, world.rank)
    optimizer.step()
    same_on_all_ranks(world, whole_values(model, optimizer))


@pytest.mark.parametrize("precision", [None, "bf16"])
def test_is_born_sharded(shared, precision):
    shared(2).run(run_born_sharded, precision)


# ---- programs that do more ----
class Detached(Network):
    """A weight of the model itself that is read once more, without a gradient, after its own has come."""

    def forward(self, ids):
        x = self.blocks[0](self.embed(ids)) * self.scale.detach()
        return self.head(self.blocks[2](self.blocks[1](x)) * self.scale)


class Repeated(Network):
    """A block in two segments of a reentrant checkpoint."""

    def forward(self, ids):
        x = self.embed(ids)
        for i in (0, 1, 0, 2, 1):
            x = checkpoint(self.blocks[i], x, use_reentrant=True)
        return self.head(x * self.scale)


def run_as_shared(world, make, step_of):
    """Trains a model with shared and one with sharded parameters by step_of, and checks that they stay equal."""
    models = []
    for hosts in ("shared", "sharded"):
        model = make()
        units = [*model.layers, *(part for layer in model.layers for part in layer.inner)] if make is Nested else None
        models.append(zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.05), hosts=hosts, units=units))
    for step in range(STEPS):
        for model, optimizer in models:
            step_of(model, optimizer, ids_of(step, world.rank))
            optimizer.step()
        agree(world, *(whole_values(*trained) for trained in reversed(models)))


def goes_back(model, optimizer, ids):
    loss_of(model(ids)).backward()


def penalizes(model, optimizer, ids):
    """A gradient of a gradient, with other passes between."""
    x = model.embed(ids).detach().requires_grad_()
    slope, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    loss_of(model(x.detach())).backward()
    with torch.no_grad():
        model(x)
    slope.square().mean().backward()


class Critic(Network):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x * self.scale


def logs(model, optimizer, ids):
    """Reads everything, between passes, inside one, and in blocks inside each other."""
    def look(*_):
        with optimizer.whole():
            assert not values(model).isnan().any()
    handle = model.blocks[1].register_forward_hook(look)
    loss = loss_of(model(ids))
    handle.remove()
    look()
    loss.backward()
    with optimizer.whole():
        look()
        assert not values(model).isnan().any()
        optimizer.step()
        assert not values(model).isnan().any()
    goes_back(model, optimizer, ids)


def returns(model, optimizer, ids):
    """Loads the state from before a backward pass whose gradients are dropped. Repeats the pass, edits, and repeats it
    again."""
    with optimizer.whole():
        before = {name: value.clone() for name, value in model.state_dict().items()}
    goes_back(model, optimizer, ids)
    model.load_state_dict(before)
    optimizer.zero_grad()
    goes_back(model, optimizer, ids)
    with optimizer.edit():
        with torch.no_grad():
            for p in model.parameters() if dist.get_rank() == 0 else ():
                p.mul_(0.5)
    optimizer.zero_grad()
    goes_back(model, optimizer, ids)


@pytest.mark.parametrize("make, step_of", [(Detached, goes_back), (Repeated, goes_back), (Critic, penalizes),
                                           (Network, logs), (Network, returns), (Nested, goes_back)])
def test_as_shared(shared, make, step_of):
    shared(2).run(run_as_shared, make if make is Nested else functools.partial(make, 16), step_of)


def run_state_hooks(world):
    """A state_dict is right under any names. The state_dict of a copy has the values of the copy, also if only one rank
    asks for it."""
    model = Network(16)
    def rename(module, state, prefix, *_):
        state[prefix + "kernel"] = state.pop(prefix + "scale")
    model.register_state_dict_post_hook(rename)
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.05), hosts="sharded")
    assert torch.equal(model.state_dict()["kernel"], torch.ones(16))
    with optimizer.whole():
        other = copy.deepcopy(model)
    if world.rank == 0:
        assert not any(value.isnan().any() for value in other.state_dict().values())
        other(ids_of(0, 0))
    train(model, optimizer, range(2), world.rank)
    same_on_all_ranks(world, whole_values(model, optimizer))
    refused(ZeroDivisionError, "zero", lambda: divides_by_zero(optimizer))
    train(model, optimizer, range(2), world.rank)


def divides_by_zero(optimizer):
    with optimizer.edit():
        1 / 0


def test_state_hooks_and_copies(shared):
    shared(2).run(run_state_hooks)


# ---- mistakes ----
def run_other_units(world):
    """Ranks whose batches use different units get an error with sharded parameters; shared ones would allow it. Returns
    whether the error of this rank is a MismatchError."""
    model = Picky()
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), hosts="sharded")
    ids = torch.full((4, 64), world.rank)
    with pytest.raises(Exception, match="all ranks must use the same units in the same order") as error:
        loss_of(model(ids)).backward()
        optimizer.step()
    return type(error.value) is MismatchError


def test_ranks_use_other_units(fresh):
    assert any(fresh(2).run(run_other_units))


def run_hides_its_output(world):
    """The backward pass of a unit is hidden from zero if a module does not return the unit's output."""
    class Hiding(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            for layer in self.layers:
                layer.register_forward_hook(self.hide)

        @staticmethod
        def hide(module, _, output):
            module.kept = output
            return output.detach()

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return sum(layer.kept for layer in self.layers)

    model = Hiding()
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), hosts="sharded")
    refused(ValueError, "while its parameters were not gathered: the program has not used the unit",
            lambda: model(torch.randn(2, 8)).sum().backward())


def test_an_output_that_is_hidden(fresh):
    fresh(2).run(run_hides_its_output)


def run_uneven(world):
    model = Network(16)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert any("parameters are sharded, not shared, on each host: zero: " in str(w.message) for w in said)
    assert optimizer.report()["hosts"] == "sharded"
    go_back(model, optimizer, 0, world.rank)
    optimizer.step()
    same_on_all_ranks(world, whole_values(model, optimizer))
    model = Network(16)
    refused(NotImplementedError, "the same number of ranks on each host",
            lambda: zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), hosts="shared"))
    refused(ValueError, "it can be 'replicated'",
            lambda: zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), stage=2, hosts="sharded"))
    refused(ValueError, "units gathered ahead: one of these is out of range",
            lambda: zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), hosts="sharded", prefetch=-1))
    dist.barrier()


def test_hosts_of_different_sizes_shard(fresh):
    fresh(3, environment={"TUTTI_HOSTS": "0,0,1"}).run(run_uneven)

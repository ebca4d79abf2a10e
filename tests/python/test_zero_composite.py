"""Optimizers whose states are tensors made of other tensors, as the quantized states of torchao: zero gives them whole
parameters, equals DistributedDataParallel, and saves and loads their states. A stand-in that quantizes takes their
place here; tests/frameworks has the released ones."""
import copy

import pytest
import torch
from test_zero_optimizers import STAGES
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import batch, flat, loss_of
from zero_training import refused

from torch_tutti import zero

BLOCK = 32                              # elements with one scale
STEPS = 3


class Quantized(torch.Tensor):
    """A tensor of bytes with a scale for each block. It has no operation, not even a copy."""

    @staticmethod
    def __new__(cls, codes, scales):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scales):
        self.codes, self.scales = codes, scales

    def __tensor_flatten__(self):
        return ["codes", "scales"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, shape, stride):
        return Quantized(**inner)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:                       # torch.save calls it
            return cls(args[0].codes, args[0].scales)
        raise NotImplementedError(f"Quantized has no {func}")

    @classmethod
    def of(cls, values):
        blocks = values.reshape(-1, BLOCK)
        scales = blocks.abs().amax(1) / 127
        codes = (blocks / scales.clamp(min=1e-12)[:, None]).round().to(torch.int8)
        return cls(codes.view(values.shape), scales)

    def values(self):
        return (self.codes.reshape(-1, BLOCK) * self.scales[:, None]).view(self.codes.shape)


class Momentum(torch.optim.Optimizer):
    """SGD whose momentum is quantized where a tensor is large and has whole blocks."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    old = self.state[p].get("momentum", torch.zeros(p.shape))
                    new = p.grad.float() + 0.9 * (old.values() if isinstance(old, Quantized) else old)
                    is_large = p.numel() >= 512 and p.numel() % BLOCK == 0
                    self.state[p]["momentum"] = Quantized.of(new) if is_large else new
                    p.sub_(new, alpha=group["lr"])


def model_of(width=64):
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(20, width), nn.Tanh(), nn.Linear(width, 30), nn.Tanh(), nn.Linear(30, 4))


def train(world, model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model(batch(step, world.rank))).backward()
        optimizer.step()


def sharded(model, kind, options):
    return zero.shard(model, kind(model.parameters()), **options)


def inner_values(state):
    return [state.codes, state.scales] if isinstance(state, Quantized) else [state]


def run(world, options, path):
    judge = DistributedDataParallel(model_of())
    expected = Momentum(judge.parameters())
    model, optimizer = sharded(model_of(), Momentum, options)
    train(world, judge, expected, range(STEPS))
    train(world, model, optimizer, range(STEPS))
    torch.save(optimizer.state_dict(), f"{path}{world.rank}")
    refused(NotImplementedError, r"zero: Momentum keeps momentum of parameter [02].weight as Quantized, which "
            r"sharded_state\(\) cannot save; use optimizer.state_dict\(\) or full_state_dict\(\)",
            lambda: optimizer.sharded_state().state_dict())
    assert bool(optimizer.full_state_dict()) is (world.rank == 0)
    with optimizer.whole():
        again = copy.deepcopy(model)
    again, resumed = sharded(again, Momentum, options)
    resumed.load_state_dict(torch.load(f"{path}{world.rank}", weights_only=False))
    train(world, judge, expected, range(STEPS, 2 * STEPS))
    train(world, again, resumed, range(STEPS, 2 * STEPS))
    with resumed.whole():
        assert torch.equal(flat(again.parameters()), flat(judge.module.parameters()))
    found, wanted = resumed.state_dict()["state"], expected.state_dict()["state"]
    kinds = [type(state["momentum"]) for state in found.values()]
    assert kinds == [type(state["momentum"]) for state in wanted.values()] and kinds.count(Quantized) == 2
    for mine, theirs in zip(found.values(), wanted.values()):
        assert all(map(torch.equal, inner_values(mine["momentum"]), inner_values(theirs["momentum"])))
    return resumed.report()["state_bytes"]


@pytest.mark.parametrize("options", STAGES)
def test_quantized_states_are_as_with_ddp(shared, options, tmp_path):
    """A quantized moment has a byte for an element, and 4 bytes for 32 of them."""
    sizes = [p.numel() for p in model_of().parameters()]
    whole = sum(size + size // BLOCK * 4 if size >= 512 else 4 * size for size in sizes)
    assert sum(shared(2).run(run, options, str(tmp_path / "state"))) == whole * (2 if options["stage"] == 0 else 1)


class Hidden(Momentum):
    """Quantizes only after the steps of a trial, so zero takes it for one that treats all elements equally."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                p.data.sub_(p.grad, alpha=group["lr"])
                if state["count"] > 6 and p.numel() % BLOCK == 0:
                    state["momentum"] = Quantized.of(torch.zeros(p.shape))


def run_hidden(world):
    model, optimizer = sharded(model_of(128), Hidden, {"stage": 2})
    train(world, model, optimizer, range(7))
    refused(NotImplementedError, "zero: Hidden keeps momentum of parameter [02].weight as Quantized, whose blocks "
            "differ between the parameter and its pieces, which the ranks have; use stage=0", optimizer.state_dict)


def test_quantized_states_of_pieces_are_refused_on_all_ranks(shared):
    shared(2).run(run_hidden)

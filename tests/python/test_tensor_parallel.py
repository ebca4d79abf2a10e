"""Tests of DTensor and of the tensor-parallel plans on it. Results are compared with the whole tensor, or with the same
model in one process.

Not here: random DTensors, which torch refuses on a mesh of CPUs (tensor/_api.py:1265 in 2.13), whatever the backend.
"""
import itertools

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from transformer import Transformer, loss_of, parallelize, tokens

REDUCTIONS = {"sum": torch.sum, "avg": torch.mean, "max": torch.amax, "min": torch.amin, "product": torch.prod}


def mesh_of(world, *shape):
    """Returns the first mesh of this shape that the ranks have made."""
    names = {1: ("model",), 2: ("data", "model")}[len(shape)]
    return world.made_once(("mesh", shape), lambda: init_device_mesh("cpu", shape, mesh_dim_names=names))


# ---- DTensor ----
def whole_tensor(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def local_part(whole, mesh, placements):
    """Returns the part of a tensor that a rank must hold. torch.chunk divides it here, independently of the code under
    test."""
    for dimension, placement in enumerate(placements):
        if placement.is_shard():
            pieces = whole.chunk(mesh.size(dimension), dim=placement.dim)
            here = mesh.get_local_rank(dimension)
            whole = pieces[here] if here < len(pieces) else whole.narrow(placement.dim, 0, 0)
    return whole


def redistributed(world, shape, sizes):
    """Redistributes a tensor from every combination of placements to every other."""
    mesh, whole = mesh_of(world, *shape), whole_tensor(*sizes)
    ways = list(itertools.product([Replicate(), Shard(0), Shard(1)], repeat=len(shape)))
    for before, after in itertools.product(ways, ways):
        x = distribute_tensor(whole, mesh, before)
        assert torch.equal(x.to_local(), local_part(whole, mesh, before)), before
        moved = x.redistribute(placements=after)
        assert torch.equal(moved.to_local(), local_part(whole, mesh, after)), (before, after)
        assert torch.equal(moved.full_tensor(), whole), (before, after)


@pytest.mark.parametrize("size, shape, sizes", [(2, (2,), (6, 4)), (3, (3,), (7, 2)), (4, (2, 2), (5, 6))],
                         ids=["2", "3-uneven", "2x2-uneven"])
def test_redistribution_between_all_placements(shared, size, shape, sizes):
    shared(size).run(redistributed, shape, sizes)


def reduced(world):
    """Redistributes partial results of every reduction to whole and to divided tensors."""
    mesh = mesh_of(world, world.size)
    everyone = torch.stack([torch.randn(7, 4, generator=torch.Generator().manual_seed(r)) for r in range(world.size)])
    for name, reduce in REDUCTIONS.items():
        judged = reduce(everyone, dim=0)
        for after in (Replicate(), Shard(0), Shard(1)):
            x = DTensor.from_local(everyone[world.rank].clone(), mesh, [Partial(name)])
            ours = x.redistribute(placements=[after]).to_local()
            torch.testing.assert_close(ours, local_part(judged, mesh, [after]), msg=lambda t: f"{name} {after}: {t}")


@pytest.mark.parametrize("size", [2, 3])
def test_partial_results_of_every_reduction_are_reduced(shared, size):
    shared(size).run(reduced)


def operations(world):
    """Compares products, sums, a softmax and a norm of divided tensors, and their gradients, with those of whole
    tensors."""
    mesh = mesh_of(world, world.size)
    torch.manual_seed(2)
    a, b = torch.randn(6, 9), torch.randn(9, 6)

    def compute(x, y):
        z = (x @ y).softmax(-1) + (x * x).mean()
        return (z @ x).square().sum() + torch.linalg.vector_norm(y) + z.max()

    judged = [t.clone().requires_grad_() for t in (a, b)]
    value = compute(*judged)
    value.backward()
    for before in itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2):
        x, y = [distribute_tensor(t, mesh, [p]).requires_grad_() for t, p in zip((a, b), before)]
        result = compute(x, y)
        result.backward()
        torch.testing.assert_close(result.full_tensor(), value)
        for ours, whole in zip((x, y), judged):
            torch.testing.assert_close(ours.grad.full_tensor(), whole.grad, msg=lambda t: f"{before}: {t}")


def test_operations_on_divided_tensors_equal_those_on_whole_ones(shared):
    shared(3).run(operations)


# ---- plans ----
def check_parameters(ours, judge, what):
    """Checks what(parameter), its value or its gradient, for all parameters."""
    for (name, parameter), whole in zip(ours.named_parameters(), judge.parameters()):
        mine = what(parameter)
        mine = mine.full_tensor() if isinstance(mine, DTensor) else mine
        torch.testing.assert_close(mine, what(whole), rtol=2e-5, atol=2e-6, msg=lambda t: f"{name}: {t}")


def gradient(parameter):
    return parameter.grad


def value(parameter):
    return parameter.detach()


def two_layers(world):
    """Columns then rows: the textbook pair, one all-reduce forward and one backward."""
    mesh = mesh_of(world, world.size)
    models = []
    for _ in range(2):
        torch.manual_seed(4)
        models.append(torch.nn.Sequential(torch.nn.Linear(10, 12), torch.nn.ReLU(), torch.nn.Linear(12, 5)))
    ours, judge = parallelize_module(models[0], mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}), models[1]
    x = [torch.randn(7, 10, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2)]
    outputs = [model(t) for model, t in zip(models, x)]
    torch.testing.assert_close(*outputs)
    for output in outputs:
        output.square().sum().backward()
    check_parameters(ours, judge, gradient)
    torch.testing.assert_close(x[0].grad, x[1].grad)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_columns_then_rows_equal_the_whole_layers(shared, size):
    shared(size).run(two_layers)


def trains(world, sequence, divided_loss):
    mesh = mesh_of(world, world.size)
    ours, judge = parallelize(Transformer(), mesh, sequence, divided_loss), Transformer()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (ours, judge)]
    for turn in range(3):
        x, y = tokens(turn)
        for optimizer in optimizers:
            optimizer.zero_grad()
        judged = loss_of(judge(x), y)
        judged.backward()
        if divided_loss:
            with loss_parallel():
                loss = loss_of(ours(x), y)
                loss.backward()
            loss = loss.full_tensor()
        else:
            loss = loss_of(ours(x), y)
            loss.backward()
        torch.testing.assert_close(loss, judged)
        check_parameters(ours, judge, gradient)
        for optimizer in optimizers:
            optimizer.step()
    check_parameters(ours, judge, value)


@pytest.mark.parametrize("sequence, divided_loss", [(False, False), (True, False), (True, True)],
                         ids=["tensor", "sequence", "sequence-loss"])
@pytest.mark.parametrize("size", [2, 4])
def test_a_transformer_trains_as_in_one_process(shared, size, sequence, divided_loss):
    shared(size).run(trains, sequence, divided_loss)


def two_dimensional(world):
    """Tensor parallel inside, FSDP outside: each pair of data ranks reads a half of the judge's batch."""
    mesh = mesh_of(world, 2, 2)
    ours, judge = parallelize(Transformer(), mesh["model"]), Transformer()
    for layer in [*ours.layers, ours]:
        fully_shard(layer, mesh=mesh["data"])
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, foreach=True) for m in (ours, judge)]
    half = slice(2 * mesh.get_local_rank("data"), 2 * mesh.get_local_rank("data") + 2)
    for turn in range(3):
        x, y = tokens(turn)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(judge(x), y).backward()
        loss_of(ours(x[half]), y[half]).backward()
        check_parameters(ours, judge, gradient)
        norms = [torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5) for m in (ours, judge)]
        torch.testing.assert_close(norms[0].full_tensor(), norms[1])
        for optimizer in optimizers:
            optimizer.step()
    check_parameters(ours, judge, value)


def test_tensor_parallel_under_fsdp_trains_as_one_process(shared):
    shared(4).run(two_dimensional)

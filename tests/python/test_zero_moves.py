"""Moves of a model that zero has divided keep its memory or name the parameter; and a DeviceMesh as the group."""
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from training import flat
from zero_training import OPTIMIZERS, STEPS, Network, go_back, pair, refused, train_beside, values

from torch_tutti import zero


def run_moved(world, stage, options):
    """Frameworks move models to the device on which they are, before and between steps."""
    judge, theirs, model, mine = pair(lambda: Network(16), "momentum", stage, **options)
    addresses = [p.data_ptr() for p in model.parameters()]

    def read(model, optimizer):
        if optimizer is mine:
            model.to("cpu:0").float().cpu()
            model.blocks[1].to("cpu:0", torch.float32)
            assert [p.data_ptr() for p in model.parameters()] == addresses
        with mine.whole():
            return values(model)
    train_beside(world, judge, theirs, model, mine, read=read)


@pytest.mark.parametrize("stage, options", [(0, {}), (2, {}), (3, {}), (3, {"hosts": "sharded"})])
def test_a_move_to_the_same_device(shared, stage, options):
    shared(2).run(run_moved, stage, options)


def run_converted(world, options, to):
    """The conversion is refused before anything has changed, so training goes on."""
    model = Network(16)
    model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    kind = model.scale.dtype
    go_back(model, optimizer, 0, world.rank)
    optimizer.step()
    refused(RuntimeError, f"zero: parameter scale is {kind} in zero's memory, where it stays, so it cannot become "
                          f"{to}; convert a model before zero.shard",
            lambda: setattr(model.scale, "data", model.scale.to(to)))
    refused(RuntimeError, "zero: parameter embed.weight is", lambda: model.to(to))
    assert {p.dtype for p in model.parameters()} == {kind}
    go_back(model, optimizer, 1, world.rank)
    optimizer.step()


@pytest.mark.parametrize("options, to", [({"stage": 0}, torch.float16), ({"precision": "bf16"}, torch.float32)])
def test_a_conversion(shared, options, to):
    shared(2).run(run_converted, options, to)


def sharded_by_torch(mesh):
    """FSDP2's form: each block by itself, then the model."""
    model = Network(16)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def run_on_mesh(world, shape, names):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    judge, model = sharded_by_torch(mesh), Network(16)
    kind, settings = OPTIMIZERS["momentum"]
    theirs = kind(judge.parameters(), **settings)
    model, mine = zero.shard(model, kind(model.parameters(), **settings), units=model.blocks, group=mesh)
    for step in range(STEPS):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            trained(torch.full((2, 3), world.rank + step)).square().mean().backward()
            optimizer.step()
        torch.testing.assert_close(values(model), flat(p.full_tensor() for p in judge.parameters()))


@pytest.mark.parametrize("shape, names", [((2,), ("data",)), ((2, 2), ("replicate", "shard"))])
def test_a_mesh_as_for_fully_shard(shared, shape, names):
    shared(torch.Size(shape).numel()).run(run_on_mesh, shape, names)


def run_part_of_mesh(world):
    mesh = init_device_mesh("cpu", (2, 1, 1), mesh_dim_names=("a", "b", "c"))
    model = Network(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    refused(NotImplementedError, "zero.shard: the DeviceMesh has 3 dimensions and 2 ranks; it can have one dimension, "
                                 r"or two and all 2 ranks. Pass a dimension of it, mesh\[name\], or a group",
            lambda: zero.shard(model, optimizer, group=mesh))
    model, optimizer = zero.shard(model, optimizer, group=mesh["a"])
    go_back(model, optimizer, 0, world.rank)
    optimizer.step()


def test_a_mesh_of_three_dimensions(shared):
    shared(2).run(run_part_of_mesh)

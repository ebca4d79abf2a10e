"""What torch builds on a backend: DistributedDataParallel, FSDP, functional collectives, ZeRO and pipelines'
messages. The judge is gloo, or the same computation without any."""
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def network(seed=7):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 50), torch.nn.ReLU(),
                               torch.nn.Linear(50, 3))


def trained(model, steps, rank):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def ddp(world, hook):
    flat = []
    for group in (None, world.gloo):
        model = DistributedDataParallel(network(seed=world.rank), process_group=group, bucket_cap_mb=0.005)
        if hook:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
            model.register_comm_hook(group, getattr(default_hooks, hook))
        flat.append(trained(model, 5, world.rank))
    if world.size == 2:
        assert torch.equal(*flat)                         # a + b is b + a: the same bits
    torch.testing.assert_close(*flat)
    everyone = [torch.empty_like(flat[0]) for _ in range(world.size)]
    dist.all_gather(everyone, flat[0])
    assert all(torch.equal(e, flat[0]) for e in everyone)


@pytest.mark.parametrize("hook", [None, "allreduce_hook", "fp16_compress_hook"])
@pytest.mark.parametrize("size", [2, 3])
def test_ddp_trains_as_with_gloo(shared, size, hook):
    shared(size).run(ddp, hook)


def power_sgd(world):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    torch.manual_seed(1)
    model = DistributedDataParallel(network())
    model.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    return trained(model, 5, world.rank)


def test_powersgd_hook(shared):
    first, second = shared(2).run(power_sgd)
    assert torch.isfinite(first).all() and torch.equal(first, second)


def unused_parameters(world):
    model = DistributedDataParallel(network(), find_unused_parameters=True)
    with model.no_sync():
        model(torch.ones(2, 20)).sum().backward()
    model(torch.ones(2, 20)).sum().backward()
    return model.module[0].weight.grad


def test_unused_parameters_and_no_sync(shared):
    first, second = shared(2).run(unused_parameters)
    assert torch.equal(first, second)


def fsdp(world):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    model = network()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=world.kept.setdefault("mesh", init_device_mesh("cpu", (world.size,))))
    fully_shard(model, mesh=world.kept["mesh"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(100 * step + world.rank)
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
    sharded = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(sharded, trained(DistributedDataParallel(network(), process_group=world.gloo), 3,
                                                world.rank))


@pytest.mark.parametrize("size", [2, 3])
def test_fsdp_trains_as_ddp(shared, size):
    shared(size).run(fsdp)


def functional(world):
    import torch.distributed._functional_collectives as f
    group = dist.group.WORLD
    x = torch.full((4,), world.rank + 1.0)
    p = world.size
    assert torch.equal(f.all_reduce(x, "sum", group) + 0, torch.full((4,), p * (p + 1) / 2))
    assert torch.equal(f.all_gather_tensor(x, 0, group) + 0, (torch.arange(p) + 1.0).repeat_interleave(4))
    assert torch.equal(f.reduce_scatter_tensor(x.repeat(p), "sum", 0, group) + 0, torch.full((4,), p * (p + 1) / 2))
    assert torch.equal(f.all_to_all_single(torch.full((p,), float(world.rank)), [1] * p, [1] * p, group) + 0,
                       torch.arange(p).float())
    assert torch.equal(f.broadcast(x, 0, group) + 0, torch.ones(4))
    for got, n in zip(f.all_reduce_coalesced([torch.ones(n) for n in (2, 3)], "sum", group), (2, 3)):
        assert torch.equal(got + 0, torch.full((n,), float(p)))


def test_functional_collectives(shared):
    shared(3).run(functional)


def autograd(world):
    import torch.distributed.nn.functional as f
    x = torch.full((3,), world.rank + 1.0, requires_grad=True)
    f.all_reduce(x * x).sum().backward()
    assert torch.equal(x.grad, 2 * x.detach() * world.size)
    x.grad = None
    torch.stack(f.all_gather(x)).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), float(world.size)))


def test_differentiable_collectives(shared):
    shared(2).run(autograd)


def zero(world):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for step in range(3):
        torch.manual_seed(100 * step + world.rank)
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(flat, trained(DistributedDataParallel(network(), process_group=world.gloo), 3,
                                             world.rank))


def test_zero_redundancy_optimizer(shared):
    shared(2).run(zero)


def buffers(world):
    layer = torch.nn.BatchNorm1d(4)
    layer.running_mean.fill_(world.rank + 1)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), layer))
    model.eval()(torch.ones(2, 4))
    return layer.running_mean.sum().item()


def test_buffers_are_broadcast(shared):
    assert shared(2).run(buffers) == [4, 4]

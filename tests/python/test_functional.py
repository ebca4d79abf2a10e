"""Tests of the functional collectives, which return new tensors, and of the collectives through which gradients
flow."""
import torch
import torch.distributed as dist


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

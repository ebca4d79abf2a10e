"""Tests of context parallelism: attention over a sequence that is divided among ranks.

On CPU tensors torch 2.13 does not offer it: `context_parallel` hands attention to DTensor, which knows rules for CUDA's
kernels only (tensor/experimental/_context_parallel/_attention.py:939), whatever the backend; a test records
that and fails when it changes. The rest of torch's code, rings of keys, values and their gradients, takes any kernel.
Here it runs with the CPU's kernel, and results are compared with attention over the whole sequence in one process.
"""
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

_attention = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._attention",
                                 reason="this torch keeps context parallelism elsewhere")

# Batch, heads, sequence, width.
SHAPE = (2, 3, 24, 8)
attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def sequences():
    torch.manual_seed(3)
    return [torch.randn(SHAPE) for _ in range(4)]


@contextmanager
def options(**values):
    """A context with these options, which torch keeps in one object for the whole process."""
    before = {name: getattr(_attention._cp_options, name) for name in values}
    vars(_attention._cp_options).update(values)
    try:
        yield
    finally:
        vars(_attention._cp_options).update(before)


def part(x, rank, size, balanced):
    """Returns the rows of a rank. balanced: a piece from each end, because late rows attend to more than early ones."""
    if not balanced:
        return x.chunk(size, dim=2)[rank].contiguous()
    pieces = x.chunk(2 * size, dim=2)
    return torch.cat([pieces[rank], pieces[2 * size - 1 - rank]], dim=2)


def ring(world, method, causal, balanced):
    everything = sequences()
    whole = [x.clone().requires_grad_() for x in everything[:3]]
    judged = F.scaled_dot_product_attention(*whole, is_causal=causal)
    judged.backward(everything[3])
    query, key, value, gradient = [part(x, world.rank, world.size, balanced) for x in everything]
    with options(rotate_method=method, enable_load_balance=balanced, convert_to_f32=True):
        out, sums = _attention._templated_ring_attention(dist.group.WORLD, 2, attend, query, key, value,
                                                         is_causal=causal)
        gradients = _attention._templated_ring_attention_backward(
            dist.group.WORLD, 2, attend_backward, gradient, "grad_out", query, key, value, out, sums,
            is_causal=causal, dropout_p=0.0)
    torch.testing.assert_close(out, part(judged.detach(), world.rank, world.size, balanced))
    for ours, x in zip(gradients, whole):
        torch.testing.assert_close(ours, part(x.grad, world.rank, world.size, balanced), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal, balanced", [(False, False), (True, False), (True, True)],
                         ids=["full", "causal", "causal-balanced"])
@pytest.mark.parametrize("method", ["ALL_TO_ALL", "ALL_GATHER"])
@pytest.mark.parametrize("size", [2, 3])
def test_ring_attention_and_its_gradients(shared, size, method, causal, balanced):
    shared(size).run(ring, _attention._RotateMethod[method], causal, balanced)


def gathered(world):
    """Checks the gather of flexible attention: it gathers keys and values, and scatters the sums of their gradients."""
    key, value = [x.chunk(world.size, dim=2)[world.rank].clone().requires_grad_() for x in sequences()[:2]]
    whole = torch.ops.cplib.flex_cp_allgather(key, value, 2, dist.group.WORLD.group_name)
    for ours, judged in zip(whole, sequences()):
        assert torch.equal(ours, judged)
    weight = sequences()[3]
    ((world.rank + 1) * (whole[0] + 2 * whole[1]) * weight).sum().backward()
    mine = weight.chunk(world.size, dim=2)[world.rank] * sum(range(1, world.size + 1))
    torch.testing.assert_close(key.grad, mine)
    torch.testing.assert_close(value.grad, 2 * mine)


def test_keys_and_values_are_gathered_with_gradients(shared):
    shared(3).run(gathered)


def mesh_of(world):
    """Returns the mesh of all ranks, which the first test that needs it has made."""
    return world.made_once("mesh", lambda: init_device_mesh("cpu", (world.size,)))


def shards_and_restores(world):
    mesh = mesh_of(world)
    x, judged = sequences()[0], sequences()[0]
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]):
        assert torch.equal(x, part(judged, world.rank, world.size, balanced=True))
        [whole] = _attention.context_parallel_unshard(
            mesh, [x], [2], _attention._create_default_load_balancer(SHAPE[2], world.size, torch.device("cpu")))
        assert torch.equal(whole, judged)
    assert torch.equal(x, judged)


def test_buffers_are_divided_and_put_together(shared):
    shared(2).run(shards_and_restores)


def refused(world):
    mesh = mesh_of(world)
    query, key, value, _ = sequences()
    with context_parallel(mesh, buffers=[query, key, value], buffer_seq_dims=[2, 2, 2]):
        F.scaled_dot_product_attention(query, key, value, is_causal=True)


def test_torch_has_no_rule_for_attention_on_cpu(shared):
    for outcome in shared(2).outcomes(refused):
        assert outcome.error == "NotImplementedError", outcome.trace
        assert "flash_attention_for_cpu.default does not have a sharding strategy" in outcome.text

"""Tests of the all-reduce whose rows are normalised (`tutti.all_reduce_norm`): the bits of the operations one after the
other, the numbers of torch's own norms, other backends, and mistakes."""
import pytest
import torch
import torch.distributed as dist
import torch_tutti as tutti
from torch.nn.functional import layer_norm, rms_norm

UNTRAINED = "a gradient, but all_reduce_norm has no backward pass"
TYPES = torch.float32, torch.bfloat16, torch.float16


def alone(world):
    """Returns a group of this rank alone, in which all_reduce_norm only normalises."""
    return world.made_once("alone", lambda: [dist.new_group([rank]) for rank in range(world.size)])[world.rank]


def numbers(seed, *shape, dtype=torch.float32):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.1).to(dtype)


def cases():
    for place, dtype in enumerate(TYPES):
        for kind in "rms", "layer":
            for shape in (64,), (3, 100), (2, 9, 257):
                for with_residual in False, True:
                    yield 10 * place + len(shape), dtype, kind, shape, with_residual


def one_after_the_other(world):
    group = alone(world)
    for seed, dtype, kind, shape, with_residual in cases():
        mine = numbers(100 * seed + world.rank, *shape, dtype=dtype)
        weight, bias = numbers(seed, shape[-1], dtype=dtype), numbers(seed + 1, shape[-1], dtype=dtype)
        residual = numbers(seed + 2, *shape, dtype=dtype) if with_residual else None
        expected, summed = mine.clone(), None
        dist.all_reduce(expected)
        if with_residual:
            expected += residual
        summed = expected.clone()
        tutti.all_reduce_norm(expected, weight, bias=bias, kind=kind, group=group)
        reference = (rms_norm(summed.float(), shape[-1:], weight.float(), 1e-6) + bias.float() if kind == "rms" else
                     layer_norm(summed.float(), shape[-1:], weight.float(), bias.float(), 1e-6))
        torch.testing.assert_close(expected.float(), reference, rtol=1e-2 if dtype != torch.float32 else 1e-5,
                                   atol=1e-2 if dtype != torch.float32 else 1e-5)
        rows = tutti.norm_rows(mine[..., 0].numel())
        for own_rows in ([False, True] if world.hosts == 1 else [False]):
            got = mine.clone()
            kept = residual.clone() if with_residual else None
            if own_rows and with_residual:
                kept = kept.view(-1, shape[-1])[rows].clone()
            tutti.all_reduce_norm(got, weight, bias=bias, kind=kind, residual=kept, own_rows=own_rows)
            assert torch.equal(got, expected), (dtype, kind, shape, with_residual, own_rows)
            if with_residual:
                before = summed.view(-1, shape[-1])[rows] if own_rows else summed
                assert torch.equal(kept, before), (dtype, kind, shape, own_rows)


def test_norm_equals_separate_operations(shared):
    shared(3).run(one_after_the_other)


def watched(world):
    """Checks calls under a profiler and in a block of options, which do not go straight to the core."""
    x, y, z = (numbers(world.rank, 4, 32) for _ in range(3))
    residual = torch.ones(4, 32)
    tutti.all_reduce_norm(x, residual=residual.clone())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        tutti.all_reduce_norm(y, residual=residual.clone())
    with tutti.options(algorithm="ring"):
        tutti.all_reduce_norm(z, residual=residual.clone())
    assert any("all_reduce_norm" in event.name for event in profile.events())
    assert torch.equal(x, y)
    torch.testing.assert_close(x, z)


def test_profiled_calls_give_the_same_bits(shared):
    shared(2).run(watched)


def on_gloo(world):
    for _, dtype, kind, shape, with_residual in cases():
        mine, weight = numbers(world.rank, *shape, dtype=dtype), numbers(7, shape[-1], dtype=dtype)
        rows = tutti.norm_rows(mine[..., 0].numel())
        for own_rows in ([False, True] if world.hosts == 1 else [False]):
            results = []
            for group in None, world.gloo:
                residual = numbers(3, *shape, dtype=dtype).view(-1, shape[-1])[rows if own_rows else slice(None)]
                x, residual = mine.clone(), residual.clone() if with_residual else None
                if not own_rows and with_residual:
                    residual = residual.view(shape)
                tutti.all_reduce_norm(x, weight, kind=kind, residual=residual, own_rows=own_rows, group=group)
                results.append((x, residual))
            limit = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 5e-2, "atol": 5e-2}
            torch.testing.assert_close(results[0], results[1], **limit)


def test_other_backends_give_close_results(shared):
    shared(2).run(on_gloo)


def mistakes(world):
    x, w = torch.ones(4, 8), torch.ones(8)
    for arguments, options, text in (
            ((x.double(),), {}, "all_reduce_norm: the input is float64; only rows of float32, bfloat16 and float16"),
            ((torch.ones(4, 8, dtype=torch.complex64),), {}, "the input is complex64; only rows"),
            ((torch.tensor(1.0),), {}, "the input has no rows"),
            ((torch.ones(4, 8, requires_grad=True),), {}, f"requires {UNTRAINED}"),
            ((x, torch.ones(8, requires_grad=True)), {}, f"the weight requires {UNTRAINED}"),
            ((x, w), {"bias": torch.ones(8, requires_grad=True)}, f"the bias requires {UNTRAINED}"),
            ((x, w), {"residual": torch.ones(4, 8).requires_grad_()}, f"the residual requires {UNTRAINED}"),
            ((torch.ones(8, 4).t(),), {}, "the input tensor is not contiguous"),
            ((torch.ones(4, 0),), {}, "rows of 0 columns: there must be 1"),
            ((x, torch.ones(9)), {}, r"the weight has sizes \[9\]: it must have 8 elements, for 1 rows of 8"),
            ((x, w.bfloat16()), {}, "the weight is bfloat16, but the input is float32"),
            ((x, w), {"bias": torch.ones(4, 8)}, r"the bias has sizes \[4, 8\]: it must have 8 elements"),
            ((x, w), {"residual": torch.ones(3, 8)}, r"the residual has sizes \[3, 8\]: it must have 32 elements"),
            ((x, w), {"residual": x}, "the residual overlaps with the send buffer"),
            ((x, w), {"residual": torch.ones(4, 8), "own_rows": True} if world.hosts == 1 else {"eps": -1.0},
             "it must have 16 elements, for 2 rows of 8" if world.hosts == 1 else "it must be 0 or more"),
            ((x, w), {"eps": -1.0}, "epsilon is -1: it must be 0 or more"),
            ((x, w), {"kind": "batch"}, 'kind "batch" is unknown: use "rms" or "layer"')):
        with pytest.raises(ValueError, match=text):
            tutti.all_reduce_norm(*arguments, **options)
    with pytest.raises(ValueError, match="-1 rows; there must be 0 or more"):
        tutti.norm_rows(-1)
    with pytest.raises(ValueError, match="the weight requires a gradient"):
        tutti.all_reduce_norm(x, torch.ones(8, requires_grad=True), group=world.gloo)
    with pytest.raises(ValueError, match="this rank is in no such group"):
        tutti.all_reduce_norm(x, group=dist.GroupMember.NON_GROUP_MEMBER)
    with pytest.raises(ValueError, match="norm_rows: this rank is in no such group"):
        tutti.norm_rows(4, dist.GroupMember.NON_GROUP_MEMBER)
    # No rank was left waiting.
    tutti.all_reduce_norm(x, w)
    assert torch.allclose(x, torch.ones(4, 8))


def test_mistakes_are_refused(shared):
    shared(2).run(mistakes)


def disagree(world):
    tutti.all_reduce_norm(torch.ones(4, 8), eps=1e-5 if world.rank else 1e-6)


def test_disagreement_is_an_error_on_every_rank(fresh):
    for outcome in fresh(2).outcomes(disagree):
        assert outcome.error == "MismatchError"
        assert "RMSNorm of rows of 8, epsilon 1e-05" in outcome.text

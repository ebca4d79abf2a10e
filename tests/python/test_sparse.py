"""Tests of all-reduce of sparse (COO) tensors: sums are those of gloo, and anything else is refused."""
import pytest
import torch
import torch.distributed as dist


def sparse(rank, seed, shape, dense_dims=0, count=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    places = shape[:len(shape) - dense_dims]
    indices = torch.stack([torch.randint(0, n, (count,), generator=generator) for n in places])
    values = torch.randint(-9, 9, (count, *shape[len(places):]), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


def check_sums(world):
    cases = [((7,), 0, 4), ((3, 5), 0, 6), ((3, 5), 1, 2), ((4, 2, 3), 2, 3), ((6, 2), 0, 0)]
    for seed, (shape, dense_dims, count) in enumerate(cases):
        for dtype in (torch.float32, torch.float64, torch.int64):
            # Ranks have the same number of elements, or different numbers.
            for uneven in (0, world.rank):
                ours = sparse(world.rank, seed, shape, dense_dims, count + uneven, dtype)
                judged = ours.clone()
                dist.all_reduce(ours)
                dist.all_reduce(judged, group=world.gloo)
                assert ours.is_coalesced() and ours.dtype == dtype
                assert torch.equal(ours.to_dense(), judged.to_dense()), (shape, dense_dims, dtype)
    work = dist.all_reduce(sparse(world.rank, 1, (4, 4)), async_op=True)
    assert work.get_future().wait()[0].is_sparse and work.is_completed()


@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_those_of_gloo(shared, size):
    shared(size).run(check_sums)


def check_refused(world):
    with pytest.raises(NotImplementedError, match="sparse tensors can only be summed.*to_dense"):
        dist.all_reduce(sparse(world.rank, 1, (4, 4)), op=dist.ReduceOp.MAX)
    shape = (4, 4 + world.rank)
    with pytest.raises(dist.DistBackendError, match=r"this rank's sparse tensor has sizes \[4, .\], rank .'s differ"):
        dist.all_reduce(sparse(world.rank, 1, shape))
    x = torch.ones(2)
    # The group still works.
    dist.all_reduce(x)
    assert x[0] == world.size


def test_other_reductions_and_shapes_are_refused(shared):
    shared(2).run(check_refused)

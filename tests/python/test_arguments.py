"""Arguments that are wrong on one rank are refused there, before anything is sent, with a text that says which tensor
and what to do; the group goes on working."""
import pytest
import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.distributed import ReduceOp


def refused(kind, pieces, call):
    try:
        call()
    except kind as error:
        for piece in pieces:
            assert piece in str(error), f"{piece!r} is not in: {error}"
    else:
        raise AssertionError(f"not refused; expected {kind.__name__} with {pieces}")


def backend():
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def freed():
    tensor = torch.ones(8)[4:]
    tensor.untyped_storage().resize_(0)
    return tensor


def fake():
    with FakeTensorMode():
        return torch.ones(3)


def tensors(call):
    return {
        "freed": (ValueError, ["has no memory", "32 bytes", "resize_"], lambda: call(freed())),
        "fake": (ValueError, ["has no memory", "fake"], lambda: call(fake())),
        "sparse": (ValueError, ["layout SparseCsr", "to_dense"], lambda: call(torch.ones(3, 3).to_sparse_csr())),
        "meta": (ValueError, ["meta device"], lambda: call(torch.ones(3, device="meta"))),
        "conjugate": (ValueError, ["resolve_conj"], lambda: call(torch.ones(3, dtype=torch.complex64).conj())),
        "quantized": (NotImplementedError, ["quantized", "int_repr"],
                      lambda: call(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8))),
    }


def check_tensors(world):
    b, me = backend(), world.rank
    for kind, pieces, call in tensors(lambda t: b.allreduce([t])).values():
        refused(kind, ["all_reduce", *pieces], call)
    for kind, pieces, call in tensors(lambda t: b.send([t], 1 - me, 0)).values():
        refused(kind, ["send", *pieces], call)
    refused(ValueError, ["one tensor", "2"], lambda: b.allreduce([torch.ones(1), torch.ones(1)]))
    dist.barrier()


def test_unusable_tensors_are_refused(shared):
    shared(2).run(check_tensors)


def check_reductions(world):
    refused(ValueError, ["float32"], lambda: dist.all_reduce(torch.ones(3), op=ReduceOp.BAND))
    refused(ValueError, ["bool"], lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), op=ReduceOp.AVG))
    refused(ValueError, ["int32"], lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32),
                                                           op=dist._make_nccl_premul_sum(2.0)))
    refused((ValueError, RuntimeError), ["omplex"],
            lambda: dist.all_reduce(torch.ones(3, dtype=torch.complex64), op=ReduceOp.MAX))
    opts = dist.AllreduceOptions()
    opts.reduceOp = ReduceOp.MAX
    refused(ValueError, ["complex64", "only summed or averaged"],
            lambda: backend().allreduce([torch.ones(3, dtype=torch.complex64)], opts))
    other = torch.empty(3, dtype=torch.float8_e8m0fnu)
    refused(NotImplementedError, ["float8_e8m0fnu", "moved, but not reduced"], lambda: dist.all_reduce(other))
    # Tensors of this type can be moved.
    dist.broadcast(other, 0)
    dist.barrier()


def test_undefined_reductions_are_refused(shared):
    shared(2).run(check_reductions)


def check_counts(world):
    p, one = world.size, torch.ones(4)
    refused(ValueError, ["output has 7 elements", f"must have {4 * p}"],
            lambda: dist.all_gather_single(torch.empty(7), one))
    refused(ValueError, ["input has 7 elements", f"must have {4 * p}"],
            lambda: dist.reduce_scatter_single(one, torch.empty(7)))
    refused(ValueError, [f"{p + 1} outputs", f"{p} ranks"], lambda: dist.all_gather([torch.empty(4)] * (p + 1), one))
    refused(ValueError, ["this rank's tensor has 4", "has 5"],
            lambda: dist.all_gather([torch.empty(5) for _ in range(p)], one))
    refused(ValueError, ["5 rows", "evenly"], lambda: dist.all_to_all_single(torch.empty(5), torch.empty(5)))
    refused(ValueError, ["add up to 3", "4 rows"], lambda: dist.all_to_all_single(one.clone(), one, [1, 2], [2, 2]))
    refused(ValueError, ["3 input split sizes"], lambda: dist.all_to_all_single(one.clone(), one, [2, 2], [1, 1, 2]))
    refused(ValueError, ["negative"], lambda: dist.all_to_all_single(one.clone(), one, [2, 2], [5, -1]))
    lists = [torch.empty(4), torch.empty(3)]
    if world.rank == 0:
        refused(ValueError, ["output 1 has 3", "output 0 has 4"], lambda: dist.gather(one, lists, dst=0))
        refused(ValueError, ["input 1 has 3", "input 0 has 4"], lambda: dist.scatter(one, lists, src=0))
    dist.barrier()


def test_wrong_counts_are_refused(shared):
    shared(2).run(check_counts)


def check_types(world):
    one, whole = torch.ones(4), torch.empty(8, dtype=torch.float64)
    b = backend()
    refused(ValueError, ["input is float32", "output is float64"], lambda: b._allgather_base(whole, one))
    refused((ValueError, RuntimeError), ["float"], lambda: b.allgather([[torch.empty(4),
                                                                         torch.empty(4, dtype=torch.float16)]], [one]))
    refused(ValueError, ["float32", "int64"], lambda: b.alltoall_base(one.long(), one, [], []))
    dist.barrier()


def test_differing_types_are_refused(shared):
    shared(2).run(check_types)


def check_ranks_and_tags(world):
    b, one = backend(), torch.ones(4)
    options = dist.BroadcastOptions()
    # The core's roots have 32 bits, in which the last two would be 0 and 1.
    for root in (7, -1, 1 << 32, (1 << 32) + 1):
        options.rootRank = root
        refused(ValueError, [f"root {root} ", "0 to 1"], lambda: b.broadcast([one], options))
        refused(ValueError, [f"root {root} "], lambda: dist.reduce(one, root))
        refused(ValueError, [f"root {root} "], lambda: dist.gather(one, None, root))
        refused(ValueError, [f"root {root} "], lambda: dist.scatter(one, None, root))
    refused(ValueError, ["peer 9", "0 to 1"], lambda: b.send([one], 9, 0))
    refused(ValueError, ["tag -3"], lambda: b.send([one], 1 - world.rank, -3))
    refused(ValueError, ["without start_coalescing"], lambda: b._end_coalescing() if hasattr(b, "_end_coalescing")
            else dist.group.WORLD._end_coalescing(torch.device("cpu")))
    dist.barrier()


def test_invalid_ranks_and_tags_are_refused(shared):
    shared(2).run(check_ranks_and_tags)


def check_overlap(world):
    """Checks that an input and an output may overlap only as an operation in place has them. Any other overlap is
    refused, and then no operation of a coalesced call starts."""
    me, p, n = world.rank, world.size, 1000
    memory = torch.arange(p * n + 1.0)
    whole, mine, beside = memory[:p * n], memory[me * n:][:n], memory[me * n + 1:][:n]
    text = ["overlaps", "in memory", f"part {me}"]
    group, device = dist.group.WORLD, torch.device("cpu")
    refused(ValueError, text, lambda: dist.reduce_scatter_single(beside, whole))
    refused(ValueError, text, lambda: dist.all_gather_single(whole, beside))
    apart = [torch.empty(n), torch.empty(p * n)]
    refused(ValueError, text, lambda: group.reduce_scatter_tensor_coalesced([apart[0], beside], [apart[1], whole]))
    refused(ValueError, text, lambda: group.allgather_into_tensor_coalesced([apart[1], whole], [apart[0], beside]))
    refused(ValueError, ["buffers overlap", "cannot work in place"],
            lambda: dist.all_to_all_single(whole, memory[1:]))
    assert torch.equal(memory, torch.arange(p * n + 1.0))
    dist.reduce_scatter_single(mine, whole)
    assert torch.equal(mine, p * torch.arange(me * n, (me + 1) * n))
    dist.all_gather_single(whole, mine)
    assert torch.equal(whole, p * torch.arange(p * n))


def test_overlap_out_of_place_is_refused(shared):
    shared(2).run(check_overlap)


def overlapping_lists(world):
    me, p, n = world.rank, world.size, 1000

    def parts():
        """Returns tensors that follow one another in memory, a tensor that overlaps two of them, and the memory."""
        memory = torch.arange(p * n + 0.0)
        return list(memory.split(n)), memory[n // 2:][:n], memory

    want = torch.arange(p * n + 0.0)
    across = want[n // 2:][:n].clone()
    outs, x, _ = parts()
    dist.all_gather(outs, x)
    assert all(torch.equal(out, across) for out in outs)
    ins, x, _ = parts()
    dist.reduce_scatter(x, ins)
    assert torch.equal(x, p * want[me * n:][:n])
    outs, x, _ = parts()
    dist.gather(x, outs if me == 0 else None, dst=0)
    assert me or all(torch.equal(out, across) for out in outs)
    ins, x, _ = parts()
    dist.scatter(x, ins if me == 0 else None, src=0)
    assert torch.equal(x, want[me * n:][:n])
    ins, _, memory = parts()
    longer = torch.cat([memory, memory[:1]])
    dist.all_to_all(list(longer[1:].split(n)), list(longer[:-1].split(n)))
    assert torch.equal(longer[1:], want[me * n:][:n].repeat(p))


def test_lists_that_overlap_work(shared):
    shared(2).run(overlapping_lists)


def check_algorithms(world):
    import torch_tutti
    for text, pieces in (("allreduce=rign", ["rign", "ring"]), ("allreduec=ring", ["allreduec", "allreduce"])):
        refused(ValueError, pieces, lambda: dist.new_group(pg_options=torch_tutti.Options(algorithm=text)))
    refused(TypeError, ["torch_tutti.Options"], lambda: dist.new_group(pg_options="ring"))
    refused(ValueError, ["timeout"], lambda: torch_tutti.Options(timeout=__import__("datetime").timedelta(0)))
    dist.barrier()


def test_unknown_algorithms_and_options_are_refused(shared):
    shared(2).run(check_algorithms)


def check_missing_list(world):
    with pytest.raises(Exception):
        backend().reduce_scatter([torch.ones(1)], [])
    dist.barrier()


def test_empty_list_is_refused(shared):
    shared(2).run(check_missing_list)

"""Tests that every collective gives what gloo gives in the same processes, or what torch computes from all ranks'
inputs where gloo cannot: types, reductions, odd counts, empty tensors, roots, uneven parts. Inputs are small integers,
so every sum is exact in every type."""
import pytest
import torch
import torch.distributed as dist
from arithmetic import by_host, hosts_of
from torch.distributed import ReduceOp

SIZES = [2, 3, 4]
COUNTS = [0, 1, 7, 1000, 65539]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
MOVED = [*FLOATS, *INTEGERS, *FLOAT8, torch.bool, torch.complex64, torch.complex128]
GLOO_MOVES = [*FLOATS, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool]


def brought(rank, count, dtype):
    """Returns the input of a rank: numbers from 1 to 3, so that products of four stay small."""
    values = (torch.arange(count) * 7 + rank * 3) % 3 + 1
    if dtype == torch.bool:
        return values == 1
    if dtype.is_complex:
        return torch.complex(values.double(), -values.double()).to(dtype)
    return values.to(torch.float32).to(dtype) if dtype in FLOAT8 else values.to(dtype)


def same(got, expected):
    assert got.dtype == expected.dtype and got.shape == expected.shape
    if got.dtype in FLOAT8:
        got, expected = got.float(), expected.float()
    assert torch.equal(got, expected), f"{got.flatten()[:8]} is not {expected.flatten()[:8]}"


# ---- reductions ----
def reduced(parts, op):
    """Returns the reduction of the ranks' tensors, by torch. With 8-bit floats on several hosts, the result of each
    host is rounded."""
    of_hosts, divisor = by_host(parts, hosts_of(range(len(parts)), len(parts))), len(parts)
    if parts[0].dtype in FLOAT8 and len(of_hosts) > 1:
        parts = [together(of_host, ReduceOp.SUM if op == ReduceOp.AVG else op, 1) for of_host in of_hosts]
    return together(parts, op, divisor)


def together(parts, op, divisor):
    dtype = parts[0].dtype
    wide = torch.stack([p.to(torch.float32) if dtype in FLOAT8 else p.to(torch.int64) if dtype in INTEGERS else p
                        for p in parts])
    if dtype == torch.bool:
        return {ReduceOp.SUM: wide.any(0), ReduceOp.MAX: wide.any(0), ReduceOp.BOR: wide.any(0),
                ReduceOp.PRODUCT: wide.all(0),
                ReduceOp.MIN: wide.all(0), ReduceOp.BAND: wide.all(0), ReduceOp.BXOR: wide.sum(0) % 2 == 1}[op]
    if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        name = {ReduceOp.BAND: "bitwise_and", ReduceOp.BOR: "bitwise_or", ReduceOp.BXOR: "bitwise_xor"}[op]
        total = wide[0]
        for part in wide[1:]:
            total = getattr(torch, name)(total, part)
        return total.to(dtype)
    if op == ReduceOp.AVG:
        total = wide.sum(0)
        return (total // divisor if dtype in INTEGERS else total / divisor).to(dtype)
    compute = {ReduceOp.SUM: lambda: wide.sum(0), ReduceOp.PRODUCT: lambda: wide.prod(0),
               ReduceOp.MIN: lambda: wide.amin(0),
               ReduceOp.MAX: lambda: wide.amax(0)}
    return compute[op]().to(dtype)


ARITHMETIC = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
BITWISE = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
PAIRS = [(d, op) for d in [*FLOATS, *INTEGERS, *FLOAT8] for op in [*ARITHMETIC, ReduceOp.AVG]]
PAIRS += [(d, op) for d in INTEGERS for op in BITWISE] + [(torch.bool, op) for op in [*ARITHMETIC, *BITWISE]]


def check_reductions(world, dtype, ops):
    for op in ops:
        for count in COUNTS:
            parts = [brought(r, count, dtype) for r in range(world.size)]
            expected = reduced(parts, op)
            mine = parts[world.rank].clone()
            dist.all_reduce(mine, op=op)
            same(mine, expected)
            if dtype in GLOO_MOVES and dtype != torch.bool and op in ARITHMETIC:
                judged = parts[world.rank].clone()
                dist.all_reduce(judged, op=op, group=world.gloo)
                same(mine, judged)
            root = count % world.size
            mine = parts[world.rank].clone()
            dist.reduce(mine, root, op=op)
            same(mine, expected if world.rank == root else parts[world.rank])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", sorted({d for d, _ in PAIRS}, key=str), ids=str)
def test_all_reduce_and_reduce(shared, size, dtype):
    shared(size).run(check_reductions, dtype, [op for d, op in PAIRS if d == dtype])


def check_reduce_scatter(world, dtype, ops):
    for op in ops:
        for count in COUNTS:
            whole = [brought(r, count * world.size, dtype) for r in range(world.size)]
            expected = reduced(whole, op).chunk(world.size)[world.rank] if count else brought(0, 0, dtype)
            out = torch.empty(count, dtype=dtype)
            dist.reduce_scatter_single(out, whole[world.rank], op=op)
            same(out, expected)
            out = torch.empty(count, dtype=dtype)
            inputs = [whole[world.rank][q * count:(q + 1) * count].clone() for q in range(world.size)]
            dist.reduce_scatter(out, inputs, op=op)
            same(out, expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
def test_reduce_scatter(shared, size, dtype):
    shared(size).run(check_reduce_scatter, dtype, [op for d, op in PAIRS if d == dtype])


def check_complex(world):
    for op in (ReduceOp.SUM, ReduceOp.AVG):
        parts = [brought(r, 33, torch.complex64) for r in range(world.size)]
        mine = parts[world.rank].clone()
        dist.all_reduce(mine, op=op)
        total = torch.stack(parts).sum(0)
        torch.testing.assert_close(mine, total / world.size if op == ReduceOp.AVG else total)


def test_complex_sums(shared):
    shared(3).run(check_complex)


def check_premultiplied(world):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        mine = brought(world.rank, 100, dtype)
        dist.all_reduce(mine, op=dist._make_nccl_premul_sum(0.5))
        same(mine, (torch.stack([brought(r, 100, dtype).float() * 0.5 for r in range(world.size)]).sum(0)).to(dtype))
    out = torch.empty(5)
    dist.reduce_scatter_single(out, torch.ones(5 * world.size), op=dist._make_nccl_premul_sum(torch.tensor(0.25)))
    same(out, torch.full((5,), 0.25 * world.size))


def test_premultiplied_sum(shared):
    shared(4).run(check_premultiplied)


# ---- moving ----
def check_moves(world, dtype):
    p, me = world.size, world.rank
    for count in COUNTS:
        parts = [brought(r, count, dtype) for r in range(p)]
        whole = torch.cat(parts)
        for root in range(p):
            mine = parts[me].clone()
            dist.broadcast(mine, root)
            same(mine, parts[root])
            lists = [torch.empty_like(parts[0]) for _ in range(p)] if me == root else None
            dist.gather(parts[me], lists, dst=root)
            for got, part in zip(lists or [], parts):
                same(got, part)
            out = torch.empty_like(parts[0])
            dist.scatter(out, [x.clone() for x in parts] if me == root else None, src=root)
            same(out, parts[me])
        out = torch.empty_like(whole)
        dist.all_gather_single(out, parts[me])
        same(out, whole)
        lists = [torch.empty_like(parts[0]) for _ in range(p)]
        dist.all_gather(lists, parts[me])
        same(torch.cat(lists), whole)
        lists = list(torch.empty_like(whole).chunk(p)) if count else lists
        # These outputs follow one another in memory, so they need no packing.
        dist.all_gather(lists, parts[me])
        same(torch.cat(lists), whole)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_broadcast_gather_scatter_and_all_gather(shared, size, dtype):
    shared(size).run(check_moves, dtype)


def check_against_gloo(world, dtype):
    """Runs the same calls on both groups, with shapes of several dimensions, and compares the results."""
    p, me = world.size, world.rank
    results = []
    for group in (None, world.gloo):
        x = brought(me, 24 * p, dtype).reshape(2 * p, 3, 4)
        lists = [torch.zeros(2, 3, dtype=dtype) for _ in range(p)]
        dist.all_gather(lists, brought(me, 6, dtype).reshape(2, 3), group=group)
        gathered = torch.zeros(p * 2, 3, dtype=dtype)
        dist.all_gather_single(gathered, brought(me, 6, dtype).reshape(2, 3), group=group)
        exchanged = torch.zeros_like(x)
        dist.all_to_all_single(exchanged, x, group=group)
        b = x.clone()
        dist.broadcast(b, p - 1, group=group)
        results.append([*lists, gathered, exchanged, b])
    for got, expected in zip(*results):
        same(got, expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", GLOO_MOVES, ids=str)
def test_collectives_that_move_give_the_results_of_gloo(shared, size, dtype):
    shared(size).run(check_against_gloo, dtype)


def check_exchanges(world, dtype):
    p, me = world.size, world.rank
    part = lambda source, target, count: brought(source * p + target, count, dtype)
    for count in COUNTS:
        out = torch.empty(p * count, dtype=dtype)
        dist.all_to_all_single(out, torch.cat([part(me, q, count) for q in range(p)]))
        same(out, torch.cat([part(q, me, count) for q in range(p)]))
        outs = [torch.empty(count, dtype=dtype) for _ in range(p)]
        dist.all_to_all(outs, [part(me, q, count) for q in range(p)])
        same(torch.cat(outs), torch.cat([part(q, me, count) for q in range(p)]))
    # Some parts are empty.
    size = lambda source, target: (source * 5 + target * 3) % 7 * 11
    outs = [torch.empty(size(q, me), dtype=dtype) for q in range(p)]
    inputs = [part(me, q, size(me, q)) for q in range(p)]
    dist.all_to_all(outs, inputs)
    expected = torch.cat([part(q, me, size(q, me)) for q in range(p)])
    same(torch.cat(outs), expected)
    out = torch.empty(len(expected), dtype=dtype)
    dist.all_to_all_single(out, torch.cat(inputs), [size(q, me) for q in range(p)], [size(me, q) for q in range(p)])
    same(out, expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.complex64], ids=str)
def test_all_to_all_with_even_and_uneven_parts(shared, size, dtype):
    shared(size).run(check_exchanges, dtype)


def check_uneven(world):
    p, me = world.size, world.rank
    counts = [3 * r + 1 for r in range(p)]
    lists = [torch.empty(c) for c in counts]
    dist.all_gather(lists, brought(me, counts[me], torch.float32))
    for r, got in enumerate(lists):
        same(got, brought(r, counts[r], torch.float32))
    out = torch.empty(counts[me])
    dist.reduce_scatter(out, [torch.full((c,), float(me + 1)) for c in counts])
    same(out, torch.full((counts[me],), p * (p + 1) / 2))


@pytest.mark.parametrize("size", SIZES)
def test_lists_of_uneven_tensors(shared, size):
    shared(size).run(check_uneven)


def check_in_place(world):
    p, me = world.size, world.rank
    whole = torch.zeros(p * 5)
    whole[me * 5:(me + 1) * 5] = me
    dist.all_gather_single(whole, whole[me * 5:(me + 1) * 5])
    same(whole, torch.arange(p).repeat_interleave(5).float())
    lists = [torch.full((5,), float(me)) for _ in range(p)]
    dist.all_gather(lists, lists[me])
    same(torch.cat(lists), whole)
    buffer = torch.full((p * 5,), float(me + 1))
    dist.reduce_scatter_single(buffer[me * 5:(me + 1) * 5], buffer)
    same(buffer[me * 5:(me + 1) * 5], torch.full((5,), p * (p + 1) / 2))
    rows = list(torch.full((p * 4,), float(me)).chunk(p))
    # Inputs that are also outputs are copied first.
    dist.all_to_all(rows, rows)
    same(torch.cat(rows), torch.arange(p).repeat_interleave(4).float())


def test_outputs_may_be_inputs(shared):
    shared(3).run(check_in_place)


def check_barrier(world):
    for _ in range(20):
        dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    return True


def test_barrier(shared):
    assert shared(4).run(check_barrier) == [True] * 4


def check_objects(world):
    everything = [None] * world.size
    dist.all_gather_object(everything, {"rank": world.rank, "text": "x" * world.rank * 1000})
    assert [e["rank"] for e in everything] == list(range(world.size))
    received = [["a", {"b": 3}] if world.rank == 1 else None]
    dist.broadcast_object_list(received, src=1)
    assert received == [["a", {"b": 3}]]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(world.size)] if world.rank == 0 else None, src=0)
    assert mine == [f"for {world.rank}"]


def test_objects(shared):
    shared(3).run(check_objects)


def check_large(world):
    count = 3_000_001
    x = torch.full((count,), float(world.rank + 1))
    dist.all_reduce(x)
    same(x, torch.full((count,), world.size * (world.size + 1) / 2))


@pytest.mark.parametrize("size", SIZES)
def test_all_reduce_of_many_tiles(shared, size):
    shared(size).run(check_large)


# ---- uneven lists that overlap, and a refused call ----
def uneven_views(world):
    p, me = world.size, world.rank
    counts = [2 + r for r in range(p)]
    row = torch.zeros(sum(counts))
    parts = list(row.split(counts))
    parts[me].fill_(me + 1)
    # The input of each rank is one of its outputs.
    dist.all_gather(parts, parts[me])
    assert torch.equal(row, torch.cat([torch.full((n,), r + 1.0) for r, n in enumerate(counts)]))
    inputs = [torch.full((n,), 10.0 ** r * (me + 1)) for r, n in enumerate(counts)]
    # On rank 0 the output lies in a later input.
    output = inputs[p - 1][:counts[me]] if me == 0 else torch.empty(counts[me])
    dist.reduce_scatter(output, inputs)
    assert torch.equal(output, torch.full((counts[me],), 10.0 ** me * p * (p + 1) / 2))


@pytest.mark.parametrize("size", [2, 3])
def test_uneven_lists_that_overlap(shared, size):
    shared(size).run(uneven_views)


def coalesced_with_one_wrong(world):
    x = torch.ones(2)
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(world.size)]
    # Only rank 0 makes the call, which is refused before anything starts.
    with pytest.raises((ValueError, RuntimeError)):
        if world.rank == 0:
            dist.group.WORLD._get_backend(torch.device("cpu")).allgather_coalesced(
                lists, [x, torch.ones(3, dtype=torch.float64)])
        else:
            raise ValueError
    dist.all_reduce(x)
    assert x[0] == world.size


def test_group_works_after_a_refused_coalesced_call(shared):
    shared(2).run(coalesced_with_one_wrong)

"""Tests of tensors that are not contiguous: every operation gives what it gives for contiguous ones, and writes nothing
beside the tensor. all_reduce, reduce and broadcast use a dense tensor in the order of its memory, so they compare
strides between ranks."""
import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

SHAPE = (2, 3, 4, 5)
UNTOUCHED = -7


def numbers(rank, *shape):
    return (torch.arange(torch.Size(shape).numel()) * 7 + rank * 3).remainder(11).add(1).reshape(shape).float()


def channels_last(values):
    return values.contiguous(memory_format=torch.channels_last)


def transposed(values):
    return values.t().contiguous().t() if values.dim() == 2 else values.transpose(0, -1).contiguous().transpose(0, -1)


def strided(values):
    """Returns the values as every second element of the first and of the last dimension of a larger tensor."""
    room = torch.full((2 * len(values), *values.shape[1:-1], 2 * values.shape[-1]), float(UNTOUCHED))
    room[1::2, ..., ::2] = values
    return room[1::2, ..., ::2]


def plain(values):
    return values.clone()


LAYOUTS = [channels_last, transposed, strided]


def beside(tensor):
    """Returns a copy of the tensor's storage in which the tensor's own elements are UNTOUCHED."""
    whole = torch.empty(0).set_(tensor.untyped_storage()).clone()
    whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).fill_(UNTOUCHED)
    return whole


# ---- every operation; each function returns the Work, and the outputs as the views that the operation wrote ----
def all_reduce(world, lay, **options):
    x = lay(numbers(world.rank, *SHAPE))
    return dist.all_reduce(x, **options), [x]


def all_reduce_premultiplied(world, lay, **options):
    x = lay(numbers(world.rank, *SHAPE))
    return dist.all_reduce(x, dist._make_nccl_premul_sum(2.0), **options), [x]


def all_reduce_coalesced(world, lay, **options):
    xs = [lay(numbers(world.rank, *SHAPE)), torch.ones(3), lay(numbers(world.rank + 1, *SHAPE))]
    return dist.all_reduce_coalesced(xs, **options), xs


def reduce(world, lay, **options):
    x = lay(numbers(world.rank, *SHAPE))
    return dist.reduce(x, world.size - 1, **options), [x]


def reduce_premultiplied(world, lay, **options):
    x = lay(numbers(world.rank, *SHAPE))
    return dist.reduce(x, 0, dist._make_nccl_premul_sum(2.0), **options), [x]


def broadcast(world, lay, **options):
    x = lay(numbers(world.rank, *SHAPE))
    return dist.broadcast(x, 1, **options), [x]


def all_gather(world, lay, **options):
    outputs = [lay(torch.zeros(SHAPE)) for _ in range(world.size)]
    return dist.all_gather(outputs, lay(numbers(world.rank, *SHAPE)), **options), outputs


def all_gather_into_columns(world, lay, **options):
    """The outputs lie between each other's elements."""
    whole = lay(torch.zeros(6, 2, 2, world.size))
    return dist.all_gather(list(whole.unbind(-1)), numbers(world.rank, 6, 2, 2), **options), [whole]


def all_gather_single(world, lay, **options):
    output = lay(torch.zeros(2 * world.size, *SHAPE[1:]))
    return dist.all_gather_into_tensor(output, lay(numbers(world.rank, *SHAPE)), **options), [output]


def all_gather_coalesced(world, lay, **options):
    inputs = [lay(numbers(world.rank, *SHAPE)), numbers(world.rank, 3)]
    outputs = [[lay(torch.zeros(SHAPE)), torch.zeros(3)] for _ in range(world.size)]
    return dist.all_gather_coalesced(outputs, inputs, **options), sum(outputs, [])


def reduce_scatter(world, lay, **options):
    output = lay(torch.zeros(SHAPE))
    inputs = [lay(numbers(world.rank + 5 * i, *SHAPE)) for i in range(world.size)]
    return dist.reduce_scatter(output, inputs, **options), [output]


def reduce_scatter_single(world, lay, **options):
    output = lay(torch.zeros(SHAPE))
    whole = lay(numbers(world.rank, 2 * world.size, *SHAPE[1:]))
    return dist.reduce_scatter_tensor(output, whole, ReduceOp.MAX, **options), [output]


def gather(world, lay, **options):
    outputs = [lay(torch.zeros(SHAPE)) for _ in range(world.size)] if world.rank == 1 else []
    return dist.gather(lay(numbers(world.rank, *SHAPE)), outputs or None, 1, **options), outputs


def scatter(world, lay, **options):
    output = lay(torch.zeros(SHAPE))
    inputs = [lay(numbers(i, *SHAPE)) for i in range(world.size)] if world.rank == 0 else None
    return dist.scatter(output, inputs, 0, **options), [output]


def all_to_all(world, lay, **options):
    outputs = [lay(torch.zeros(SHAPE)) for _ in range(world.size)]
    inputs = [lay(numbers(world.rank + 5 * i, *SHAPE)) for i in range(world.size)]
    return dist.all_to_all(outputs, inputs, **options), outputs


def all_to_all_single(world, lay, **options):
    output = lay(torch.zeros(2 * world.size, *SHAPE[1:]))
    whole = lay(numbers(world.rank, 2 * world.size, *SHAPE[1:]))
    return dist.all_to_all_single(output, whole, **options), [output]


OPERATIONS = [all_reduce, all_reduce_premultiplied, all_reduce_coalesced, reduce, reduce_premultiplied, broadcast,
              all_gather, all_gather_into_columns, all_gather_single, all_gather_coalesced, reduce_scatter,
              reduce_scatter_single, gather, scatter, all_to_all, all_to_all_single]


@pytest.mark.filterwarnings("ignore")
def check_operations(world, lay):
    for operation in OPERATIONS:
        _, expected = operation(world, plain)
        for later in False, True:
            work, got = operation(world, lay, async_op=later)
            if later:
                work.wait()
            for mine, theirs in zip(got, expected, strict=True):
                assert torch.equal(mine, theirs), (operation.__name__, lay.__name__, later)
                assert beside(mine).eq(UNTOUCHED).all(), (operation.__name__, lay.__name__, later)


@pytest.mark.parametrize("lay", LAYOUTS, ids=lambda lay: lay.__name__)
@pytest.mark.parametrize("size", [2, 3])
def test_operations_on_tensors_that_are_not_contiguous(shared, size, lay):
    shared(size).run(check_operations, lay)


# ---- messages, futures, coalesced calls ----
def check_messages(world):
    mine, other = numbers(world.rank, 6, 4), 1 - world.rank
    for lay in transposed, strided, plain:
        into = (strided if lay is plain else plain)(torch.zeros(6, 4))
        works = [dist.isend(lay(mine), other), dist.irecv(into, other)]
        for work in works:
            work.wait()
        assert torch.equal(into, numbers(other, 6, 4)) and beside(into).eq(UNTOUCHED).all()
        into.zero_()
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, lay(mine), other),
                                            dist.P2POp(dist.irecv, into, other)]):
            work.wait()
        assert torch.equal(into, numbers(other, 6, 4))


def test_messages_of_tensors_that_are_not_contiguous(shared):
    shared(2).run(check_messages)


def check_futures(world):
    for lay in LAYOUTS:
        x, total = lay(numbers(world.rank, *SHAPE)), sum(numbers(rank, *SHAPE) for rank in range(world.size))
        result, = dist.all_reduce(x, async_op=True).get_future().wait()
        assert result.data_ptr() == x.data_ptr() and result.stride() == x.stride() and torch.equal(result, total)
        outputs = [lay(torch.zeros(SHAPE)) for _ in range(world.size)]
        result, = dist.all_gather(outputs, x, async_op=True).get_future().then(lambda f: [y.clone() for y in f.value()]
                                                                               ).wait()[:1]
        assert torch.equal(result, total)
        polled = dist.all_reduce(x, async_op=True)
        while not polled.is_completed():
            pass
        assert torch.equal(x, world.size * total)
        first, second = dist.all_reduce(x, async_op=True), dist.all_reduce(x, async_op=True)
        second.wait()
        first.wait()
        assert torch.equal(x, world.size ** 3 * total)


def test_futures_and_pending_results(shared):
    shared(2).run(check_futures)


# ---- ranks that differ ----
def differ(world, operation, *others):
    x = channels_last(numbers(world.rank, *SHAPE)) if world.rank else others[0](numbers(world.rank, *SHAPE))
    try:
        {"all_reduce": dist.all_reduce, "reduce": lambda x: dist.reduce(x, 0),
         "broadcast": lambda x: dist.broadcast(x, 0)}[operation](x)
        dist.barrier()
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("other, words", [(plain, "algorithm"), (transposed, "dimensions in the memory order 3 1 2 0")],
                         ids=["contiguous", "transposed"])
@pytest.mark.parametrize("operation", ["all_reduce", "reduce", "broadcast"])
def test_ranks_with_other_strides_get_an_error(fresh, operation, other, words):
    for text in fresh(2).run(differ, operation, other):
        assert "ranks disagree about operation 1" in text and words in text
        assert "dimensions in the memory order 0 2 3 1" in text
        assert "with tensors of the same strides: use tensor.contiguous() on all ranks" in text


def check_copies_need_not_agree(world):
    """A copy puts the elements into the order of their indices, so ranks may have different strides."""
    lay = [plain, channels_last, strided][world.rank]
    x = strided(numbers(world.rank, *SHAPE)) if world.rank else numbers(world.rank, *SHAPE)
    dist.all_reduce(x)
    assert torch.equal(x, sum(numbers(rank, *SHAPE) for rank in range(world.size)))
    outputs = [lay(torch.zeros(SHAPE)) for _ in range(world.size)]
    dist.all_gather(outputs, lay(numbers(world.rank, *SHAPE)))
    assert all(torch.equal(output, numbers(rank, *SHAPE)) for rank, output in enumerate(outputs))


def test_strides_of_copied_tensors_may_differ(shared):
    shared(3).run(check_copies_need_not_agree)


# ---- refused calls ----
def check_refused(world):
    expanded, p = torch.ones(3, 1).expand(3, 4), world.size
    lists = [expanded] * p
    text = r"{} tensor receives a result, but several of its elements share memory \(sizes \[3, 4\], strides \[1, 0\]\)"
    for name, role, call in (
            ("all_reduce", "input", lambda: dist.all_reduce(expanded)),
            ("reduce", "input", lambda: dist.reduce(expanded, 0)),
            ("broadcast", "input", lambda: dist.broadcast(expanded, 0)),
            ("all_gather", "output 0", lambda: dist.all_gather(lists, torch.ones(3, 4))),
            ("reduce_scatter", "output", lambda: dist.reduce_scatter(expanded, [torch.ones(3, 4)] * p)),
            ("scatter", "output", lambda: dist.scatter(expanded, [torch.ones(3, 4)] * p if world.rank == 0 else None)),
            ("recv", "output", lambda: dist.recv(expanded, (world.rank + 1) % p))):
        with pytest.raises(ValueError, match=f"{name}: the " + text.format(role) + r"; use tensor.clone\(\)"):
            call()
    rows = torch.zeros(3, 8)[:, ::2]
    with pytest.raises(ValueError, match="output 0 and output 1 overlap in memory"):
        dist.all_gather([rows] * p, torch.ones(3, 4))
    outputs = [torch.zeros(3, 4) for _ in range(p)]
    # An expanded tensor can be sent.
    dist.all_gather(outputs, expanded)
    assert all(output.eq(1).all() for output in outputs)


def test_expanded_outputs_are_refused(shared):
    shared(2).run(check_refused)

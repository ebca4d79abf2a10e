"""Checks of tensors of a device, for any kind of device: test_devices.py runs them on the emulated one,
tests/gpu/test_cuda.py on a GPU.

Contents are written late (`late`), on the current stream, so that an operation which does not wait for the stream reads
something else. Values are small integers, exact in every type and in every order of summation.
"""
import threading
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_tutti
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.utils._python_dispatch import TorchDispatchMode

LIMIT_S = 60
WRONG = 77


def join(world, kind):
    """Makes the default group, for tensors of the CPU and of the device. Several ranks may share a GPU."""
    if kind == "sim":
        from sim_device import load
        load()
    # Later versions of torch warn of names for which torch 2.11 has no successors.
    warnings.simplefilter("ignore", FutureWarning)
    count = torch.get_device_module(kind).device_count()
    world.kept["device"] = torch.device(kind, world.rank % count if kind == "cuda" else 0)
    torch.get_device_module(kind).set_device(world.kept["device"].index)
    backend = "tutti" if kind == "cuda" else f"cpu:tutti,{kind}:tutti"
    dist.init_process_group(backend, store=world.store, rank=world.rank, world_size=world.size,
                            timeout=timedelta(seconds=LIMIT_S))


def numbers(rank, *shape, seed=0, dtype=torch.float32):
    count = int(torch.Size(shape).numel())
    return ((torch.arange(count) * 7 + rank * 3 + seed) % 11 + 1).reshape(shape).to(dtype)


def late(values, device):
    """Returns a tensor of the device at once. The current stream writes its values later."""
    source = values.to(device)
    target = torch.full_like(values, WRONG).to(device)
    if device.type == "cuda":
        torch.cuda._sleep(20_000_000)
    target.copy_(source, non_blocking=True)
    return target


def keep_busy(device):
    """Enqueues copies on the current stream, so that it is late for what follows."""
    x, y = torch.zeros(3).to(device), torch.zeros(3).to(device)
    for _ in range(6):
        if device.type == "cuda":
            torch.cuda._sleep(20_000_000)
        x.copy_(y)


def same(got, expected, what=""):
    got = got.cpu()
    assert torch.equal(got, expected), f"{what}: {got.flatten()[:8]} is not {expected.flatten()[:8]}"


def total(world, *shape, **options):
    return sum(numbers(rank, *shape, **options) for rank in range(world.size))


# ---- every operation ----
# make(values) returns a tensor on the CPU or the device; later=True makes the call asynchronous. Each function returns
# the Works to wait for, and the outputs.
def all_reduce(world, make, later):
    x = make(numbers(world.rank, 5, 3))
    return [dist.all_reduce(x, async_op=later)], [x]


def all_reduce_of_types(world, make, later):
    types = [torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.int16, torch.complex64]
    xs = [make(numbers(world.rank, 3, dtype=dtype)) for dtype in types]
    return [dist.all_reduce(x, async_op=later) for x in xs], xs


def all_reduce_max(world, make, later):
    x = make(numbers(world.rank, 4000))
    return [dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=later)], [x]


def all_reduce_avg_of_slice(world, make, later):
    whole = make(numbers(world.rank, 6, 2, dtype=torch.float64))
    return [dist.all_reduce(whole[2:4], op=dist.ReduceOp.AVG, async_op=later)], [whole]


def all_reduce_of_nothing(world, make, later):
    x = make(numbers(world.rank, 0))
    return [dist.all_reduce(x, async_op=later)], [x]


def all_reduce_coalesced(world, make, later):
    xs = [make(numbers(world.rank, 3 + i)) for i in range(3)]
    return [dist.all_reduce_coalesced(xs, async_op=later)], xs


def all_reduce_norm(world, make, later):
    x, residual, weight = make(numbers(world.rank, 5, 3)), make(numbers(4, 5, 3)), make(numbers(2, 3))
    torch_tutti.all_reduce_norm(x, weight, residual=residual)
    return [], [x, residual]


def all_reduce_transposed(world, make, later):
    x = make(numbers(world.rank, 5, 3))
    return [dist.all_reduce(x.t(), async_op=later)], [x]


def all_gather_strided(world, make, later):
    whole = make(torch.zeros(world.size, 4, 6))
    inputs = make(numbers(world.rank, 3, 4)).t()
    return [dist.all_gather([part[:, ::2] for part in whole], inputs, async_op=later)], [whole]


def broadcast(world, make, later):
    x = make(numbers(world.rank, 7))
    return [dist.broadcast(x, world.size - 1, async_op=later)], [x]


def reduce(world, make, later):
    x = make(numbers(world.rank, 7))
    return [dist.reduce(x, 1, async_op=later)], [x]


def all_gather(world, make, later):
    outputs = [make(torch.zeros(4)) for _ in range(world.size)]
    return [dist.all_gather(outputs, make(numbers(world.rank, 4)), async_op=later)], outputs


def all_gather_uneven(world, make, later):
    outputs = [make(torch.zeros(2 * rank, 2)) for rank in range(world.size)]
    return [dist.all_gather(outputs, make(numbers(world.rank, 2 * world.rank, 2)), async_op=later)], outputs


def all_gather_into_tensor(world, make, later):
    output = make(torch.zeros(world.size * 3))
    return [dist.all_gather_into_tensor(output, make(numbers(world.rank, 3)), async_op=later)], [output]


def all_gather_in_place(world, make, later):
    output = make(numbers(world.rank, world.size, 3))
    return [dist.all_gather_into_tensor(output, output[world.rank], async_op=later)], [output]


def gather(world, make, later):
    outputs = [make(torch.zeros(4)) for _ in range(world.size)] if world.rank == 1 else None
    return [dist.gather(make(numbers(world.rank, 4)), outputs, 1, async_op=later)], outputs or []


def scatter(world, make, later):
    output = make(torch.zeros(4))
    inputs = [make(numbers(rank, 4, seed=5)) for rank in range(world.size)] if world.rank == 1 else None
    return [dist.scatter(output, inputs, 1, async_op=later)], [output]


def reduce_scatter(world, make, later):
    output = make(torch.zeros(4))
    inputs = [make(numbers(world.rank, 4, seed=i)) for i in range(world.size)]
    return [dist.reduce_scatter(output, inputs, async_op=later)], [output]


def reduce_scatter_uneven(world, make, later):
    output = make(torch.zeros(1 + world.rank))
    inputs = [make(numbers(world.rank, 1 + i)) for i in range(world.size)]
    return [dist.reduce_scatter(output, inputs, async_op=later)], [output]


def reduce_scatter_tensor(world, make, later):
    output = make(torch.zeros(3))
    return [dist.reduce_scatter_tensor(output, make(numbers(world.rank, 3 * world.size)), async_op=later)], [output]


def all_to_all_single(world, make, later):
    output = make(torch.zeros(2 * world.size))
    return [dist.all_to_all_single(output, make(numbers(world.rank, 2 * world.size)), async_op=later)], [output]


def all_to_all_single_uneven(world, make, later):
    sent, received = list(range(1, world.size + 1)), [world.rank + 1] * world.size
    output = make(torch.zeros(sum(received)))
    work = dist.all_to_all_single(output, make(numbers(world.rank, sum(sent))), received, sent, async_op=later)
    return [work], [output]


def all_to_all(world, make, later):
    outputs = [make(torch.zeros(2)) for _ in range(world.size)]
    inputs = [make(numbers(world.rank, 2, seed=i)) for i in range(world.size)]
    return [dist.all_to_all(outputs, inputs, async_op=later)], outputs


def messages(world, make, later):
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    sent, received = make(numbers(world.rank, 9)), make(torch.zeros(9))
    if later:
        return [dist.irecv(received, before), dist.isend(sent, after)], [received]
    for turn in (0, 1):
        if turn == (world.rank > 0):
            dist.send(sent, after)
        else:
            dist.recv(received, before if world.rank else None)
    return [], [received]


def batch_of_messages(world, make, later):
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    both = make(numbers(world.rank, 2, 5))
    batch = [dist.P2POp(dist.irecv, both[1], before), dist.P2POp(dist.isend, both[0], after)]
    return dist.batch_isend_irecv(batch), [both]


def coalesced(world, make, later):
    x, y = make(numbers(world.rank, 6)), make(numbers(world.rank, 4, seed=1))
    with _coalescing_manager(device=x.device, async_ops=later) as manager:
        dist.all_reduce(x)
        dist.all_reduce(y)
    return [manager if later else None], [x, y]


def coalesced_gathers(world, make, later):
    outputs = [make(torch.zeros(world.size, 2 + i)) for i in range(2)]
    with _coalescing_manager(device=outputs[0].device, async_ops=later) as manager:
        for i, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, make(numbers(world.rank, 2 + i)))
    return [manager if later else None], outputs


OPERATIONS = [all_reduce, all_reduce_norm, all_reduce_of_types, all_reduce_max, all_reduce_avg_of_slice,
              all_reduce_of_nothing, all_reduce_coalesced, all_reduce_transposed, broadcast, reduce, all_gather,
              all_gather_uneven, all_gather_strided, all_gather_into_tensor, all_gather_in_place, gather, scatter,
              reduce_scatter, reduce_scatter_uneven, reduce_scatter_tensor, all_to_all_single,
              all_to_all_single_uneven, all_to_all, messages, batch_of_messages, coalesced, coalesced_gathers]


def outputs_of(works, outputs):
    """Waits for the Works of an operation, and returns its outputs."""
    for work in filter(None, works):
        work.wait()
    return outputs


def check_operations(world, later):
    device = world.kept["device"]
    for operation in OPERATIONS:
        expected = outputs_of(*operation(world, torch.clone, False))
        outputs = outputs_of(*operation(world, lambda values: late(values, device), later))
        assert len(outputs) == len(expected)
        for got, right in zip(outputs, expected):
            assert got.device == device
            same(got, right, operation.__name__)


# ---- streams ----
def check_wait_on_another_stream(world):
    device = world.kept["device"]
    with torch.Stream(device=device):
        x = late(numbers(world.rank, 1000), device)
        work = dist.all_reduce(x, async_op=True)
    readers = [torch.Stream(device=device) for _ in range(3)]
    with readers[0]:
        keep_busy(device)
    # The first reader's wait enqueues the copy of the result; the others find it enqueued.
    for reader in readers:
        with reader:
            work.wait()
    for reader in reversed(readers):
        with reader:
            same(x, total(world, 1000), "read on a stream that waited")


def check_outputs_used_before(world):
    """Checks that the result is written after the earlier work on the output. That work is on the stream of the call,
    and the result comes on another stream."""
    device = world.kept["device"]
    x = numbers(0, 40).to(device)
    with torch.Stream(device=device):
        keep_busy(device)
        if world.rank:
            x.copy_(late(torch.zeros(40), device))
        work = dist.broadcast(x, 0, async_op=True)
    with torch.Stream(device=device):
        work.wait()
    torch.accelerator.synchronize()
    same(x, numbers(0, 40), "an output that was in use")


def check_wait_on_another_thread(world):
    device = world.kept["device"]
    x = late(numbers(world.rank, 100), device)
    work = dist.all_reduce(x, async_op=True)
    problems = []

    def wait():
        try:
            with torch.Stream(device=device):
                work.wait()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive() and not problems, problems
    work.wait()
    same(x, total(world, 100), "waited on another thread first")


def check_next_operation_without_wait(world):
    device = world.kept["device"]
    x = late(numbers(world.rank, 60), device)
    for _ in range(2):
        dist.all_reduce(x[:40], async_op=True)
    with torch.Stream(device=device):
        dist.all_reduce(x[20:], async_op=True)
        dist.all_reduce(x)
        expected = [numbers(rank, 60) for rank in range(world.size)]
        for part in (slice(0, 40), slice(0, 40), slice(20, 60), slice(0, 60)):
            reduced = sum(one[part] for one in expected)
            for one in expected:
                one[part] = reduced
        same(x, expected[world.rank], "four operations, one wait")


def check_next_operation_on_another_stream(world):
    """Checks an operation on the result of another stream, whose copy is enqueued there behind earlier work."""
    device = world.kept["device"]
    for later in (False, True):
        with torch.Stream(device=device):
            x = late(numbers(world.rank, 60), device)
            work = dist.all_reduce(x, async_op=later)
            if later:
                keep_busy(device)
                work.wait()
        with torch.Stream(device=device):
            # An operation on another tensor, in between.
            dist.all_reduce(torch.zeros(2).to(device))
            dist.all_reduce(x)
            same(x, world.size * total(world, 60), "two operations on two streams")


def check_neighbours_do_not_wait(world):
    """Checks that a receive into one part of a tensor does not hold up the send of another part."""
    device = world.kept["device"]
    both = late(numbers(world.rank, 2, 50), device)
    peer = world.rank ^ 1
    if peer < world.size:
        receiving = dist.irecv(both[1], peer)
        dist.isend(both[0], peer).wait()
        receiving.wait()
        same(both[1], numbers(peer, 2, 50)[0], "received beside what was sent")


def check_many_at_once(world):
    device = world.kept["device"]
    tensors = [late(numbers(world.rank, 64, seed=i), device) for i in range(8)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for i in reversed(range(8)):
        works[i].wait()
    for i, x in enumerate(tensors):
        same(x, total(world, 64, seed=i), f"number {i} of many")


def check_coalesced_twice(world):
    """Checks that a later operation of a batch reads the result of an earlier one on the same tensor."""
    device = world.kept["device"]
    x = late(numbers(world.rank, 30), device)
    backend = dist.group.WORLD._get_backend(device)
    backend._start_coalescing()
    for _ in range(2):
        backend.allreduce([x])
    backend._end_coalescing().wait()
    same(x, world.size * total(world, 30), "twice in one batch")


# ---- without a wait ----
def check_dropped(world):
    device = world.kept["device"]
    x = late(numbers(world.rank, 30), device)
    dist.all_reduce(x, async_op=True)
    dist.barrier()
    # The first barrier may have started before the all_reduce had ended.
    dist.barrier()
    same(x, total(world, 30), "a Work that nobody holds")


def check_polled(world):
    device = world.kept["device"]
    with torch.Stream(device=device):
        x = late(numbers(world.rank, 30), device)
        work = dist.all_reduce(x, async_op=True)
        until = time.monotonic() + LIMIT_S
        while not work.is_completed():
            assert time.monotonic() < until
            time.sleep(0.001)
    assert work.is_success()
    # The copy of the result has ended; one that was only enqueued would be late for this stream.
    with torch.Stream(device=device):
        same(x, total(world, 30), "polled")


# ---- futures ----
def check_futures(world):
    device = world.kept["device"]
    for root in (0, 1):
        with torch.Stream(device=device):
            x = late(numbers(world.rank, 30), device)
            future = dist.broadcast(x, root, async_op=True).get_future()
            doubled = future.then(lambda done: late(done.value()[0].cpu() * 2, device))
        with torch.Stream(device=device):
            same(doubled.wait(), 2 * numbers(root, 30), "a callback's own result")
            same(future.wait()[0], numbers(root, 30), "a future's value")
    done = dist.all_reduce(late(numbers(world.rank, 3), device), async_op=True)
    done.wait()
    with torch.Stream(device=device):
        same(done.get_future().wait()[0], total(world, 3), "a future asked for after the wait")


def check_several_devices(world):
    first = world.kept["device"]
    device = torch.device(first.type, 1)
    x, outputs = late(numbers(world.rank, 30), device), late(torch.zeros(world.size, 30), first)
    dist.all_gather_into_tensor(outputs, x)
    same(outputs, torch.stack([numbers(rank, 30) for rank in range(world.size)]), "from one device to another")
    module = torch.get_device_module(first.type)
    module.set_device(1)
    try:
        work = dist.all_gather([late(torch.zeros(30), torch.device(first.type, (rank + world.rank) % 2))
                                for rank in range(world.size)], x, async_op=True)
        seen = work.get_future().then(lambda done: [module.current_device()] + [t.cpu() for t in done.value()]).wait()
    finally:
        module.set_device(first.index)
    assert seen[0] == 1, "a callback runs on the device that was current when its future was asked for"
    for rank in range(world.size):
        same(seen[1 + rank], numbers(rank, 30), "a list over two devices")


# ---- memory ----
def check_memory_is_not_reused_early(world):
    """Checks that a tensor's memory is not reused while the result is still being copied into it. The copy runs on
    another stream than the one for which the memory was allocated, and the program drops the tensor meanwhile."""
    device = world.kept["device"]
    shape = 3000
    x = late(numbers(world.rank, shape), device)
    work = dist.all_reduce(x, async_op=True)
    with torch.Stream(device=device):
        keep_busy(device)
        work.wait()
    del work, x
    others = [late(numbers(0, shape, seed=seed), device) for seed in range(3)]
    torch.accelerator.synchronize()
    for seed, y in enumerate(others):
        same(y, numbers(0, shape, seed=seed), "memory that was used again")


def check_staging_is_not_reused_early(world):
    """Checks that staging memory on the host, which the next operation of that size takes, is not used again before the
    copy out of it is done."""
    device = world.kept["device"]
    tensors = [late(numbers(world.rank, 500, seed=i), device) for i in range(4)]
    stream = torch.Stream(device=device)
    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        for x in tensors:
            dist.all_reduce(x)
        for i, x in enumerate(tensors):
            same(x, total(world, 500, seed=i), "staging memory that was used again")


class Listener(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.calls.append(str(function))
        return function(*arguments, **(keywords or {}))


def check_copies_are_our_own(world):
    """Checks that neither autograd nor a dispatch mode sees the copies between device and host."""
    device = world.kept["device"]
    x = late(numbers(world.rank, 10), device).requires_grad_()
    with Listener() as listener:
        work = dist.all_reduce(x, async_op=True)
        before = list(listener.calls)
        work.wait()
    assert listener.calls == before and not [name for name in before if "copy" in name], listener.calls
    assert x.is_leaf and x.grad_fn is None
    same(x.detach(), total(world, 10))


CHECKS = [check_wait_on_another_stream, check_outputs_used_before, check_wait_on_another_thread,
          check_next_operation_without_wait, check_next_operation_on_another_stream, check_neighbours_do_not_wait,
          check_many_at_once, check_coalesced_twice, check_dropped, check_polled, check_futures,
          check_memory_is_not_reused_early, check_staging_is_not_reused_early, check_copies_are_our_own]

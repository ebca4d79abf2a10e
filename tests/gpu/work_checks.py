"""Checks of what calls on CUDA streams return: Works, those of calls in a batch, futures and durations."""
import time

import torch
import torch.distributed as dist
from device_checks import late, numbers, same, total
from stream_checks import LIMIT, first_on_rank_0, opened, other_stream


def check_durations(world):
    device = world.kept["device"]
    group = dist.new_group()
    group._get_backend(device)._enable_collectives_timing()
    x = late(numbers(world.rank, 60), device)
    work = dist.all_reduce(x, group=group, async_op=True)
    work.wait()
    torch.cuda.synchronize()
    until = time.monotonic() + 60
    while not work.is_completed():
        assert time.monotonic() < until
    assert work.is_success() and work._get_duration() >= 0
    dist.destroy_process_group(group)


def check_result_of_work(world):
    x = opened(world)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert work.result()[0].data_ptr() == x.data_ptr()
    same(work.get_future().value()[0], total(world, 6), "a future's value")
    assert work.get_future_result().wait() == 0 and work.exception() is None


def check_result_of_part(world):
    """Checks that a call in a batch returns a Work whose result is that of the call, also after the batch."""
    xs = [late(numbers(world.rank, 30, seed=i), world.kept["device"]) for i in range(4)]
    backend = dist.group.WORLD._get_backend(xs[0].device)
    backend._start_coalescing()
    parts = [backend.allreduce(xs[:1]), backend.broadcast(xs[1], 0), backend.allreduce_coalesced(xs[2:])]
    work = backend._end_coalescing()
    work.wait()
    expected = [xs[:1], xs[1:2], xs[2:], xs]
    for part, tensors in zip([*parts, work], expected):
        assert [one.data_ptr() for one in part.result()] == [one.data_ptr() for one in tensors]
        part.wait(LIMIT)
        assert part.exception() is None
        assert [one.data_ptr() for one in part.get_future().wait()] == [one.data_ptr() for one in tensors]
    same(xs[0], total(world, 30), "a part of a batch")
    same(xs[3], total(world, 30, seed=3), "a list in a batch")


def check_late_future(world):
    """Checks that a future that is requested late does not wait for later operations."""
    x, y, seen = opened(world), opened(world), torch.cuda.Event()
    work = dist.all_reduce(x, async_op=True)

    def operation():
        later = dist.all_reduce(y, async_op=True)

        def look():
            with torch.cuda.stream(other_stream()):
                doubled = work.get_future().wait()[0] * 2
                seen.record()
            until = time.monotonic() + 30
            while not seen.query():
                assert time.monotonic() < until, "the future waits for a later operation"
            assert not later.is_completed()
            same(doubled, 2 * total(world, 6), "a late future")
        return look

    first_on_rank_0(world, "late_future", operation)
    torch.cuda.synchronize()


def check_coalesced_with_messages(world):
    """Checks a batch that has operations on streams and messages, which pass through the host."""
    device, peer = world.kept["device"], world.rank ^ 1
    x, y, received = (late(numbers(world.rank, 30, seed=i), device) for i in range(3))
    backend = dist.group.WORLD._get_backend(device)
    backend._start_coalescing()
    backend.allreduce([x])
    backend.recv([received], peer, 0)
    backend.send([y], peer, 0)
    backend.allreduce([y])
    work = backend._end_coalescing()
    seen = work.get_future().then(lambda done: [one.cpu() for one in done.value()]).wait()
    work.wait()
    same(x, total(world, 30), "summed in a batch")
    same(received, numbers(peer, 30, seed=1), "received in a batch")
    same(y, total(world, 30, seed=1), "summed after it was sent")
    assert len(seen) == 4 and torch.equal(seen[0], x.cpu()) and torch.equal(seen[1], received.cpu())


def check_future_without_outputs(world):
    """Checks that a stream that waits for the future of a gather, on a rank that gets no output, waits for it."""
    x = opened(world)
    current, other = torch.cuda.current_stream(), other_stream()
    outputs = [torch.zeros_like(x) for _ in range(world.size)]
    torch.cuda._sleep(200_000_000)
    work = dist.gather(x, outputs if world.rank == 0 else None, async_op=True)
    with torch.cuda.stream(other):
        assert len(work.get_future().wait()) == (world.size if world.rank == 0 else 0)
    if other.query():
        assert current.query(), "a stream has not waited"
    work.wait()
    if world.rank == 0:
        same(torch.cat(outputs), torch.cat([numbers(rank, 6) for rank in range(world.size)]), "gathered")
    torch.cuda.synchronize()


CHECKS = [check_durations, check_result_of_work, check_result_of_part, check_late_future, check_future_without_outputs,
          check_coalesced_with_messages]

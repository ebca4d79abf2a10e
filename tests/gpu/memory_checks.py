"""Checks of the memory of tensors: when it can be used again after operations on CUDA streams."""
import time

import torch
import torch.distributed as dist
import torch_tutti
from device_checks import late, numbers, same, total
from stream_checks import fake_driver, first_on_rank_0, opened, other_stream


def check_memory_returns_after_wait(world):
    """Checks that the memory of the tensors can be used again as soon as the caller's stream waits."""
    device = world.kept["device"]
    opened(world)

    def operation(later):
        def run():
            x = numbers(world.rank, 5000).to(device)
            at = x.data_ptr()
            work = dist.all_reduce(x, async_op=later)
            if work:
                work.wait()
            del x, work

            def look():
                y = torch.empty(5000, device=device)
                assert y.data_ptr() == at
            return look
        return run

    for later in (False, True):
        first_on_rank_0(world, f"memory {later}", operation(later))
    torch.cuda.synchronize()


def check_memory_stays_until_the_end(world):
    """Checks that memory is not used again early if no stream, or another one, waits for the operation."""
    device = world.kept["device"]
    opened(world)
    for waits in (False, True):
        shape = 7000 + waits
        for _ in range(3):
            x = late(numbers(world.rank, shape), device)
            outputs = [torch.zeros(shape, device=device) for _ in range(world.size)]
            work = dist.all_gather(outputs, x, async_op=True)
            if waits:
                with torch.cuda.stream(torch.cuda.Stream()):
                    work.wait()
            del work, x, outputs
            late(numbers(0, shape), device)
    torch.cuda.synchronize()


def check_memory_stays_while_another_stream_waits(world):
    """Checks that memory is not used again before the operation, although only another stream than the caller's waits
    for it."""
    device = world.kept["device"]
    opened(world)

    def operation():
        x = numbers(world.rank, 5000).to(device)
        at = x.data_ptr()
        work = dist.all_reduce(x, async_op=True)
        with torch.cuda.stream(other_stream()):
            work.wait()
        del x, work

        def look():
            assert torch.empty(5000, device=device).data_ptr() != at
        return look

    first_on_rank_0(world, "another stream waits", operation)
    torch.cuda.synchronize()


def check_memory_stays_until_results_are_copied(world):
    """Checks that the memory of results that are copied from a packed list is not used again before the group's stream
    is ready, although nobody waits for the operation."""
    device, own = world.kept["device"], torch_tutti.stream()
    x = opened(world, 5000)
    outputs = [torch.empty(5000, device=device) for _ in range(2 * world.size)]
    # The even ones, so that the list is not adjacent.
    used = {one.data_ptr() for one in outputs[::2]}
    work = dist.all_gather(outputs[::2], x, async_op=True)
    with torch.cuda.stream(own):
        torch.cuda._sleep(1_000_000_000)
    until = time.monotonic() + 60
    while not work.is_completed():
        assert time.monotonic() < until
    del work, outputs
    # This call drops the tensors of operations that are over.
    dist.all_reduce(torch.zeros(1))
    later = [torch.empty(5000, device=device) for _ in range(world.size)]
    if not own.query():
        assert not used & {one.data_ptr() for one in later}
    torch.cuda.synchronize()


def check_opens_although_torch_has_cached_memory(world):
    """Checks that a group opens when torch's cache holds the memory that the slots need. The fake GPU has 200 MiB."""
    device = world.kept["device"]
    if fake_driver() is None:
        return
    cached = torch.empty(190 << 20, dtype=torch.uint8, device=device)
    del cached
    assert torch.cuda.memory_reserved() >= 190 << 20
    x = late(numbers(world.rank, 6), device)
    dist.all_reduce(x)
    same(x, total(world, 6), "after torch has given memory back")
    assert torch_tutti.stream() is not None and torch.cuda.memory_reserved() < 190 << 20


CHECKS = [check_memory_returns_after_wait, check_memory_stays_until_the_end,
          check_memory_stays_while_another_stream_waits, check_memory_stays_until_results_are_copied]

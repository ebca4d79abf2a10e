"""Checks of operations on CUDA streams that are refused or fail, and of groups whose tensors go through the host."""
import os
import signal
import tempfile
import time
from datetime import timedelta

import device_checks
import pytest
import torch
import torch.distributed as dist
import torch_tutti
from device_checks import late, numbers, same, total
from stream_checks import LIMIT, await_rank_0, opened, signal_rank_1


def check_second_device_is_refused(world):
    x = opened(world)
    second = torch.device("cuda", (world.kept["device"].index + 1) % torch.cuda.device_count())
    with pytest.raises(ValueError, match=f"the input tensor is on {second}, but this group runs on {x.device}.*one GPU "
                                         "of each rank.*TUTTI_CUDA=0"):
        dist.all_reduce(torch.zeros(3, device=second))
    with pytest.raises(ValueError, match=f"the output tensor is on {second}"):
        dist.all_gather_into_tensor(torch.zeros(3 * world.size, device=second), x[:3])
    if world.rank == 0:
        # Nothing is sent, so rank 1 does not see these calls.
        refuse_lists(world, torch.zeros(3, device=second), torch.zeros(3 * world.size, device=second),
                     "one GPU of each rank")
    dist.all_reduce(x)


def refuse_lists(world, part, whole, text):
    """Makes coalesced calls of two tensors, of which the second is refused because of `part` or `whole`."""
    group, fine = dist.group.WORLD, torch.zeros(3, device=world.kept["device"])
    gathered = torch.zeros(3 * world.size, device=fine.device)
    with pytest.raises(ValueError, match=text):
        group.allgather_into_tensor_coalesced([gathered, whole], [fine, part])
    with pytest.raises(ValueError, match=text):
        group.reduce_scatter_tensor_coalesced([fine, part], [gathered, whole])
    if part.device != fine.device:
        with pytest.raises(ValueError, match=text):
            group.allreduce_coalesced([fine, part])
        with pytest.raises(ValueError, match=text):
            dist.all_gather_coalesced([[fine, part]] * world.size, [fine, part])


def check_refused_list(world):
    """Checks that a list is refused before its first operation starts, because of a later tensor."""
    x = opened(world, 6)
    if world.rank == 0:
        refuse_lists(world, x[1:4], x, "overlaps the (output|input) in memory")
    dist.all_reduce(x)
    same(x, total(world, 6), "after refused lists")


def check_mismatch(world):
    """Checks that ranks which disagree get an error, in a group of their own, and that their streams go on."""
    group = dist.new_group()
    x = torch.zeros(4 + world.rank, device=world.kept["device"])
    work = dist.all_reduce(x, group=group, async_op=True)
    with pytest.raises(dist.DistBackendError, match="ranks disagree"):
        work.wait(LIMIT)
    torch.cuda.synchronize()
    assert work.is_completed() and not work.is_success() and "ranks disagree" in str(work.exception())
    with pytest.raises(dist.DistBackendError, match="ranks disagree"):
        work.wait()
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(x, group=group)


def check_mismatch_of_splits(world):
    """Checks that ranks whose splits of an all-to-all differ get an error that names them."""
    group = dist.new_group()
    sent = [1, 3] if world.rank == 0 else [1, 1]
    x, y = (torch.zeros(count, device=world.kept["device"]) for count in (sum(sent), 2))
    work = dist.all_to_all_single(y, x, [1, 1], sent, group=group, async_op=True)
    with pytest.raises(dist.DistBackendError, match="rank 0 sends 12 bytes to rank 1, which expects 4"):
        work.wait(LIMIT)
    torch.cuda.synchronize()
    with pytest.raises(dist.DistBackendError, match="rank 0 sends 12 bytes"):
        dist.all_to_all_single(y, x, [1, 1], sent, group=group)


def check_dead_rank(world):
    """Checks that streams go on after the death of a rank, and that calls raise an error."""
    x = opened(world)
    if world.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    torch.cuda.synchronize()
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        work.wait(LIMIT)
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        dist.all_reduce(x)


def await_warning(text):
    """Waits until standard error, which is a file, has the text."""
    until = time.monotonic() + 60
    while text not in os.pread(2, 1 << 20, 0).decode():
        assert time.monotonic() < until, f"no warning {text!r}"
        time.sleep(0.01)


def check_failure_without_a_wait(world):
    """Checks that a failure which no call raises gives one warning, and that a barrier raises it."""
    x = opened(world)
    if world.rank:
        os.kill(os.getpid(), signal.SIGKILL)

    def go_on():
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        torch.cuda.synchronize()
        await_warning("no call has raised")

    said = standard_error_of(go_on)
    assert said.count("no call has raised") == 1 and "rank 1" in said, said
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        dist.barrier()
    said = standard_error_of(dist.destroy_process_group)
    assert "no call has raised" not in said, said


def check_raised_failure_gives_no_warning(world):
    """Checks that a barrier raises the failure of an operation that it waits for, and that no warning follows."""
    x = opened(world)
    if world.rank:
        await_rank_0(world, "barrier begins")
        os.kill(os.getpid(), signal.SIGKILL)

    def fail():
        dist.all_reduce(x, async_op=True)
        signal_rank_1(world, "barrier begins")
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            dist.barrier()
        dist.destroy_process_group()

    said = standard_error_of(fail)
    assert "no call has raised" not in said, said


def check_destroy_has_a_limit(world):
    """Checks that a group is destroyed, with a warning, although another rank does not make a call."""
    group = dist.new_group()
    x = torch.zeros(5, device=world.kept["device"])
    dist.all_reduce(x, group=group)
    if world.rank:
        await_rank_0(world, "destroyed")
        return
    dist.all_reduce(x, group=group, async_op=True)
    try:
        said = standard_error_of(lambda: dist.destroy_process_group(group))
    finally:
        signal_rank_1(world, "destroyed")
    assert "not over after 10 s" in said, said
    torch.cuda.synchronize()


def check_timeout(world):
    """Checks that an operation that a rank never calls reaches its timeout, which counts from the call."""
    group = dist.new_group()
    x = torch.zeros(5, device=world.kept["device"])
    dist.all_reduce(x, group=group)
    if world.rank == 0:
        with torch_tutti.options(timeout=timedelta(milliseconds=200)):
            work = dist.all_reduce(x, group=group, async_op=True)
        work.wait()
        torch.cuda.synchronize()
        with pytest.raises(torch_tutti.TimeoutError, match="not been made by rank 1"):
            work.wait(LIMIT)


def check_failed_call_is_waited_for(world):
    """Checks that the current stream waits for the part of a failed call that is on the group's own stream. A call of
    another group, which rank 1 makes later, keeps that stream from running it."""
    device, first, failing = world.kept["device"], dist.new_group(), dist.new_group()
    x = torch.zeros(5, device=device)
    for group in first, failing:
        dist.all_reduce(x, group=group)
    if world.rank:
        await_rank_0(world, "call failed")
        dist.all_reduce(x, group=first)
        return
    sent, received = (torch.zeros(600000, dtype=torch.uint8, device=device) for _ in range(2))
    work = dist.all_reduce(x, group=first, async_op=True)
    own, end = torch_tutti.stream(failing), torch.cuda.Event()
    own.wait_stream(torch_tutti.stream(first))
    try:
        with torch_tutti.options(timeout=timedelta(milliseconds=200)):
            with pytest.raises(torch_tutti.TimeoutError, match="calls have not been made by rank 1"):
                dist.all_to_all_single(received, sent, group=failing, async_op=True)
        end.record()
        assert not end.query()
    finally:
        signal_rank_1(world, "call failed")
    end.synchronize()
    assert own.query()
    work.wait(LIMIT)


def check_goes_through_host(world):
    """Checks a group whose CUDA tensors go through the host on all ranks, because of one or all of them."""
    x = late(numbers(world.rank, 40), world.kept["device"])
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    same(x, total(world, 40), "through the host")
    assert torch_tutti.stream() is None


def standard_error_of(call):
    """Returns what this process writes to standard error during the call."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            call()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return file.read().decode()


def check_one_rank_without(world):
    """Checks that all ranks go through the host if rank 1 does not use CUDA streams, and that each other rank says so
    once."""
    if world.rank == 1:
        os.environ["TUTTI_CUDA"] = "0"
    device_checks.join(world, "cuda")
    said = standard_error_of(lambda: check_goes_through_host(world))
    said += standard_error_of(lambda: dist.all_reduce(torch.zeros(3, device="cuda"), group=dist.new_group()))
    if world.rank == 1:
        assert "through the host" not in said
    else:
        assert said.count("tutti: CUDA tensors go through the host") == 1, said
        assert "because rank 1 failed" in said and "TUTTI_CUDA is 0" in said, said


FAILURES = [check_mismatch, check_mismatch_of_splits, check_timeout, check_destroy_has_a_limit]
DEATHS = [check_dead_rank, check_failure_without_a_wait, check_raised_failure_gives_no_warning]

"""Checks of operations on CUDA streams that are refused or fail, and of groups whose tensors go through the host."""
import os
import signal
import tempfile
from datetime import timedelta

import device_checks
import pytest
import torch
import torch.distributed as dist
import torch_tutti
from device_checks import late, numbers, same, total
from stream_checks import LIMIT, opened


def check_second_device_is_refused(world):
    x = opened(world)
    second = torch.device("cuda", (world.kept["device"].index + 1) % torch.cuda.device_count())
    with pytest.raises(ValueError, match=f"the input tensor is on {second}, but this group runs on {x.device}.*one GPU "
                                         "of each rank.*TUTTI_CUDA=0"):
        dist.all_reduce(torch.zeros(3, device=second))
    with pytest.raises(ValueError, match=f"the output tensor is on {second}"):
        dist.all_gather_into_tensor(torch.zeros(3 * world.size, device=second), x[:3])
    dist.all_reduce(x)


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


FAILURES = [check_mismatch, check_timeout]

"""Calls with tensors of a device that are refused or fail, for any kind of device, as in device_checks.py."""
import pytest
import torch
import torch.distributed as dist

from device_checks import late, numbers, same, total


def check_refused(world):
    device = world.kept["device"]
    x = torch.zeros(world.size * 2).to(device)
    with pytest.raises(ValueError, match=rf"the output tensor is on cpu, but another one of this call is on {device}; "
                                         "move one of them to the other's device"):
        dist.all_gather_into_tensor(torch.zeros(world.size * 2), x[:2])
    # The group still works.
    work = dist.all_reduce(x, async_op=True)
    work.wait()


def check_capture_is_refused(world):
    device = world.kept["device"]
    x = torch.zeros(2).to(device)
    torch.sim.set_capturing(True)
    try:
        with pytest.raises(NotImplementedError, match=rf"all_reduce: a graph of {device} is being captured.*outside"):
            dist.all_reduce(x)
    finally:
        torch.sim.set_capturing(False)
    dist.all_reduce(x)


def check_errors(world):
    """Checks the errors of ranks that disagree, in a group of their own, which fails for good."""
    device = world.kept["device"]
    group = dist.new_group()
    x = late(numbers(world.rank, 4 + world.rank), device)
    work = dist.all_reduce(x, group=group, async_op=True)
    future = work.get_future()
    for wait in (work.wait, work.wait, future.wait):
        with pytest.raises(dist.DistBackendError, match="ranks disagree"):
            wait()
    assert work.is_completed() and not work.is_success()
    same(x, numbers(world.rank, 4 + world.rank), "the tensor of an operation that failed")
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(x, group=group)


def check_failing_copies(world):
    """Checks that wait() raises while the device takes no copies, and brings the result when it takes them again."""
    device = world.kept["device"]
    x, y = late(numbers(world.rank, 9), device), late(numbers(world.rank, 5), device)
    # No call waits for this operation, so none reports its failing copy.
    dist.all_reduce(y, async_op=True)
    work = dist.all_reduce(x, async_op=True)
    torch.sim.set_failing(True)
    try:
        for _ in range(2):
            dist.barrier()
            with pytest.raises(RuntimeError, match="this device takes no copies"):
                work.wait()
    finally:
        torch.sim.set_failing(False)
    work.wait()
    same(x, total(world, 9), "taken at last")
    dist.all_reduce(y)


CHECKS = [check_refused, check_errors]

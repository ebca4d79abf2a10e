"""Tests of the monitored barrier: rank 0 names the ranks that have not arrived, and the errors of other ranks say that
they have."""
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist


def passes(world):
    group = dist.group.WORLD
    for wait_all in (False, True):
        group.monitored_barrier(timedelta(seconds=20), wait_all)
        x = torch.ones(3)
        dist.all_reduce(x)
        assert x[0] == world.size
    # The barrier runs beside another operation.
    work = dist.all_reduce(x, async_op=True)
    group.monitored_barrier(timedelta(seconds=20))
    work.wait()
    # torch's own function, which torch made for gloo.
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=30), group)


@pytest.mark.parametrize("size", [2, 4])
def test_barrier_passes_when_all_ranks_arrive(shared, size):
    shared(size).run(passes)


def with_timeout(world, timeout):
    group = dist.group.WORLD
    for barrier in (group.monitored_barrier, lambda t: dist.monitored_barrier(timeout=t)):
        if timeout >= timedelta(days=1):
            barrier(timeout)
            continue
        with pytest.raises(ValueError, match="a timeout of -1000 ms is negative"):
            barrier(timeout)
    # The group still works.
    dist.barrier()


@pytest.mark.parametrize("timeout", [timedelta(seconds=-1), timedelta(days=120_000)], ids=str)
def test_negative_timeout_is_refused_and_a_very_long_one_works(shared, timeout):
    shared(2).run(with_timeout, timeout)


def some_are_missing(world, missing, wait_all):
    group = dist.new_group()
    if world.rank not in missing:
        group.monitored_barrier(timedelta(milliseconds=300), wait_all)


@pytest.mark.parametrize("missing, wait_all, text", [
    ([2], False, "Rank 2 failed to pass monitoredBarrier in 300 ms"),
    ([1, 3], False, "Rank 1 failed to pass monitoredBarrier in 300 ms"),
    ([1, 3], True, "Ranks 1, 3 failed to pass monitoredBarrier in 300 ms"),
    ([1, 2, 3], True, "Rank 0 timed out in monitoredBarrier: Ranks 1, 2, 3 failed"),
])
def test_rank_0_names_missing_ranks(fresh, missing, wait_all, text):
    outcomes = fresh(4).outcomes(some_are_missing, missing, wait_all)
    assert outcomes[0].error == "TimeoutError" and text in outcomes[0].text
    for rank in range(1, 4):
        if rank in missing:
            assert not outcomes[rank].failed
        else:
            assert (f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for "
                    "send/recv from rank 0") in outcomes[rank].text


def rank_0_is_missing(world):
    group = dist.new_group()
    if world.rank:
        group.monitored_barrier(timedelta(milliseconds=300))


def test_missing_rank_0_is_a_timeout_error(fresh):
    first, second = fresh(2).outcomes(rank_0_is_missing)
    assert not first.failed and "Rank 1 successfully reached monitoredBarrier" in second.text
    assert second.error == "TimeoutError"


def longer_than_the_group(world):
    group = dist.new_group(timeout=timedelta(milliseconds=500))
    if world.rank == 1:
        time.sleep(1.2)
    group.monitored_barrier(timedelta(seconds=20))


def test_timeout_of_the_barrier_overrides_that_of_the_group(fresh):
    fresh(2).run(longer_than_the_group)


def no_time(world):
    if world.rank == 0:
        dist.group.WORLD.monitored_barrier(timedelta(0))


def test_zero_timeout_is_a_timeout_error(fresh):
    outcome = fresh(2).outcomes(no_time)[0]
    assert "Rank 0 timed out in monitoredBarrier" in outcome.text


def somebody_died(world):
    if world.rank == 1:
        import os
        os._exit(3)
    dist.group.WORLD.monitored_barrier(timedelta(seconds=30))


def test_dead_rank_ends_the_barrier_early(fresh):
    outcomes = fresh(3).outcomes(somebody_died)
    assert "Rank 1 failed to pass monitoredBarrier: " in outcomes[0].text
    assert "rank 1 of group" in outcomes[0].text and "died" in outcomes[0].text and outcomes[2].failed

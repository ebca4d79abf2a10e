"""Tests of asynchronous calls that fail: refused inside a coalescing block, made at the end of a process, or with a
callback that throws."""
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist


# ---- refused calls inside a coalescing block ----
def refused_inside(world):
    me, other = world.rank, 1 - world.rank
    good, bad = torch.full((4,), float(me)), torch.ones(4)
    bad.untyped_storage().resize_(0)
    for _ in range(3):
        with pytest.raises(ValueError, match="has no memory"):
            dist.batch_isend_irecv([dist.P2POp(dist.isend, bad, other)])
        x = torch.ones(1)
        # Neither torch nor the group is still in the block.
        dist.all_reduce(x)
        assert x == 2
    received = torch.empty(4)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, good, other), dist.P2POp(dist.irecv, received, other)]):
        work.wait()
    assert received.eq(other).all()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.group.WORLD._start_coalescing(torch.device("cpu"))
    backend.allreduce([x])
    opts = dist.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.BAND
    with pytest.raises(ValueError, match="float32"):
        backend.allreduce([torch.ones(1)], opts)
    with pytest.raises(NotImplementedError, match="while calls are coalesced"):
        backend.allreduce([torch.ones(2).to_sparse()])
    # The end covers the call that was not refused.
    dist.group.WORLD._end_coalescing(torch.device("cpu")).wait()
    assert x == 4


def test_group_works_after_a_refusal_inside_a_block(shared):
    shared(2).run(refused_inside)


def dropped_at_once(world):
    """Drops Works as soon as they are complete. The progress thread must not touch them afterwards."""
    for _ in range(300):
        dist.group.WORLD._start_coalescing(torch.device("cpu"))
        for _ in range(3):
            dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([torch.ones(8)])
        dist.group.WORLD._end_coalescing(torch.device("cpu")).wait()
        dist.barrier()


def test_coalesced_works_may_be_dropped_at_once(shared):
    shared(2).run(dropped_at_once)


# ---- at the end of a process ----
AT_EXIT = """
import atexit, sys, time, torch, torch.distributed as dist

def ask():
    # Rank 1 nearly always begins after rank 0 has asked for its future.
    if rank:
        store.wait(["begun"])
        time.sleep(0.5)
    x = torch.ones(3)
    work = dist.all_reduce(x, async_op=True)
    store.set("begun", "")
    future = work.get_future()
    print(future.done(), future.wait()[0].tolist(), flush=True)

# Registered before the extension is loaded, so it runs after the extension's own function at exit.
atexit.register(ask)
store, rank = dist.FileStore(sys.argv[1], 2), int(sys.argv[2])
dist.init_process_group("tutti", store=store, rank=rank, world_size=2)
"""


def test_future_asked_for_at_exit_completes(tmp_path):
    ranks = [subprocess.Popen([sys.executable, "-c", AT_EXIT, tmp_path / "store", str(rank)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        outputs = [rank.communicate(timeout=60) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [out for out, _ in outputs] == ["True [2.0, 2.0, 2.0]\n"] * 2, outputs


def complete_twice(world):
    """Rank 0 sets the result of a callback's future, so torch throws when it sets the result itself. Rank 1 starts when
    rank 0 has the future."""
    if world.rank:
        world.store.wait(["asked"])
        x = torch.ones(3)
        dist.all_reduce(x)
        dist.all_reduce(x)
        return x[0].item()
    x = torch.ones(3)
    future = dist.all_reduce(x, async_op=True).get_future()
    # torch completes this future a second time, which throws in C++.
    future.then(lambda _: 1).set_result(2)
    world.store.set("asked", "")
    future.wait()
    # Later futures complete.
    dist.all_reduce(x, async_op=True).get_future().wait()
    return x[0].item()


def test_callback_that_throws_in_cpp_ends_no_process(fresh):
    outcomes = fresh(2).outcomes(complete_twice)
    assert [(outcome.value, outcome.died) for outcome in outcomes] == [(4.0, None)] * 2

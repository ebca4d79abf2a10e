"""Tests of options for a block of calls (`tutti.options`), and of the call that goes straight to the backend
(`tutti.all_reduce`)."""
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch_tutti as tutti
from ranks import by_name


def total(world):
    return world.size * (world.size + 1) / 2


def choose(world):
    for name in tutti.algorithms()["allreduce"]:
        with tutti.options(algorithm=name), by_name(world):
            x = torch.full((1000,), world.rank + 1.0)
            dist.all_reduce(x)
            assert x[0] == x[-1] == total(world), name
    with tutti.options(algorithm="allreduce=ring,broadcast=chain"):
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        # The block names no algorithm for these two.
        dist.barrier()
        gathered = torch.empty(1000 * world.size)
        dist.all_gather_into_tensor(gathered, x)
        # Messages have no algorithms.
        if world.rank < 2:
            dist.send(x, 1 - world.rank) if world.rank else dist.recv(x, 1)


def test_block_sets_the_algorithm(shared):
    shared(3).run(choose)


def refuse(world):
    x = torch.ones(1)
    with pytest.raises(ValueError, match='no collective has an algorithm "rign"'):
        tutti.options(algorithm="rign")
    for wrong, text in (("allreduce=rign", 'unknown allreduce algorithm "rign", did you mean "ring"'),
                        ("allreduse=ring", 'unknown collective "allreduse", did you mean "allreduce"'),
                        ("broadcast=chain,ring", "should read collective=algorithm")):
        with tutti.options(algorithm=wrong), pytest.raises(ValueError, match=text):
            dist.all_reduce(x)
    with pytest.raises(ValueError, match="at least a millisecond"):
        tutti.options(timeout=timedelta(0))
    with pytest.raises(TypeError):
        # Arguments are passed by name only.
        tutti.options("ring")
    with tutti.options(algorithm="allreduce=rign"):
        # The innermost block counts.
        with tutti.options(algorithm="ring"):
            dist.all_reduce(x)
        # The inner block sets no algorithm, so that of the outer one counts.
        with tutti.options(timeout=timedelta(seconds=20)):
            with pytest.raises(ValueError, match="unknown allreduce algorithm"):
                dist.all_reduce(x)
    try:
        with tutti.options(algorithm="allreduce=rign"):
            raise KeyError
    except KeyError:
        # The exception has ended the block.
        dist.all_reduce(x)


def interleave(world):
    def choosing(algorithm):
        with tutti.options(algorithm=algorithm):
            yield
            yield
    x = torch.ones(1)
    first, second = choosing("allreduce=rign"), choosing("allreduce=ring")
    next(first), next(second)
    dist.all_reduce(x)
    # Ends the block that was entered first.
    first.close()
    dist.all_reduce(x)
    second.close()
    block = tutti.options(algorithm="ring")
    thread = threading.Thread(target=block.__enter__)
    thread.start()
    thread.join(30)
    with pytest.raises(RuntimeError, match="was not entered on this thread"):
        block.__exit__(None, None, None)
    dist.all_reduce(x)
    assert x == world.size ** 3


def test_blocks_may_end_in_any_order(shared):
    shared(2).run(interleave)


def share(world):
    """One object, in two threads, of which the first to enter is the first to leave."""
    x, inside, left = torch.ones(1), threading.Event(), threading.Event()
    block, refused = tutti.options(algorithm="allreduce=nothing"), []

    def other():
        with block:
            inside.set()
            left.wait(30)
            with pytest.raises(ValueError, match="unknown allreduce algorithm"):
                dist.all_reduce(x.clone())
            refused.append(True)

    thread = threading.Thread(target=other)
    with block:
        thread.start()
        inside.wait(30)
    # This thread has left the block.
    dist.all_reduce(x)
    left.set()
    thread.join(30)
    assert x == world.size and refused


def test_threads_may_share_a_block(shared):
    shared(2).run(share)


def every_kind(world):
    # Uneven lists are gathered by all_to_all, which has no ring.
    with tutti.options(algorithm="ring"):
        x = torch.full((world.rank + 1,), float(world.rank))
        parts = [torch.empty(r + 1) for r in range(world.size)]
        dist.all_gather(parts, x)
        assert all(part.eq(r).all() for r, part in enumerate(parts))
        dist.broadcast(x[:1], 0)
        s = torch.ones(3).to_sparse()
        dist.all_reduce(s)
        assert s.to_dense()[0] == world.size


def test_algorithm_applies_to_collectives_that_have_it(shared):
    shared(2).run(every_kind)


def test_unknown_algorithms_and_wrong_options_are_refused(shared):
    shared(2).run(refuse)


def elsewhere(world):
    def other():
        x = torch.ones(1)
        # On the thread of the block this call would be refused.
        dist.all_reduce(x)
        answers.append(x.item())
    answers = []
    with tutti.options(algorithm="allreduce=nothing"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(30)
    assert answers == [world.size]


def test_block_applies_to_its_thread_only(shared):
    shared(2).run(elsewhere)


def late(world):
    if world.rank == 0:
        with tutti.options(timeout=timedelta(milliseconds=200)):
            dist.all_reduce(torch.ones(1))


def test_block_sets_the_timeout(fresh):
    outcome = fresh(2).outcomes(late)[0]
    assert outcome.error == "TimeoutError" and "200 ms" in outcome.text and "rank 1" in outcome.text


def late_by_itself(world):
    if world.rank == 0:
        options = dist.AllreduceOptions()
        options.timeout = timedelta(milliseconds=200)
        # The call's own timeout overrides that of the block.
        with tutti.options(timeout=timedelta(seconds=30)):
            dist.group.WORLD.allreduce([torch.ones(1)], options).wait()


def test_timeout_of_a_call_overrides_that_of_the_block(fresh):
    outcome = fresh(2).outcomes(late_by_itself)[0]
    assert outcome.error == "TimeoutError" and "200 ms" in outcome.text


def direct(world):
    for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.bool):
        x = torch.ones(5, dtype=dtype)
        tutti.all_reduce(x)
        assert x[0] == (True if dtype == torch.bool else world.size)
    x = torch.tensor([world.rank + 1.0])
    tutti.all_reduce(x, dist.ReduceOp.MAX)
    assert x == world.size
    tutti.all_reduce(x, op=dist._make_nccl_premul_sum(0.5))
    assert x == world.size * world.size / 2
    x = torch.ones(3)
    # The group may be of any backend.
    tutti.all_reduce(x, group=world.gloo)
    assert x[0] == world.size
    s = torch.ones(3).to_sparse()
    tutti.all_reduce(s)
    assert s.to_dense()[0] == world.size
    with tutti.options(algorithm="ring"):
        tutti.all_reduce(x)
    assert x[0] == world.size ** 2
    if world.rank == 0:
        # Meets torch's own call on the other rank.
        tutti.all_reduce(x)
    else:
        dist.all_reduce(x)
    assert x[0] == world.size ** 3


def test_direct_all_reduce_gives_the_results_of_torch(shared):
    shared(2).run(direct)


def direct_refused(world):
    with pytest.raises(ValueError, match="all_reduce: the input tensor receives a result, but several of its elements"):
        tutti.all_reduce(torch.ones(4, 1).expand(4, 4))
    with pytest.raises(ValueError, match="this rank is in no such group"):
        tutti.all_reduce(torch.ones(1), group=dist.GroupMember.NON_GROUP_MEMBER)
    with pytest.raises(TypeError, match="tensor"):
        tutti.all_reduce([1.0])
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="call init_process_group first"):
        tutti.all_reduce(torch.ones(1))


def test_direct_all_reduce_refuses_wrong_arguments(fresh):
    fresh(2).run(direct_refused)

"""Tests of asynchronous operations: Works, futures, callbacks, coalescing, messages in any order. No result depends on
whether the program still holds these objects."""
import ctypes
import gc
import os
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ranks import threads_called


def until(condition, limit_s=20):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"the condition did not hold within {limit_s} s"
        time.sleep(0.001)


def total(world):
    return world.size * (world.size + 1) / 2


def check_work(world):
    x = torch.full((1000,), world.rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    assert work.wait() is True and work.is_completed() and work.is_success() and work.exception() is None
    assert torch.equal(x, torch.full((1000,), total(world)))
    assert work.result()[0].data_ptr() == x.data_ptr()
    # A second wait does no harm.
    assert work.wait() is True
    first, second = dist.all_reduce(x, async_op=True), dist.barrier(async_op=True)
    second.wait()
    # Operations of a group complete in the order of the calls.
    assert first.is_completed()


def test_work_completes_and_reports_success(shared):
    shared(2).run(check_work)


def check_many_in_flight(world):
    tensors = [torch.full((i % 97 + 1,), world.rank + float(i)) for i in range(300)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for work in reversed(works):
        work.wait()
    for i, t in enumerate(tensors):
        assert torch.equal(t, torch.full_like(t, i * world.size + total(world) - world.size))


@pytest.mark.parametrize("size", [2, 4])
def test_many_operations_in_flight_complete(shared, size):
    shared(size).run(check_many_in_flight)


def check_dropped(world):
    """Checks that operations run although the program holds neither their Works nor their tensors."""
    seen = torch.zeros(100)
    for _ in range(50):
        dist.all_reduce(torch.ones(10_000), async_op=True)
    dist.all_gather([torch.empty(100) for _ in range(world.size)], torch.ones(100), async_op=True)
    dist.broadcast(seen, 0, async_op=True)
    gc.collect()
    dist.barrier()
    mine = torch.ones(3)
    dist.all_reduce(mine)
    assert mine[0] == world.size


def test_dropped_operations_complete(shared):
    shared(3).run(check_dropped)


def check_polling(world):
    outputs = [torch.zeros(999) for _ in range(world.size)]
    work = dist.all_gather(outputs, torch.full((999,), float(world.rank)), async_op=True)
    # is_completed also means that the list of outputs is filled.
    until(work.is_completed)
    for r, out in enumerate(outputs):
        assert torch.equal(out, torch.full((999,), float(r)))


def test_polled_work_completes_without_a_wait(shared):
    shared(3).run(check_polling)


# ---- futures ----
def check_futures(world):
    x = torch.full((10,), world.rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    halved = future.then(lambda f: f.value()[0] / 2)
    assert torch.equal(halved.wait(), torch.full((10,), total(world) / 2))
    assert isinstance(future.value(), list) and future.done()
    assert work.get_future().done()
    late = dist.all_reduce(torch.ones(1), async_op=True)
    late.wait()
    assert late.get_future().wait()[0].item() == world.size
    quick = dist.barrier(async_op=True).get_future()
    quick.wait()


def test_futures_get_results(shared):
    shared(2).run(check_futures)


def check_callbacks_that_communicate(world):
    """Checks a callback that runs a collective, and one that waits for another future, as PowerSGD's hook does."""
    def again(future):
        y = future.value()[0].clone()
        dist.all_reduce(y)
        return y

    def and_wait(future):
        y = future.value()[0].clone()
        return dist.all_reduce(y, async_op=True).get_future().wait()[0]

    for callback in (again, and_wait):
        futures = []
        # One at a time, because callbacks of several futures may run in another order on each rank.
        for _ in range(5):
            futures.append(dist.all_reduce(torch.ones(4), async_op=True).get_future().then(callback))
            assert futures[-1].wait()[0].item() == world.size ** 2


def test_callbacks_that_communicate(shared):
    shared(2).run(check_callbacks_that_communicate)


def check_a_crowd_of_callbacks(world):
    """Checks callbacks of 70 futures that wait for one other future: all get its value, and the extra threads that ran
    them end."""
    backend, me = dist.group.WORLD._get_backend(torch.device("cpu")), world.rank
    def receive(tag):
        return backend.recv([torch.empty(1)], me, tag).get_future()
    def send(tag):
        backend.send([torch.ones(1)], me, tag)
    awaited = receive(99)
    entered = []
    def wait(_):
        entered.append(True)
        return awaited.wait()[0]
    crowd = [receive(tag).then(wait) for tag in range(70)]
    for tag in range(70):
        send(tag)
    until(lambda: len(entered) == 70)
    send(99)
    assert [future.wait().item() for future in crowd] == [1] * 70
    until(lambda: threads_called("tutti-futures") == 1)


def test_many_callbacks_may_block(fresh):
    fresh(1).run(check_a_crowd_of_callbacks)


def no_more_threads():
    """Forbids new threads in this process, as a limit of the system on its user's threads does."""
    # The limit does not apply to root.
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def check_callbacks_without_threads(world):
    """Checks callbacks that wait for another future, when no further thread can start. The callback makes this future
    (then), or it was made before."""
    backend, me = dist.group.WORLD._get_backend(torch.device("cpu")), world.rank
    until(lambda: threads_called("tutti-futures") == 1)
    no_more_threads()
    with pytest.raises(RuntimeError):
        threading.Thread(target=int).start()
    for when in ("then", "before"):
        receive = lambda tag: backend.recv([torch.empty(1)], me, tag).get_future()
        inner = receive(1) if when == "before" else None
        entered = threading.Event()
        def wait(_):
            entered.set()
            return (inner or receive(1)).wait()[0]
        outer = receive(0).then(wait)
        backend.send([torch.ones(1)], me, 0)
        until(entered.is_set)
        backend.send([torch.ones(1)], me, 1)
        # Without a further thread, calls of the program complete the futures.
        until(lambda: dist.barrier() or outer.done())
        assert outer.value() == 1


def test_callbacks_complete_without_further_threads(fresh):
    fresh(1).run(check_callbacks_without_threads)


def check_a_future_while_the_thread_is_busy(world):
    """Checks that get_future returns before its operation has completed, even while the only thread for callbacks runs
    one. The send that the operation needs comes afterwards."""
    backend, me = dist.group.WORLD._get_backend(torch.device("cpu")), world.rank
    receive = lambda tag: backend.recv([torch.empty(1)], me, tag).get_future()
    entered, released = threading.Event(), threading.Event()
    until(lambda: threads_called("tutti-futures") == 1)
    receive(0).then(lambda _: entered.set() or released.wait())
    backend.send([torch.ones(1)], me, 0)
    until(entered.is_set)
    no_more_threads()
    future = receive(1)
    backend.send([torch.ones(1)], me, 1)
    released.set()
    assert future.wait()[0].item() == 1


def test_get_future_returns_while_the_only_thread_is_busy(fresh):
    fresh(1).run(check_a_future_while_the_thread_is_busy)


def join_without_threads(world):
    """Makes a group when no further thread can start. Another communicator of this process has started the core's
    threads before."""
    import torch_tutti
    from torch_tutti.exceptions import SystemError
    library = ctypes.CDLL(str(Path(torch_tutti.__file__).with_name("libtutti.so")))
    # The first 16 bytes of a tutti_config: struct_size (8 bytes), rank 0 of 1.
    config, comm = (ctypes.c_int * 4)(16, 0, 0, 1), ctypes.c_void_p()
    assert library.tutti_comm_init(ctypes.byref(comm), ctypes.byref(config)) == 0
    no_more_threads()
    with pytest.raises(SystemError, match="rank 0 of group all: cannot start the thread that completes futures: "
                                          "pthread_create returned error 11 .limit on threads"):
        torch_tutti.ProcessGroupTutti(dist.HashStore(), 0, 1, group="all")


@pytest.mark.one_host("a job of one rank")
def test_group_whose_thread_cannot_start_is_an_error(fresh):
    fresh(1, join=False).run(join_without_threads)


def check_many_blocked_callbacks(world):
    """Checks that callbacks of several groups may wait for further operations of their groups at the same time."""
    groups = world.made_once("of callbacks", lambda: [dist.new_group() for _ in range(4)])
    def and_wait(group):
        return lambda f: dist.all_reduce(f.value()[0].clone(), async_op=True, group=group).get_future().wait()[0]
    futures = [dist.all_reduce(torch.ones(2), async_op=True, group=g).get_future().then(and_wait(g)) for g in groups]
    assert [f.wait()[0].item() for f in futures] == [float(world.size ** 2)] * len(groups)


def test_callbacks_of_several_groups_may_block(shared):
    shared(2).run(check_many_blocked_callbacks)


# ---- coalescing ----
def check_coalescing(world):
    device = torch.device("cpu")
    tensors = [torch.full((n,), world.rank + 1.0) for n in (1, 10, 0, 1000)]
    with dist._coalescing_manager(device=device):
        for t in tensors:
            dist.all_reduce(t)
    for t in tensors:
        assert torch.equal(t, torch.full_like(t, total(world)))
    outs = [torch.zeros(n * world.size) for n in (3, 5)]
    ins = [torch.full((n,), float(world.rank)) for n in (3, 5)]
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for o, i in zip(outs, ins):
            dist.all_gather_into_tensor(o, i)
    manager.wait()
    for o, n in zip(outs, (3, 5)):
        assert torch.equal(o, torch.arange(world.size).repeat_interleave(n).float())
    dist.all_reduce_coalesced(tensors)
    for t in tensors:
        assert torch.equal(t, torch.full_like(t, total(world) * world.size))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [2, 3])
def test_coalesced_calls_give_results(shared, size):
    shared(size).run(check_coalescing)


def check_coalesced_work(world):
    """Checks that the Work of the end covers all calls since the start, and that the group still works after a block
    that was never ended, as an exception leaves it."""
    group = dist.group.WORLD
    device = torch.device("cpu")
    group._start_coalescing(device)
    tensors = [torch.full((n,), world.rank + 1.0) for n in (7, 70_000)]
    works = [group.allreduce([t]) for t in tensors]
    for work in works:
        # A coalesced call can be waited for before the end.
        work.wait()
    group.allreduce([tensors[0]])
    work = group._end_coalescing(device)
    work.wait()
    assert work.is_completed() and torch.equal(tensors[0], torch.full((7,), total(world) * world.size))
    # This block is never ended.
    group._start_coalescing(device)
    x = torch.ones(3)
    dist.all_reduce(x)
    group._start_coalescing(device)
    dist.all_reduce(x)
    group._end_coalescing(device).wait()
    assert x[0] == world.size ** 2


def test_coalesced_work_covers_all_calls(shared):
    shared(2).run(check_coalesced_work)


def refuse_at_the_end(world):
    """Checks that a block is over if its end refuses an operation: the end is where torch launches coalesced calls."""
    group, device = dist.group.WORLD, torch.device("cpu")

    def kinds_that_differ():
        dist.all_reduce(torch.ones(3))
        dist.all_gather_into_tensor(torch.ones(3 * world.size), torch.ones(3))

    def layout():
        dist.all_reduce(torch.ones(4, 1).expand(4, 3))

    def nested():
        layout()
        with pytest.raises(ValueError, match="non-empty op list"), dist._coalescing_manager(device=device):
            pass

    for mistake, error, text in ((kinds_that_differ, RuntimeError, "to be the same type"),
                                 (layout, ValueError, "share memory"), (nested, ValueError, "share memory")):
        for later in False, True:
            with pytest.raises(error, match=text), dist._coalescing_manager(device=device, async_ops=later):
                mistake()
            with pytest.raises(ValueError, match="without start_coalescing"):
                group._end_coalescing(device)
    x = torch.ones(3)
    dist.all_reduce(x, async_op=True).get_future().wait()
    assert x[0] == world.size


@pytest.mark.filterwarnings("ignore")
def test_block_is_over_if_its_end_refuses(fresh):
    fresh(2).run(refuse_at_the_end)


def die_while_it_coalesces(world):
    """Destroys groups within a block. The next group, which may have the same address, must not be in a block."""
    device = torch.device("cpu")
    for _ in range(10):
        group = dist.new_group()
        group._start_coalescing(device)
        dist.destroy_process_group(group)
        del group
        gc.collect()
        following = dist.new_group()
        with pytest.raises(ValueError, match="without start_coalescing"):
            following._end_coalescing(device)
        dist.destroy_process_group(following)
        del following


def test_new_group_does_not_inherit_a_block(fresh):
    fresh(2).run(die_while_it_coalesces)


def end_the_first_first(world):
    """Checks that one thread may begin blocks of three groups and end the first one first."""
    groups = [dist.new_group() for _ in range(3)]
    device = torch.device("cpu")
    for group in groups:
        group._start_coalescing(device)
    tensors = [torch.ones(3) for _ in groups]
    for group, x in zip(groups, tensors):
        group.allreduce([x])
    for group, x in zip(groups, tensors):
        work = group._end_coalescing(device)
        work.wait()
        until(work.is_completed)
        assert x[0] == world.size


def test_blocks_of_several_groups_end_in_any_order(fresh):
    fresh(2).run(end_the_first_first)


# ---- messages ----
def check_messages(world):
    me, p = world.rank, world.size
    right, left = (me + 1) % p, (me - 1) % p
    x, y = torch.full((100,), float(me)), torch.empty(100)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, y, left), dist.P2POp(dist.isend, x, right)]):
        work.wait()
    assert y[0] == left
    # Receives are posted in another order than the sends.
    for count in (0, 1, 5, 200_000):
        sends = [dist.isend(torch.full((count,), me * 10.0 + tag), right, tag=tag) for tag in (1, 2, 3)]
        outs = {tag: torch.empty(count) for tag in (3, 1, 2)}
        works = [dist.irecv(out, left, tag=tag) for tag, out in outs.items()]
        for work in [*works, *sends]:
            work.wait()
        for tag, out in outs.items():
            assert torch.equal(out, torch.full((count,), left * 10.0 + tag))


@pytest.mark.parametrize("size", [2, 3])
def test_messages_match_by_tag(shared, size):
    shared(size).run(check_messages)


def check_any_source(world):
    if world.rank:
        dist.send(torch.tensor([float(world.rank)]), 0)
        return None
    senders, x = set(), torch.empty(1)
    for _ in range(world.size - 1):
        sender = dist.recv(x)
        assert x.item() == sender
        senders.add(sender)
    return senders


def test_receive_from_any_rank_returns_the_sender(shared):
    assert shared(4).run(check_any_source)[0] == {1, 2, 3}


def check_blocking_messages(world):
    for i in range(50):
        x = torch.tensor([float(i)])
        if world.rank == i % 2:
            dist.send(x, 1 - world.rank)
        else:
            got = torch.empty(1)
            dist.recv(got, 1 - world.rank)
            assert got.item() == i


def test_blocking_messages_in_turns(shared):
    shared(2).run(check_blocking_messages)


def check_messages_to_myself(world):
    me, backend = world.rank, dist.group.WORLD._get_backend(torch.device("cpu"))
    x, big = torch.empty(1), torch.ones(500_000)
    waits = {"receive": [lambda: dist.recv(x, me), lambda: dist.irecv(x, me).wait(timedelta(seconds=20)),
                         lambda: dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, me)])[0].wait()],
             "send": [lambda: backend.send([big], me, 0).wait()]}
    for verb, calls in waits.items():
        # No matching send or receive has been started.
        for call in calls:
            with pytest.raises(ValueError, match=f"rank {me} of .* waits to {verb} .*itself.*start both"):
                call()
    for value in (1., 2.):
        backend.send([torch.tensor([value])], me, 0)
        dist.recv(x, me)
        assert x == value
    work = dist.irecv(big, me)
    backend.send([2 * torch.ones(500_000)], me, 0)
    work.wait()
    assert big.eq(2).all()
    dist.barrier()


def test_rank_that_waits_for_itself_is_refused(fresh):
    fresh(2, timeout_s=10).run(check_messages_to_myself)


# ---- threads ----
def check_threads(world):
    """Checks three groups that three threads use at the same time, each its own."""
    groups = world.made_once("threads", lambda: [dist.new_group() for _ in range(2)])

    def body(group):
        for i in range(200):
            x = torch.full((i + 1,), 1.0)
            dist.all_reduce(x, group=group)
            assert x[0] == world.size

    with ThreadPoolExecutor(len(groups)) as pool:
        others = [pool.submit(body, group) for group in groups]
        body(None)
        for other in others:
            other.result(60)


def test_threads_use_groups_at_the_same_time(shared):
    shared(2).run(check_threads)


def check_profile(world):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        dist.all_reduce(torch.ones(5, 4))
        dist.all_reduce(torch.ones(3), async_op=True).wait()
        dist.all_gather([torch.empty(2) for _ in range(world.size)], torch.ones(2))
    events = [(e.name, e.input_shapes) for e in profile.events() if e.name.startswith("tutti:")]
    return [name for name, _ in events], events[0][1]


def test_profiler_sees_operations(shared):
    for names, shapes in shared(2).run(check_profile):
        assert sorted(names) == ["tutti:all_gather", "tutti:all_reduce", "tutti:all_reduce"]
        assert shapes == [[5, 4]]

"""Tests of a change of members in a group that is in use: by other threads, Works, sub-groups, the recorder, training,
and a forked child."""
import os
import threading

import pytest
import torch
import torch.distributed as dist

import torch_tutti
from torch_tutti import experts
from torch_tutti.experts import _across
from torch_tutti.experts._across import Across
from torch_tutti.experts._direct import Direct
from members import Member, backend_of, refused, ways


# ---- other threads ----
def call_meanwhile(world, way):
    """Another thread is in a call when the members change, and makes more calls until it has seen both memberships."""
    member = Member(world, way)
    member.all(1)
    dist.barrier()
    seen, stop = [], threading.Event()

    def work():
        while not stop.is_set():
            try:
                x = torch.ones(1000)
                dist.all_reduce(x)
                seen.append(x[0].item())
            except dist.DistBackendError as error:
                seen.append(str(error))
                stop.wait(0.001)                        # the other thread needs the GIL
    thread = threading.Thread(target=work)
    thread.start()
    kept = [rank for rank in range(world.size) if rank < 2]
    if world.rank in kept:
        member.change(2, member.collect("kept", kept))
    else:
        backend_of().abort()
    member.meet("changed")
    stop.set()
    dist.group.WORLD._get_backend(torch.device("cpu")).abort()
    thread.join(30)
    assert not thread.is_alive()
    assert {one for one in seen if not isinstance(one, str)} <= {world.size, 2}
    return sorted({one for one in seen if isinstance(one, str)})


@ways
def test_calls_of_other_threads_meanwhile(fresh, way):
    for texts in fresh(3, join=False).run(call_meanwhile, way):
        assert all("reconfigure" in text or "abort" in text or "destroyed" in text or "rank" in text for text in texts)


def blocked_thread(world):
    """A thread waits for a rank that never calls; the change ends its call. A second change meanwhile is refused."""
    member = Member(world)
    member.all(1)
    found = []

    def wait():
        try:
            dist.all_reduce(torch.ones(1))
        except torch_tutti.Error as error:
            found.append(type(error).__name__)
    thread = threading.Thread(target=wait)
    if world.rank == 0:
        before = torch_tutti.waiting()["sleeps"]
        thread.start()
        while torch_tutti.waiting()["sleeps"] == before:
            pass
    handles = member.collect("handles")
    if world.rank == 0:
        def change_again():
            try:
                member.change(5, handles)
            except torch_tutti.AbortedError as error:
                found.append(str(error))
        second = threading.Thread(target=change_again)
        group = dist.group.WORLD
        first = threading.Thread(target=member.change, args=(2, handles))
        first.start()
        thread.join(30)
        with refused(torch_tutti.AbortedError, "another thread reconfigures this group", "uuid 2"):
            dist.all_reduce(torch.ones(1), group=group)
        second.start()
        second.join(30)
        member.meet("seen")
        first.join(30)
        assert found[0] in ("AbortedError", "PeerError") and "another thread reconfigures" in found[1], found
    else:
        member.meet("seen", [1])
        world.store.get("seen/0")
        member.change(2, handles)
    member.check(world.rank, world.size)


def test_a_blocked_thread_gets_an_error(fresh):
    fresh(2, join=False).run(blocked_thread)


def asynchronous_works(world):
    """Works that outlive the change end with their result or an error, and release what they hold."""
    member = Member(world)
    member.all(1)
    done = dist.all_reduce(torch.ones(1), async_op=True)
    done.wait()
    works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(3)] if world.rank == 0 else []
    futures = [work.get_future() for work in works]
    member.change(2, member.collect("handles"))
    member.check(world.rank, world.size)
    assert done.is_completed() and done.is_success()
    for work, future in zip(works, futures):
        with pytest.raises(torch_tutti.Error):
            work.wait()
        with pytest.raises(RuntimeError):
            future.wait()


def test_works_outlive_the_change(fresh):
    fresh(2, join=False).run(asynchronous_works)


def coalescing(world):
    """A thread that coalesces calls does not go on with them in the new membership."""
    member = Member(world)
    member.all(1)
    backend, begun, changed, texts = backend_of(), threading.Event(), threading.Event(), []

    def call():
        return backend.allreduce([torch.ones(1)], dist.AllreduceOptions())

    def coalesce():
        backend._start_coalescing()
        call()
        begun.set()
        changed.wait()
        for step in call, backend._end_coalescing:
            try:
                step()
            except torch_tutti.AbortedError as error:
                texts.append(str(error))
    thread = threading.Thread(target=coalesce)
    thread.start()
    begun.wait()
    backend._start_coalescing()
    member.change(2, member.collect("handles"))
    changed.set()
    thread.join()
    assert len(texts) == 2 and all("this group was reconfigured" in text for text in texts), texts
    with pytest.raises((ValueError, torch_tutti.AbortedError)):
        backend._end_coalescing()
    member.check(world.rank, world.size)


def test_coalescing_ends_with_the_membership(fresh):
    fresh(2, join=False).run(coalescing)


def abort_meanwhile(world):
    """The group is aborted by another thread while this one waits for a member that does not come."""
    member = Member(world)
    handles = member.collect("handles")
    if world.rank == 0:
        backend, found = backend_of(), []

        def change():
            try:
                member.change(1, handles)
            except torch_tutti.AbortedError as error:
                found.append(str(error))
        thread = threading.Thread(target=change)
        thread.start()
        while thread.is_alive():
            backend.abort()
        assert "this group was aborted meanwhile" in found[0]
    member.meet("aborted")
    member.all(2)


def test_abort_ends_a_change(fresh):
    fresh(2, join=False).run(abort_meanwhile)


# ---- sub-groups ----
def sub_groups(world):
    member = Member(world)
    member.all(1)
    pair, whole = dist.new_group([0, 1]), dist.new_group()
    dist.barrier(group=whole)
    split = dist.group.WORLD.split_group([0, 1], group_name="split") if world.rank < 2 else None
    if split:
        dist.all_reduce(torch.ones(1), group=split)
    handles = member.collect("handles")
    member.change(2, handles)
    old = [group for group in (pair, whole, split) if group not in (dist.GroupMember.NON_GROUP_MEMBER, None)]
    for group in old:
        with refused(torch_tutti.AbortedError, "was made before the default group was reconfigured", "make it again"):
            group.barrier()
    again = dist.new_group([0, 2])
    if world.rank in (0, 2):
        x = torch.ones(1)
        dist.all_reduce(x, group=again)
        assert x.item() == 2
    with refused(NotImplementedError, "is a part of the default group; reconfigure the default group"):
        backend_of(dist.new_group())._reconfigure_handle()
    member.check(world.rank, world.size)


def test_sub_groups_are_made_again(fresh):
    fresh(3, join=False).run(sub_groups)


def windows(world):
    """A window belongs to the membership in which its tensor was registered."""
    member = Member(world)
    member.all(1)
    window = dist._new_window(torch_tutti.empty(4).zero_())
    member.change(2, member.collect("again"))
    with refused(torch_tutti.AbortedError, "put: the members of the group have changed since tensor_register"):
        window.put(torch.ones(1), 0, 0, False)
    with refused(torch_tutti.AbortedError, "was destroyed; make a new one"):
        window.tensor_deregister()
    mine = torch_tutti.empty(4).zero_()
    window.tensor_register(mine)
    peer = 1 - dist.get_rank()
    window.put(torch.ones(4), peer, 0, False)
    window.signal(peer, False)
    window.wait_signal(peer, False)
    window.tensor_deregister()
    assert mine.tolist() == [1] * 4


@pytest.mark.skipif(not hasattr(dist, "_new_window"), reason="torch before 2.14")
def test_windows_are_registered_again(fresh):
    fresh(2, join=False).run(windows)


def sub_groups_after_a_late_join(world):
    """A member that comes later has made fewer groups, and new groups still have the same names everywhere."""
    member = Member(world)
    if world.rank < 2:
        member.change(1, member.collect("first", [0, 1]))
        for _ in range(3):
            dist.barrier(group=dist.new_group())
    member.all(2)
    for ranks in None, [1, 2]:
        group = dist.new_group(ranks)
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            x = torch.ones(1)
            dist.all_reduce(x, group=group)
            assert x.item() == len(ranks or range(world.size))
    assert dist.get_process_group_ranks(dist.group.WORLD) == list(range(world.size))


@ways
def test_sub_groups_after_a_late_join(fresh, way):
    fresh(3, join=False).run(sub_groups_after_a_late_join)


# ---- what else knows the members ----
def joined_before(world):
    """A group that was made as usual can be changed, too."""
    handles = [None] * world.size
    dist.all_gather_object(handles, torch_tutti.reconfigure_handle())
    torch_tutti.reconfigure(handles[:0:-1] if world.rank else [handles[0]], uuid=1 + bool(world.rank))
    return dist.get_rank(), dist.get_world_size()


@pytest.mark.one_host("the list of simulated hosts is that of three ranks")
def test_a_group_that_was_made_as_usual(fresh):
    assert fresh(3).run(joined_before) == [(0, 1), (1, 2), (0, 2)]


def hooks_stay(world):
    """A traceback has the new rank once, however often the members have changed, and a hook of the program stays."""
    import sys
    from io import StringIO
    shown = []
    sys.excepthook = lambda kind, error, trace: (shown.append(error), sys.stderr.write("the program's hook"))
    member = Member(world)
    for turn in range(100):
        member.change(turn, member.collect(f"turn{turn}")[::-1])
    error, printed, old = ValueError("x"), StringIO(), sys.stderr
    sys.stderr = printed
    try:
        sys.excepthook(ValueError, error, None)
    finally:
        sys.stderr = old
    assert shown == [error]
    return printed.getvalue()


def test_exception_hooks_do_not_pile_up(fresh):
    printed = fresh(2, join=False).run(hooks_stay)
    assert [text.count("[rank") for text in printed] == [1, 1], printed


def recorded(world):
    member = Member(world)
    member.all(1)
    dist.all_reduce(torch.ones(1))
    member.change(2, member.collect("turned")[::-1])
    dist.all_reduce(torch.ones(1))
    from torch_tutti import _recorder
    trace = _recorder.recorded(100)
    groups = trace["pg_config"]
    names = [entry["process_group"][0] for entry in trace["entries"] if entry["profiling_name"] == "tutti:all_reduce"]
    return _recorder.rank(), sorted(groups), names[-1], trace["entries"][-1]["collective_seq_id"]


def test_the_recorder_knows_the_new_rank(fresh):
    found = fresh(2, join=False, environment={"TORCH_FR_BUFFER_SIZE": "100"}).run(recorded)
    assert [rank for rank, *_ in found] == [1, 0]
    assert found[0][1:] == found[1][1:]                 # all members give groups and operations the same names
    assert found[0][2].startswith("0/2-")


def in_a_child(world):
    member = Member(world)
    member.all(1)
    handles = member.collect("handles")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            member.change(2, handles)
        except torch_tutti.ForkedError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert b"belongs to the parent process" in os.read(read, 1000)
    member.change(2, handles)
    member.check(world.rank, world.size)


def test_a_forked_child_cannot_change_the_members(fresh):
    fresh(2, join=False).run(in_a_child)


def after_shutdown(world):
    member = Member(world)
    member.all(1)
    backend_of().shutdown()
    with refused(torch_tutti.AbortedError, "shut down or destroyed"):
        member.handle()


def test_after_shutdown(fresh):
    fresh(2, join=False).run(after_shutdown)


def train(world):
    """A new DistributedDataParallel trains with the members that are left."""
    from torch.nn.parallel import DistributedDataParallel
    member = Member(world)
    member.all(1)
    model = torch.nn.Linear(3, 1)
    handles = member.collect("handles")
    for turn in range(2):
        if turn:
            if world.rank == 0:
                return None
            member.change(2, handles[1:])
        ddp = DistributedDataParallel(model)
        ddp(torch.ones(2, 3)).sum().backward()
    return model.weight.grad.flatten().tolist()


def test_training_goes_on(fresh):
    assert fresh(3, join=False).run(train) == [None, *[[4.] * 3] * 2]


# ---- experts ----
def distributed_tokens(world, way, exchange):
    """After a change the experts share memory with all new members, and with no others. exchange: the class that
    exchanges rows."""
    _across.LEAST_BYTES = 0
    member = Member(world, way)
    first = range(world.size - 1)
    if world.rank in first:
        member.change(1, member.collect("first", first))
        distribute_tokens(exchange)
    member.all(2)
    distribute_tokens(exchange)


def distribute_tokens(exchange):
    """Sends 8 tokens to each rank's expert, which adds its rank, and checks the sums of the choices."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dispatcher = experts.Dispatcher(size)
    tokens = torch.arange(8 * 64, dtype=torch.float32).view(8, 64)
    batch = dispatcher.dispatch(tokens, torch.arange(size).repeat(8, 1))
    assert type(batch._exchange) is exchange and len(batch.tokens) == 8 * size
    result = dispatcher.combine(batch.tokens + rank, torch.ones(8, size), batch)
    torch.testing.assert_close(result, size * tokens + sum(range(size)))


@ways
def test_experts_after_a_change(fresh, way):
    fresh(3, join=False).run(distributed_tokens, way, Direct)


@ways
def test_experts_over_hosts_after_a_change(fresh, way):
    fresh(4, join=False, environment={"TUTTI_HOSTS": "0,0,1,1"}).run(distributed_tokens, way, Across)


def old_objects(world, way):
    """A Dispatcher and a Decoder of the members before say that the members have changed."""
    member = Member(world, way)
    member.all(1)
    group, tokens, chosen = dist.group.WORLD, torch.ones(1, 4), torch.zeros(1, 1, dtype=torch.int64)
    old = experts.Dispatcher(2 * world.size), experts.Decoder(2 * world.size, 4, 4)
    kept = range(world.size - 1)
    if world.rank not in kept:
        return
    member.change(2, member.collect("kept", kept))
    # before torch 2.14 the group is another object, and the old one refuses all calls
    error = ((ValueError, "members of the group have changed") if group is dist.group.WORLD else
             (torch_tutti.AbortedError, "this group was reconfigured"))
    for each in old:
        with refused(*error):
            each.dispatch(tokens, chosen)
    member.check(world.rank, world.size - 1)


@ways
def test_experts_of_the_members_before(fresh, way):
    fresh(3, join=False).run(old_objects, way)

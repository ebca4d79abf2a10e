"""Other members for the default group: without a rank, with ranks that come later, and after errors. The first cases
are those of torch's own test of this contract (test_c10d_fault_tolerance, torch 2.14). `torch` stands for torch's own
functions, which torch 2.14 has, and `tutti` for torch_tutti.reconfigure, which works with every torch."""
import os
import signal
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torch_tutti

NEWER = hasattr(dist, "_reconfigure")
WAYS = ["torch", "tutti"] if NEWER else ["tutti"]
ways = pytest.mark.parametrize("way", WAYS)


class Member:
    """One rank in these tests: how it joins, gives its handle, and changes the members."""

    def __init__(self, world, way="tutti", timeout_s=30, **options):
        self.world, self.way, self.me = world, way, world.rank
        options = {"backend": "tutti", "timeout": timedelta(seconds=timeout_s), **options}
        if NEWER:
            options["enable_reconfigure"] = True
        else:
            options["pg_options"] = torch_tutti.Options(enable_reconfigure=True)
        dist.init_process_group(store=world.store, rank=world.rank, world_size=world.size, **options)

    def handle(self):
        return dist._get_reconfigure_handle() if self.way == "torch" else torch_tutti.reconfigure_handle()

    def collect(self, name, ranks=None, text=None):
        """What all ranks, or these, give under this name: their handles."""
        self.world.store.set(f"{name}/{self.me}", self.handle() if text is None else text)
        keys = [f"{name}/{rank}" for rank in ranks or range(self.world.size)]
        self.world.store.wait(keys, timedelta(seconds=20))
        return [self.world.store.get(key).decode() for key in keys]

    def meet(self, name, ranks=None):
        self.collect(name, ranks, text="here")

    def change(self, uuid, handles, timeout_s=30):
        if self.way == "torch":
            dist._reconfigure(uuid, handles, timeout=timedelta(seconds=timeout_s)).wait()
        else:
            torch_tutti.reconfigure(handles, uuid=uuid, timeout=timedelta(seconds=timeout_s))

    def all(self, uuid):
        """All ranks become members, each with its number as rank."""
        self.change(uuid, self.collect(f"all{uuid}"))
        self.check(self.me, self.world.size)

    def check(self, rank, size):
        """Rank and size are these, and the members can add and send."""
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        assert (dist.group.WORLD.rank(), dist.group.WORLD.size()) == (rank, size)
        for count in 3, 50_000:
            x = torch.full((count,), rank + 1.)
            dist.all_reduce(x)
            assert x.tolist() == [size * (size + 1) / 2] * count
        parts = torch.empty(size)
        dist.all_gather_into_tensor(parts, torch.tensor([float(rank)]))
        assert parts.tolist() == list(range(size))
        if size > 1:
            got = torch.zeros(4)
            works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((4,), float(rank)), (rank + 1) % size),
                                            dist.P2POp(dist.irecv, got, (rank - 1) % size)])
            for work in works:
                work.wait()
            assert got.tolist() == [float((rank - 1) % size)] * 4


def backend_of(group=None):
    return (group or dist.group.WORLD)._get_backend(torch.device("cpu"))


def refused(kind, *pieces):
    """Around a call that raises this class, with all pieces in its text."""
    return pytest.raises(kind, match="(?s)" + "".join(f"(?=.*{piece})" for piece in pieces))


# ---- the cases of torch's own test ----
def init(world, way):
    member = Member(world, way)
    if way == "torch":
        assert dist._supports_reconfigure() and backend_of().supports_reconfigure
    for call in (lambda: dist.all_reduce(torch.ones(1)), lambda: torch_tutti.all_reduce(torch.ones(1)), dist.barrier,
                 dist.new_group):
        with refused(torch_tutti.AbortedError, "has no members yet; call reconfigure first"):
            call()
    assert member.handle() == member.handle() != ""


@ways
def test_init_joins_nobody(fresh, way):
    fresh(2, join=False).run(init, way)


def basic(world, way):
    Member(world, way).all(100)


@ways
def test_basic(fresh, way):
    fresh(3, join=False).run(basic, way)


def shrink(world, way, gone):
    member = Member(world, way)
    member.all(400)
    handles = member.collect("after")
    if world.rank == gone:
        return member.meet("done")
    member.change(401, handles[:gone] + handles[gone + 1:])
    member.check(world.rank - (world.rank > gone), world.size - 1)
    x = torch.full((4,), 42. if dist.get_rank() == 0 else 0.)
    dist.broadcast(x, src=0)
    assert x.tolist() == [42.] * 4
    member.meet("done")


@ways
@pytest.mark.parametrize("gone", [2, 1, 0])
def test_shrink(fresh, way, gone):
    fresh(3, join=False).run(shrink, way, gone)


def scale_down_and_up(world, way):
    member = Member(world, way)
    member.change(600 + world.rank, [member.handle()])
    member.check(0, 1)
    member.all(603)
    member.change(604 + world.rank, {member.handle()})
    member.check(0, 1)
    member.all(607)


@ways
def test_scale_down_to_one_and_up(fresh, way):
    fresh(3, join=False).run(scale_down_and_up, way)


def late_join(world, way):
    member = Member(world, way)
    if world.rank < 2:
        member.change(900, member.collect("first", [0, 1]))
        member.check(world.rank, 2)
    member.all(901)


@ways
def test_late_join(fresh, way):
    fresh(3, join=False).run(late_join, way)


def merge_and_split(world, way):
    member = Member(world, way)
    mine = [rank for rank in range(world.size) if rank // 2 == world.rank // 2]
    for turn in range(2):
        member.change(1000 + 10 * turn, member.collect(f"parts{turn}", mine))     # the same uuid in both halves
        member.check(mine.index(world.rank), len(mine))
        member.all(1002 + 10 * turn)


@ways
def test_merge_and_split(fresh, way):
    fresh(4, join=False).run(merge_and_split, way)


def after_abort(world, way):
    member = Member(world, way)
    member.all(1200)
    dist.barrier()
    backend_of().abort()
    with refused(torch_tutti.AbortedError, "aborted"):
        dist.all_reduce(torch.ones(1))
    member.all(1201)


@ways
def test_after_abort(fresh, way):
    fresh(3, join=False).run(after_abort, way)


def after_timeout(world, way):
    member = Member(world, way)
    member.all(1300)
    backend_of()._set_default_timeout(timedelta(seconds=0.5))
    if world.rank:
        with refused(torch_tutti.TimeoutError, "500 ms"):
            dist.all_reduce(torch.ones(1))
    backend_of()._set_default_timeout(timedelta(seconds=30))
    member.meet("noticed")
    member.all(1301)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()


@ways
def test_after_timeout(fresh, way):
    fresh(3, join=False).run(after_timeout, way)


def reuse(world, way):
    member = Member(world, way)
    member.all(1100)
    with refused(RuntimeError, "uuid 1100", "already used"):
        member.change(1100, member.collect("again"))
    member.check(world.rank, world.size)                # as before
    member.all(1101)


@ways
def test_a_uuid_is_used_once(fresh, way):
    fresh(2, join=False).run(reuse, way)


def several_backends(world):
    dist.init_process_group("cpu:tutti,cuda:gloo", store=world.store, rank=world.rank, world_size=world.size)
    with refused(ValueError, "reconfigure: the default group must have tutti as its only backend", "cuda:gloo"):
        torch_tutti.reconfigure(["x"], uuid=1)
    if NEWER:
        with refused(RuntimeError, "multiple backends"):
            dist._get_reconfigure_handle()


def test_several_backends(fresh):
    fresh(2, join=False).run(several_backends)


# ---- dead ranks ----
def without_the_dead(world, way):
    member = Member(world, way)
    member.all(1)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with refused(torch_tutti.PeerError, "rank 1"):
        while True:
            dist.all_reduce(torch.ones(100))
    alive = [rank for rank in range(world.size) if rank != 1]
    member.change(2, member.collect("alive", alive))
    member.check(alive.index(world.rank), len(alive))


@ways
def test_without_a_dead_rank(fresh, way):
    outcomes = fresh(4, join=False).outcomes(without_the_dead, way)
    assert outcomes[1].died == -signal.SIGKILL
    assert not any(outcome.failed for rank, outcome in enumerate(outcomes) if rank != 1), outcomes


def with_a_dead_rank(world):
    member = Member(world)
    member.all(1)
    handles = member.collect("all")
    if world.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with refused(torch_tutti.TimeoutError, r"not all of 3 members have come in \d+ ms", "formerly rank 2",
                 "must be left out"):
        member.change(2, handles, timeout_s=1)
    with refused(torch_tutti.AbortedError, "all_reduce: the last reconfigure of this group failed", "formerly rank 2"):
        dist.all_reduce(torch.ones(1))
    member.change(3, member.collect("alive", [0, 1]))
    member.check(world.rank, 2)


def test_a_dead_member_is_named(fresh):
    outcomes = fresh(3, join=False).outcomes(with_a_dead_rank)
    assert outcomes[2].died and not any(outcome.failed for outcome in outcomes[:2]), outcomes


# ---- arguments ----
def wrong_arguments(world):
    member = Member(world)
    member.all(1)
    mine, other = member.collect("handles")[::1 if world.rank == 0 else -1]
    for handles, *pieces in ([], "own handle is not among the 0"), ([other], "own handle is not among the 1"), (
            [mine, mine], "a member is there twice"), (["nonsense", mine], '"nonsense" is not a handle of tutti'), (
            [mine + " "], "is not a handle"), (["tutti:00ff:00ff:0:5", mine], "rank 5. belongs to another job, 00ff"):
        with refused(ValueError, r"reconfigure \(uuid 2\)", *pieces):
            member.change(2, handles)
    with refused(ValueError, "timeout of 0 s"):
        torch_tutti.reconfigure([mine, other], uuid=2, timeout=timedelta(0))
    with refused(TypeError, "not one text"):
        torch_tutti.reconfigure(mine, uuid=2)
    member.check(world.rank, world.size)
    member.all(2)
    with refused(torch_tutti.MismatchError, "this member's handle is stale", "has number 1", "the member has 2"):
        member.change(3, [mine])
    member.check(world.rank, world.size)


def test_wrong_arguments_leave_the_group_as_it_is(fresh):
    fresh(2, join=False).run(wrong_arguments)


def stale_handle_of_another(world):
    member = Member(world)
    member.all(1)
    old = member.collect("old")
    if world.rank == 1:
        member.change(2, [old[1]])
    member.meet("changed")
    if world.rank == 0:
        with refused(torch_tutti.MismatchError, "formerly rank 1. does not come", "stale", "uuid 2"):
            member.change(3, old)
    member.meet("refused")
    member.all(4)


def test_a_stale_handle_of_another_member(fresh):
    fresh(2, join=False).run(stale_handle_of_another)


def differ(world, what):
    member = Member(world)
    handles = member.collect("handles")
    uuid, me = 1, world.rank
    if what == "uuid":
        uuid += me
        pieces = ["does not come", "uuid"]
    elif what == "order":
        handles = handles[::-1] if me else handles
        pieces = ["a list of 2 handles", "another order"]
    else:
        handles = set(handles) if me else handles
        pieces = ["a list of 2 handles", "a set of 2 handles"]
    with refused(torch_tutti.MismatchError, *pieces):
        member.change(uuid, handles)
    member.meet("refused")
    member.all(9)


@pytest.mark.parametrize("what", ["uuid", "order", "kind"])
def test_members_disagree(fresh, what):
    fresh(2, join=False).run(differ, what)


def differ_in_members(world):
    """Rank 0 wants three members, and rank 1 two; rank 2 is not asked."""
    member = Member(world)
    handles = member.collect("handles")
    if world.rank < 2:
        with refused(torch_tutti.MismatchError, "a list of 3 handles", "a list of 2 handles|gave up"):
            member.change(1, handles[:3 - world.rank])
    member.meet("refused")
    member.all(2)


def test_members_give_other_members(fresh):
    fresh(3, join=False).run(differ_in_members)


def set_of_handles(world):
    """A set keeps the order of the former ranks."""
    member = Member(world)
    member.all(1)
    member.change(2, member.collect("turned")[::-1])
    last = world.size - 1
    member.check(last - world.rank, world.size)
    member.change(3, set(member.collect("set")))
    member.check(last - world.rank, world.size)


@pytest.mark.parametrize("size", [2, 4])
def test_a_set_keeps_the_order(fresh, size):
    fresh(size, join=False).run(set_of_handles)


def wrong_algorithm(world):
    with refused(ValueError, "nonsense"):
        dist.init_process_group("tutti", store=world.store, rank=world.rank, world_size=world.size,
                                pg_options=torch_tutti.Options(algorithm="nonsense=1", enable_reconfigure=True))


def test_algorithms_are_checked_before_anybody_joins(fresh):
    fresh(2, join=False).run(wrong_algorithm)


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
    member = Member(world)
    member.all(1)
    backend = backend_of()
    backend._start_coalescing()
    backend.allreduce([torch.ones(1)], dist.AllreduceOptions())
    member.change(2, member.collect("handles"))
    pieces = "this group was reconfigured"
    if NEWER:
        with refused(torch_tutti.AbortedError, pieces, "end coalescing"):
            backend.allreduce([torch.ones(1)], dist.AllreduceOptions())
    with refused(torch_tutti.AbortedError, pieces):
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


def test_a_group_that_was_made_as_usual(fresh):
    assert fresh(3).run(joined_before) == [(0, 1), (1, 2), (0, 2)]


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
    """DistributedDataParallel is made anew with the members that are left, and goes on."""
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

"""Tests of changes of the default group's members: without a rank, with ranks that join later, and after errors. The
first cases are those of torch's own test of this contract (test_c10d_fault_tolerance, torch 2.14)."""
import os
import re
import signal
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_tutti
from members import NEWER, Member, backend_of, refused, ways
from program_start import run_interpreter, succeeded


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


@pytest.mark.one_host("a simulated host needs a rank, so a member cannot be alone")
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
    with refused(torch_tutti.PeerError, "rank 1", "; reconfigure this group without rank 1 .docs/fault-tolerance.md."):
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


@pytest.mark.one_host("a simulated host needs a rank, so a member cannot be alone")
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


def wrapped(world):
    """A change in a group that torch's debugging wrapper wraps: torch up to 2.13 wraps the new group again."""
    dist.set_debug_level_from_env()                     # torch was imported before the environment was set
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    member = Member(world)
    if not NEWER:
        return member.all(100)
    with refused(ValueError, "debugging wrapper does not follow", "TORCH_DISTRIBUTED_DEBUG"):
        member.handle()


def test_debug_mode(fresh):
    fresh(2, join=False, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}).run(wrapped)


def test_algorithms_are_checked_before_anybody_joins(fresh):
    fresh(2, join=False).run(wrong_algorithm)


# ---- the page ----
def test_the_example_of_the_page(tmp_path):
    page = Path(__file__).resolve().parents[2] / "docs/fault-tolerance.md"
    program = tmp_path / "program.py"
    program.write_text(re.search(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[1])
    printed = succeeded(run_interpreter(program, OMP_NUM_THREADS="1", TUTTI_HOSTS=None))
    # Ranks may print into each other's lines.
    assert sorted(re.findall(r"step \d: rank \d of \d, sum \d", printed)) == [
        f"step {step}: rank {rank} of {size}, sum {size}" for step in range(4)
        for size in [3 if step < 2 else 2] for rank in range(size)]

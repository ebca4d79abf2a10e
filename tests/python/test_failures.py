"""Tests of failures between ranks: every rank gets an error of the right class that says what happened, and the group
can be destroyed. Each test breaks groups of its own. A rank whose function has returned stays a member until all have
answered, so a rank misses an operation by returning early."""
import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from ranks import threads_called


def failures(outcomes, kind, *pieces):
    """Asserts that all outcomes are errors of this class, and that each text has all pieces."""
    for rank, outcome in enumerate(outcomes):
        assert outcome.error == kind, f"rank {rank}: {outcome.error or outcome.value}: {outcome.text}\n{outcome.trace}"
        for piece in pieces:
            assert piece in outcome.text, f"rank {rank}: {piece!r} is not in: {outcome.text}"


# ---- ranks that disagree ----
def disagree_about(world, what):
    me = world.rank
    {
        "operation": lambda: dist.all_reduce(torch.ones(4)) if me else dist.broadcast(torch.ones(4), 0),
        "count": lambda: dist.all_reduce(torch.ones(4 + me)),
        "dtype": lambda: dist.all_reduce(torch.ones(4, dtype=torch.float32 if me else torch.float64)),
        "root": lambda: dist.broadcast(torch.ones(4), me),
        "reduction": lambda: dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if me else dist.ReduceOp.SUM),
        "async": lambda: dist.all_reduce(torch.ones(4 + me), async_op=True).wait(),
        "future": lambda: dist.all_reduce(torch.ones(4 + me), async_op=True).get_future().wait(),
        "large": lambda: dist.all_reduce(torch.ones(500_000 + me)),
        "splits": lambda: dist.all_to_all_single(torch.empty(2), torch.empty(2), [1, 1], [2, 0] if me else [1, 1]),
    }[what]()
    # A root that waits for no other rank gets the error from its next call.
    if world.hosts > 1 or what in ("operation", "root"):
        dist.barrier()


SIDES = {"operation": ["broadcast", "all"], "count": ["4", "5"], "dtype": ["float32", "float64"],
         "root": ["root 0", "root 1"],
         "reduction": ["sum", "max"], "async": ["4", "5"], "future": ["4", "5"], "large": ["500000",
                                                                                           "500001"], "splits": []}


@pytest.mark.parametrize("what", SIDES)
def test_disagreement_is_an_error_on_every_rank(fresh, what):
    failures(fresh(2).outcomes(disagree_about, what), "MismatchError", *SIDES[what])


def mixed_types(world, call, count):
    """Rank 0 sends int32, and rank 1 receives float32 of the same size."""
    other, tensor = 1 - world.rank, torch.ones(count, dtype=torch.float32 if world.rank else torch.int32)
    if call == "batch":
        operation = dist.P2POp(dist.irecv if world.rank else dist.isend, tensor, other, tag=7)
        dist.batch_isend_irecv([operation])[0].wait()
    elif call == "async":
        (dist.irecv if world.rank else dist.isend)(tensor, other, tag=7).wait()
    else:
        (dist.recv if world.rank else dist.send)(tensor, other, tag=7)
    # The sender of a small message, which has left, gets the error from its next call.
    dist.barrier()


@pytest.mark.parametrize("hosts", ["1", "2"])
@pytest.mark.parametrize("call, count", [("sync", 3), ("async", 100_000), ("batch", 5_000)])
def test_a_message_of_another_type_is_an_error(fresh, call, count, hosts):
    outcomes = fresh(2, environment={"TUTTI_HOSTS": hosts}).outcomes(mixed_types, call, count)
    failures(outcomes, "MismatchError", f"s {4 * count} bytes of int32", f"s {4 * count} bytes of float32", "rank 0",
             "rank 1", "with tag 7", "both must give the same number of elements of the same type")


def one_differs(world):
    dist.all_reduce(torch.ones(9 if world.rank == 2 else 3))


def test_one_rank_that_differs_is_an_error_on_all(fresh):
    failures(fresh(4).outcomes(one_differs), "MismatchError", "9", "3")


def after_failure(world):
    import torch_tutti
    try:
        dist.all_reduce(torch.ones(4 + world.rank))
    except torch_tutti.MismatchError as error:
        assert isinstance(error, torch_tutti.Error) and isinstance(error, dist.DistBackendError)
        first = str(error)
    with pytest.raises(torch_tutti.MismatchError) as again:
        dist.barrier()
    # Every later call raises the same error.
    assert str(again.value) == first
    dist.destroy_process_group()


def test_group_stays_failed_and_can_be_destroyed(fresh):
    fresh(2).run(after_failure)


# ---- ranks that are late, absent or dead ----
def join_late(world):
    if world.rank == 1:
        return "absent"
    dist.init_process_group("tutti", store=world.store, rank=world.rank, world_size=world.size,
                            timeout=timedelta(seconds=1.5))


def test_rank_that_never_joins_is_named(fresh):
    outcomes = fresh(3, join=False).outcomes(join_late)
    assert outcomes[1].value == "absent"
    failures([outcomes[0], outcomes[2]], "TimeoutError", "1")


def never_call(world, kind):
    if world.rank == 1:
        return
    x = torch.ones(3)
    if kind == "blocking":
        dist.all_reduce(x)
    elif kind == "async":
        dist.all_reduce(x, async_op=True).wait()
    elif kind == "wait":
        dist.all_reduce(x, async_op=True).wait(timedelta(seconds=1))
    elif kind == "recv":
        dist.recv(x, 1)


@pytest.mark.parametrize("kind", ["blocking", "async", "wait", "recv"])
def test_rank_that_never_calls_is_a_timeout_error(fresh, kind):
    outcomes = fresh(2, timeout_s=60 if kind == "wait" else 1).outcomes(never_call, kind)
    failures(outcomes[:1], "TimeoutError", "1", "1000 ms")


def set_timeout(world):
    dist.group.WORLD.set_timeout(timedelta(seconds=0.5))
    if world.rank == 0:
        dist.barrier()


def test_timeout_can_be_changed(fresh):
    outcomes = fresh(2).outcomes(set_timeout)
    failures(outcomes[:1], "TimeoutError", "500 ms")


def die(world, kind):
    dist.barrier()
    if world.rank == 1:
        if kind == "middle":
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    while True:
        if kind == "async":
            dist.all_reduce(torch.ones(1000), async_op=True).wait()
        elif kind == "messages":
            dist.recv(torch.empty(1), 1)
        else:
            dist.all_reduce(torch.ones(100_000))


@pytest.mark.parametrize("kind", ["blocking", "middle", "async", "messages"])
def test_killed_rank_is_named_by_all_others(fresh, kind):
    outcomes = fresh(3).outcomes(die, kind)
    assert outcomes[1].died == -signal.SIGKILL
    failures([outcomes[0], outcomes[2]], "PeerError", "rank 1")


def die_in_backward(world):
    from torch.nn.parallel import DistributedDataParallel
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(50, 50) for _ in range(4)]),
                                    bucket_cap_mb=0.01)
    model(torch.ones(2, 50)).sum().backward()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        model(torch.ones(2, 50)).sum().backward()


def test_error_keeps_its_class_through_backward(fresh):
    failures(fresh(2).outcomes(die_in_backward)[:1], "PeerError", "rank 1")


# ---- ending on purpose ----
def abort(world):
    import torch_tutti
    x = torch.ones(3)
    if world.rank == 0:
        time.sleep(0.3)
        dist.group.WORLD.abort()
        with pytest.raises(torch_tutti.AbortedError):
            dist.barrier()
        return
    with pytest.raises(torch_tutti.AbortedError):
        dist.all_reduce(x)


def test_abort_ends_operations_on_all_ranks(fresh):
    fresh(2).run(abort)


def shut_down(world):
    import torch_tutti
    if world.rank == 1:
        return
    work = dist.all_reduce(torch.ones(3), async_op=True)
    future = dist.barrier(async_op=True).get_future()
    dist.destroy_process_group()
    with pytest.raises(torch_tutti.AbortedError):
        work.wait()
    with pytest.raises(torch_tutti.AbortedError):
        future.wait()
    assert work.is_completed() and not work.is_success() and isinstance(work.exception(), torch_tutti.AbortedError)


@pytest.mark.filterwarnings("ignore")
def test_destroying_ends_running_operations(fresh):
    fresh(2).run(shut_down)


def shut_down_under_a_waiter(world):
    if world.rank == 1:
        return None
    group, seen = dist.group.WORLD, []

    def wait():
        try:
            dist.all_reduce(torch.ones(3))
        except Exception as error:
            seen.append(type(error).__name__)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    group.shutdown()
    thread.join(10)
    return seen


def test_shutdown_ends_the_wait_of_a_thread(fresh):
    assert fresh(2).run(shut_down_under_a_waiter)[0] == ["AbortedError"]


def shut_down_under_one_that_stays(world):
    """Shuts the group down while a thread is in a call that has failed and is writing its trace. Returns the number of
    progress threads that are left, and what the thread has seen."""
    import torch_tutti
    from torch_tutti import _recorder
    inside, go_on, seen = threading.Event(), threading.Event(), []
    _recorder.dump_after_failure = lambda _: (inside.set(), go_on.wait(60))
    work = dist.all_reduce(torch.ones(1), async_op=True)

    def disagree():
        try:
            dist.all_reduce(torch.ones(1 + world.rank))
        except torch_tutti.MismatchError:
            seen.append("failed")
        for again in (lambda: dist.all_reduce(torch.ones(1)), lambda: dist.group.WORLD.send([torch.ones(1)], 0, 0)):
            with pytest.raises(torch_tutti.AbortedError, match="this group was shut down or destroyed"):
                again()
        seen.append(work.wait() and work.is_completed())

    thread = threading.Thread(target=disagree)
    thread.start()
    assert inside.wait(20)
    dist.group.WORLD.shutdown()
    there = threads_called("tutti-progress")
    go_on.set()
    thread.join(20)
    return there, seen


def test_group_ends_while_a_thread_is_in_a_call(fresh):
    """The group ends while a thread is still in a call, and its later calls get an error with that reason."""
    ranks = fresh(2, environment={"TORCH_FR_BUFFER_SIZE": "10"})
    assert ranks.run(shut_down_under_one_that_stays) == [(0, ["failed", True])] * 2


def in_a_child(call):
    """Calls `call` in a forked child. Returns the class and text of the error that it raises, or "no error", as
    bytes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            call()
            text = b"no error"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}".encode()
        os.write(write, text)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def use_in_a_child(world):
    text = in_a_child(lambda: dist.all_reduce(torch.ones(1)))
    # The parent's group still works.
    dist.barrier()
    return text


def test_call_in_a_child_process_is_an_error(fresh):
    for text in fresh(2).run(use_in_a_child):
        assert text.startswith("ForkedError") and "child" in text


def wait_in_a_child(world):
    """Rank 1 makes its call when the children of rank 0 have reported their errors."""
    if world.rank == 1:
        world.store.wait(["asked"])
        dist.all_reduce(torch.ones(1))
        return None
    group = dist.group.WORLD
    x, over = torch.ones(1), dist.group.WORLD.send([torch.ones(1)], 1, 0)
    over.wait()
    work = dist.all_reduce(x, async_op=True)
    asked = {"wait": work.wait, "timeout": lambda: work.wait(timedelta(seconds=1)),
             "future": lambda: work.get_future().wait(), "result": lambda: work.get_future_result().wait(),
             "poll": work.is_completed, "block": work.block_current_stream if hasattr(work, "block_current_stream")
             else work.synchronize, "abort": group.abort,
             "split": lambda: group.split_group([0, 1], timedelta(seconds=5), None, "part", "part")}
    answers = {what: in_a_child(ask) for what, ask in asked.items()}
    fine = [in_a_child(call) for call in (over.wait, lambda: over.get_future().wait(), dist.destroy_process_group)]
    world.store.set("asked", "yes")
    work.wait()
    assert x == 2
    return answers, fine


def test_wait_in_a_child_for_a_work_of_its_parent_is_an_error(fresh):
    answers, fine = fresh(2).run(wait_in_a_child)[0]
    assert fine == ["no error"] * 3
    for what, text in answers.items():
        assert text.startswith("ForkedError") and "child" in text, f"{what}: {text}"


EXIT = """
import sys, torch, torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("tutti", store=dist.FileStore(sys.argv[2], 2), rank=rank, world_size=2)
dist.all_reduce(torch.ones(2))
if rank == 0:
    dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda f: print("called"))
print("end")
"""


def test_exit_with_a_pending_callback_is_clean(tmp_path):
    """The interpreter ends with a callback pending: no crash, no hang."""
    import subprocess
    import sys
    script = tmp_path / "leave.py"
    script.write_text(EXIT)
    ranks = [subprocess.Popen([sys.executable, script, str(r), str(tmp_path / "store")], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE,
                              text=True) for r in range(2)]
    for rank in ranks:
        out, err = rank.communicate(timeout=60)
        assert rank.returncode == 0 and "end" in out, err


# ---- the end of a rank that had an error of its own ----
RAISES = """
import sys, torch, torch.distributed as dist
store, rank = dist.FileStore(sys.argv[1], 2), int(sys.argv[2])
dist.init_process_group("tutti", store=store, rank=rank, world_size=2)
dist.barrier()
if rank == 1:
    raise LookupError("of its own")
try:
    dist.all_reduce(torch.ones(1))
except dist.DistBackendError as error:
    print(error, flush=True)
"""


def test_rank_that_ended_after_its_own_error_is_named(tmp_path):
    """The rank may be gone, or may have left in good order while its interpreter ended."""
    ranks = [subprocess.Popen([sys.executable, "-c", RAISES, tmp_path / "store", str(rank)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        out, errors = ranks[0].communicate(timeout=60)
        assert "LookupError: of its own" in ranks[1].communicate(timeout=60)[1]
    finally:
        for rank in ranks:
            rank.kill()
    found = re.search(r"rank 1 of group 0 (has ended or destroyed its group|\(process \d+ on .*\) died)", out)
    assert found, out + errors


# ---- the end of the store ----
STORE = """
import sys, time
from datetime import timedelta
import torch.distributed as dist
rank, port = int(sys.argv[1]), int(sys.argv[2])
store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, wait_for_workers=False)
if rank == 0:
    print(store.port, flush=True)
    sys.stdin.read()
else:
    print("joins", flush=True)
    try:
        dist.init_process_group("tutti", store=store, rank=1, world_size=2, timeout=timedelta(minutes=10))
    except dist.DistBackendError as error:
        print(error, flush=True)
"""


def test_end_of_the_store_while_joining_is_named():
    def start(*words):
        return subprocess.Popen([sys.executable, "-c", STORE, *map(str, words)], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    holder = start(0, 0)
    port = int(holder.stdout.readline())
    joiner = start(1, port)
    try:
        assert joiner.stdout.readline() == "joins\n"
        holder.kill()
        out, errors = joiner.communicate(timeout=60)
    finally:
        for rank in (holder, joiner):
            rank.kill()
            rank.communicate()
    expected = f"rank 1 cannot join group 0: the process that holds the store at 127.0.0.1:{port} (rank 0, unless"
    assert expected in out and "has ended or cannot be reached" in out, out + errors

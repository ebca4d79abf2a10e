"""Tests of the hooks that torch and programs register: before and after a call, when a group fails (torch 2.14), and
when an operation succeeds (torch 2.15). Also of torch's own recorder, which uses them, and of time estimates."""
import contextlib
import http.client
import json
import os
import shutil
import socket
import sys
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torch_tutti

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
with_hooks = pytest.mark.skipif(VERSION < (2, 14), reason="torch before 2.14")
with_completion = pytest.mark.skipif(VERSION < (2, 15), reason="torch before 2.15")
# When torch writes its recording with stacks, it imports torch._inductor, which takes seconds.
QUICK = {"TORCH_FR_BUFFER_SIZE": "0", "TORCH_INCLUDE_STACK_TRACE": "0"}


def backend_of(group=None):
    return (group or dist.group.WORLD)._get_backend(torch.device("cpu"))


# ---- abort hooks ----
def watch(group):
    """Registers abort hooks. Returns the list to which they add their names and threads."""
    seen = []
    for number, name in ((2, "second"), (1, "first"), (3, "removed")):
        group.register_abort_hook(number, lambda name=name: seen.append((name, threading.get_ident())))
    group.unregister_abort_hook(3)
    group.unregister_abort_hook(99)
    return seen


def names(seen):
    return [name for name, _ in seen]


def abort_twice(world):
    seen = watch(dist.group.WORLD)
    dist.all_reduce(torch.ones(1))
    assert not seen
    if world.rank == 0:
        backend_of().abort()
        assert names(seen) == ["first", "second"] and seen[0][1] == threading.get_ident()
        backend_of().abort()
    with pytest.raises(dist.DistBackendError, match="abort"):
        dist.all_reduce(torch.ones(1))
    with pytest.raises(dist.DistBackendError, match="abort"):
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    return names(seen)


@with_hooks
def test_abort_runs_the_hooks_of_all_ranks(fresh):
    """Abort hooks run on the rank that aborts, before it does, and on the others."""
    assert fresh(2, environment=QUICK).run(abort_twice) == [["first", "second"]] * 2


def miss_the_others(world, how):
    seen = watch(dist.group.WORLD)
    if world.rank == 1:
        world.store.wait(["over"])
        return names(seen)
    try:
        if how == "directly":
            torch_tutti.all_reduce(torch.ones(1))
        elif how == "future":
            dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
        elif how == "wait":
            dist.all_reduce(torch.ones(1), async_op=True).wait()
        elif how == "monitored":
            dist.monitored_barrier(timeout=timedelta(seconds=1))
        else:
            dist.all_reduce(torch.ones(1))
    except RuntimeError:
        # The hooks have run before the call raises.
        at_once = names(seen)
    world.store.set("over", "")
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(1))
    assert names(seen) == at_once
    return at_once


@with_hooks
@pytest.mark.parametrize("how", ["blocking", "directly", "wait", "future", "monitored"])
def test_timeout_runs_the_hooks_of_its_rank(fresh, how):
    found = fresh(2, timeout_s=1, environment=QUICK).run(miss_the_others, how)
    assert found == [["first", "second"], []]


def leave_an_operation(world):
    """The program does not wait for the operation, so a thread of tutti runs the hook."""
    ran, here = threading.Event(), threading.get_ident()
    threads = []
    dist.group.WORLD.register_abort_hook(1, lambda: (threads.append(threading.get_ident()), ran.set()))
    if world.rank == 0:
        work = dist.all_reduce(torch.ones(1 << 18), async_op=True)
        assert ran.wait(30) and threads != [here] and len(threads) == 1
        with pytest.raises(RuntimeError):
            work.wait()
        world.store.set("over", "")
        return len(threads)
    world.store.wait(["over"])
    return len(threads)


@with_hooks
def test_failure_without_a_waiter_runs_hooks(fresh):
    assert fresh(2, timeout_s=1, environment=QUICK).run(leave_an_operation) == [1, 0]


def lose_a_peer(world):
    seen = watch(dist.group.WORLD)
    dist.barrier()
    if world.rank == 1:
        os._exit(3)
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        dist.all_reduce(torch.ones(1))
    return names(seen)


@with_hooks
def test_lost_peer_runs_hooks(fresh):
    outcomes = fresh(2, environment=QUICK).outcomes(lose_a_peer)
    assert outcomes[0].value == ["first", "second"], outcomes[0].trace
    assert outcomes[1].died == 3


def refuse_and_close(world):
    """A call that leaves the group as it was, or ends it in good order, runs no hook."""
    group = dist.new_group()
    seen = watch(group)
    with pytest.raises(ValueError, match="share memory"):
        dist.all_reduce(torch.ones(2, 1).expand(2, 2), group=group)
    dist.all_reduce(torch.ones(1), group=group, async_op=True)
    dist.destroy_process_group(group)
    return names(seen)


@with_hooks
def test_refused_calls_run_no_hook(shared):
    assert shared(2).run(refuse_and_close) == [[], []]


def fail_in_a_hook(world):
    """Registers a hook that calls the group and one that raises. The hook after them must still run."""
    group, seen = dist.new_group(), []

    def call_back():
        seen.append("called back")
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(1), group=group)
        backend_of(group).abort()

    def raises():
        raise ValueError("a hook's own")
    group.register_abort_hook(1, call_back)
    group.register_abort_hook(2, raises)
    group.register_abort_hook(3, lambda: seen.append("the last"))
    backend_of(group).abort()
    return seen


@with_hooks
def test_hooks_may_call_the_group_or_raise(fresh):
    ranks = fresh(2, environment=QUICK)
    outcomes = ranks.outcomes(fail_in_a_hook)
    assert [outcome.value for outcome in outcomes] == [["called back", "the last"]] * 2, outcomes[0].trace


# ---- our own entry ----
def reduce_directly(world):
    """Hooks see a call of torch_tutti.all_reduce while they are registered. A later call goes straight to the
    backend."""
    group, seen = dist.group.WORLD, []
    group.register_pre_hook(5, lambda call: seen.append(("before", call.name.name, call.input_tensors[0].tolist())))
    group.register_post_hook(5, lambda call: seen.append(("after", call.name.name)))
    x = torch.ones(2)
    try:
        torch_tutti.all_reduce(x)
        assert x.tolist() == [2, 2]
    finally:
        group.unregister_pre_hook(5)
        group.unregister_post_hook(5)
    torch_tutti.all_reduce(x)
    assert x.tolist() == [4, 4]
    return seen


@with_hooks
def test_own_entry_runs_hooks(fresh):
    expected = [("before", "ALLREDUCE", [1, 1]), ("after", "ALLREDUCE")]
    assert fresh(2, environment=QUICK).run(reduce_directly) == [expected] * 2


def reduce_a_nan(world):
    with pytest.raises(RuntimeError, match="(?i)nan"):
        torch_tutti.all_reduce(torch.tensor([1., float("nan")]))
    x = torch.ones(1)
    torch_tutti.all_reduce(x)
    return x.item()


@with_hooks
def test_own_entry_checks_for_nans(fresh):
    assert fresh(2, environment={**QUICK, "TORCH_DIST_NAN_CHECK": "1"}).run(reduce_a_nan) == [2, 2]


# ---- completion hooks ----
@pytest.fixture(scope="module")
def completion_hook(tmp_path_factory):
    """The folder of the module completion_hook, which ranks import. A compiler needs half a minute for it."""
    if not shutil.which("c++") or not shutil.which("ninja"):
        pytest.skip("c++ or ninja is missing, so completion_hook.cpp cannot be built")
    from torch.utils.cpp_extension import load
    folder = str(tmp_path_factory.mktemp("completion_hook"))
    source = os.path.join(os.path.dirname(__file__), "completion_hook.cpp")
    load("completion_hook", [source], extra_cflags=["-std=c++20", "-O0"], build_directory=folder)
    return folder


def watch_completions(world, folder):
    """Returns for each all-reduce the durations that the only hook of the group gets."""
    sys.path.insert(0, folder)
    import completion_hook
    group, x, found = dist.group.WORLD, torch.ones(4), []
    completion_hook.watch(group, 3)
    for call in dist.all_reduce, torch_tutti.all_reduce:
        before = len(completion_hook.durations_ms())
        call(x)
        found.append(completion_hook.durations_ms()[before:])
    completion_hook.unwatch(group, 3)
    torch_tutti.all_reduce(x)
    assert len(completion_hook.durations_ms()) == sum(map(len, found))
    return found


@with_completion
def test_own_entry_runs_completion_hooks(fresh, completion_hook):
    """torch_tutti.all_reduce runs them, also if the group has no hooks of another kind."""
    for found in fresh(2, environment=QUICK).run(watch_completions, completion_hook):
        assert [len(durations) for durations in found] == [1, 1]
        assert all(durations[0] > 0 for durations in found)


# ---- torch's recorder ----
def entries(name="tutti"):
    from torch._C._distributed_c10d import _dump_fr_trace_json
    try:
        # All operations, also completed ones.
        text = _dump_fr_trace_json(True, False, name)
    except TypeError:
        text = _dump_fr_trace_json(True, False)
    return json.loads(text)["entries"]


def entries_of_the_debug_server(path):
    """Returns the entries that a worker gives the debug server's page /fr_trace_json?backend=tutti: the operations that
    are not over."""
    from torch._C._distributed_c10d import _WorkerServer
    server = _WorkerServer(path, -1)
    try:
        with contextlib.closing(http.client.HTTPConnection("localhost")) as connection:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(path)
            connection.request("POST", "/handler/fr_trace_json?backend=tutti")
            return json.loads(connection.getresponse().read()).get("entries", [])
    finally:
        server.shutdown()


def record(world, folder):
    group, x = dist.group.WORLD, torch.ones(4)
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    torch_tutti.all_reduce(x)
    dist.barrier()
    outputs = [torch.empty(4) for _ in range(world.size)]
    dist.all_gather(outputs, x)
    other = 1 - world.rank
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, outputs[0], other)]):
        work.wait()
    group._start_coalescing(torch.device("cpu"))
    dist.all_reduce(x, async_op=True)
    group._end_coalescing(torch.device("cpu")).wait()
    assert entries_of_the_debug_server(f"{folder}/worker{world.rank}") == []
    return [(one["profiling_name"], one["state"], one["retired"], one.get("duration_ms", -1) >= 0) for one in entries()]


@with_completion
def test_torch_records_complete_entries(fresh, tmp_path):
    """torch 2.15 records every group unless told otherwise."""
    for found in fresh(2).run(record, str(tmp_path)):
        assert len(found) >= 6
        assert {tuple(one[1:]) for one in found} == {("completed", True, True)}, found


def record_a_failure(world, folder):
    dist.all_reduce(torch.ones(4))
    if world.rank == 0:
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(4), async_op=True).wait()
        found = [one["state"] for one in entries()]
        assert entries_of_the_debug_server(f"{folder}/worker") == entries()[1:]
        world.store.set("over", "")
        return found
    world.store.wait(["over"])
    return []


@with_completion
def test_torch_writes_its_recording_of_a_failure(fresh, tmp_path):
    ranks = fresh(2, timeout_s=1, environment={"TORCH_INCLUDE_STACK_TRACE": "0",
                                               "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "recording_")})
    assert ranks.run(record_a_failure, str(tmp_path))[0] == ["completed", "scheduled"]
    assert (tmp_path / "recording_0").exists() and not (tmp_path / "recording_1").exists()


# ---- estimates of time ----
def estimate(world):
    """Returns the estimate of each call, which is the prediction of the cost model. Nothing is sent or written."""
    n, x, small = world.size, torch.ones(1 << 18), torch.ones(2)
    outputs = [torch.zeros(2) for _ in range(n)]
    calls = [lambda: dist.all_reduce(x), lambda: dist.all_reduce(x, async_op=True).wait(), lambda: dist.broadcast(x, 0),
             lambda: torch_tutti.all_reduce(x), lambda: dist.all_gather(outputs, small),
             lambda: dist.all_gather_into_tensor(torch.zeros(2 * n), small),
             lambda: dist.gather(small, outputs if world.rank == 0 else None),
             lambda: dist.scatter(small, outputs if world.rank == 0 else None), lambda: dist.reduce(x, 1),
             lambda: dist.reduce_scatter_tensor(small, torch.zeros(2 * n)),
             lambda: dist.all_to_all_single(torch.zeros(2 * n), torch.zeros(2 * n)),
             lambda: dist.all_reduce_coalesced([x, small])]
    times = []
    for call in calls:
        with dist._time_estimator() as one:
            call()
        times.append(one.estimated_time)
    with dist._time_estimator() as together:
        for call in calls:
            call()
    assert together.estimated_time == pytest.approx(sum(times))
    assert x.eq(1).all() and small.eq(1).all() and not any(output.any() for output in outputs)
    with dist._time_estimator() as nothing:
        dist.barrier()
    assert nothing.estimated_time == 0
    # Outside of the block the call runs.
    dist.all_reduce(x)
    assert x.eq(n).all()
    return times


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("size", [2, 3])
def test_estimates_are_the_same_on_all_ranks(shared, size):
    first, *others = shared(size).run(estimate)
    assert all(time > 0 for time in first) and first[0] == first[1] == first[3]
    assert all(times == first for times in others)


def destroy_while_estimating(world):
    with pytest.raises(ValueError) as caught:
        with dist._time_estimator():
            dist.destroy_process_group()
            dist.get_world_size()
    return str(caught.value)


def test_an_estimate_of_a_group_that_is_destroyed_meanwhile(fresh):
    """The error of the block remains."""
    for error in fresh(2).run(destroy_while_estimating):
        assert error.startswith("Default process group has not been initialized")


def one_rank_estimates(world):
    """Rank 0 makes an estimate without the other rank, and does not disturb it."""
    x = torch.ones(1 << 10)
    if world.rank == 0:
        with dist._time_estimator() as alone:
            dist.all_reduce(x)
        assert alone.estimated_time > 0
    dist.all_reduce(x)
    assert x.eq(world.size).all()
    return backend_of()._get_sequence_number_for_group()


def test_one_rank_estimates_alone(shared):
    numbers = shared(2).run(one_rank_estimates)
    assert numbers[0] == numbers[1]


def estimate_what_cannot_be(world):
    with pytest.raises(NotImplementedError, match="send: time estimates cover collectives, not messages"):
        with dist._time_estimator():
            dist.send(torch.ones(1), 1 - world.rank)
    with pytest.raises(NotImplementedError, match="time estimates do not cover sparse tensors"):
        with dist._time_estimator():
            dist.all_reduce(torch.ones(3).to_sparse())
    x = torch.ones(1)
    # A failed estimate has ended.
    dist.all_reduce(x)
    assert x.item() == world.size
    with pytest.raises(ValueError, match="end_time_estimate without start_time_estimate"):
        backend_of()._end_time_estimate()
    return True


def test_estimates_of_messages_and_sparse_tensors_are_refused(shared):
    assert shared(2).run(estimate_what_cannot_be) == [True, True]

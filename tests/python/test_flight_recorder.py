"""Tests of the flight recorder: its records of a group that works and of one that failed, and what `tutti trace`
and torch's own reader conclude from them. Ranks write into a folder of the test."""
import gc
import io
import os
import pickle
import re
import resource
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_tutti as tutti
from torch_tutti import _recorder, _trace
from torch_tutti._trace_export import export


@pytest.fixture
def recorded(fresh, tmp_path):
    """A function: recorded(size, …) starts ranks that record. Their traces are in recorded.folder."""
    def ranks(size, capacity=1000, environment=None, **options):
        variables = {"TORCH_FR_BUFFER_SIZE": str(capacity), "TORCH_FR_DUMP_TEMP_FILE": f"{recorded_in}/trace_"}
        return fresh(size, environment={**variables, **(environment or {})}, **options)
    recorded_in = ranks.folder = tmp_path / "traces"
    return ranks


def traces_in(folder):
    return _trace.read(str(folder))


def judged_by_torch(folder, backend, *options):
    """Returns the collectives that torch's reader finds in the traces, exported under this backend's name."""
    from torch.distributed.flight_recorder.fr_trace import main
    translation = folder.parent / f"for torch as {backend}"
    export(traces_in(folder), backend, str(translation))
    database = folder.parent / "database"
    try:
        main([str(translation), "-o", str(database), *options])
    finally:
        # torch's reader leaves the garbage collector off.
        gc.enable()
    with database.open("rb") as file:
        return pickle.load(file)[1].collectives


def verdict_of(collective):
    """Returns the verdict of torch's reader on a collective: "fine", or the mismatch."""
    if collective.missing_ranks:
        return f"missing {collective.missing_ranks}"
    states = {one.type_of_mismatch.state.name for one in (collective.mismatch_collectives or {}).values()
              if one.type_of_mismatch}
    return "fine" if collective.pass_check and not states else ", ".join(states)


# ---- groups that work ----
def every_collective(world):
    # There is no reduce_scatter of uneven parts, because torch's reader expects the same sizes of it on all ranks.
    me, size = world.rank, world.size
    x, whole = torch.ones(4), torch.ones(4 * size)
    parts = [torch.ones(4) for _ in range(size)]
    uneven = [torch.ones(rank + 1) for rank in range(size)]
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    tutti.all_reduce(x)
    dist.all_reduce(x.to_sparse())
    dist.broadcast(x, 1)
    dist.reduce(x, 1)
    dist.barrier()
    dist.all_gather(parts, x)
    dist.all_gather(uneven, torch.ones(me + 1))
    dist.all_gather_single(whole, x)
    dist.gather(x, parts if me == 0 else None, 0)
    dist.scatter(x, parts if me == 0 else None, 0)
    dist.reduce_scatter(x, parts)
    dist.reduce_scatter_single(x, whole)
    dist.all_to_all_single(torch.ones(size * (me + 1)), torch.ones(sum(range(size + 1))), [me + 1] * size,
                           [rank + 1 for rank in range(size)])
    dist.all_to_all(list(torch.ones(size * 4).chunk(size)), parts)
    with dist._coalescing_manager():
        for part in parts:
            dist.all_reduce(part)
    dist.group.WORLD.allgather_into_tensor_coalesced([whole, whole.clone()], [x, x]).wait()
    # This rank refuses the call, so the other ranks do not see this operation.
    if me == 0:
        with tutti.options(algorithm="allreduce=nothing"), pytest.raises(ValueError):
            dist.all_reduce(x)
    dist.all_reduce(x)
    return tutti.dump_trace()


def test_torch_finds_no_fault_in_a_group_that_works(recorded):
    assert recorded(3).run(every_collective) == [str(recorded.folder / f"trace_{rank}") for rank in range(3)]
    for backend in ("gloo", "nccl"):
        collectives = judged_by_torch(recorded.folder, backend)
        assert [one.collective_seq_id for one in collectives] == list(range(1, 25))
        assert not [(one, verdict) for one in collectives if (verdict := verdict_of(one)) != "fine"]
    report = _trace.describe(traces_in(recorded.folder)).splitlines()
    assert report[:2] == ["traces of ranks 0-2", ""] and len(report) == 3
    assert report[2].startswith("group 0 (default_pg), ranks 0-2: all have completed 2")


def messages(world):
    x, peer = torch.ones(3), 1 - world.rank
    if world.rank == 0:
        dist.send(x, 1)
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
        dist.recv(x)
    for work in dist.batch_isend_irecv([dist.P2POp(call, torch.ones(3), peer) for call in (dist.isend, dist.irecv)]):
        work.wait()
    dist.all_reduce(x)
    tutti.dump_trace()


def test_messages_have_numbers_of_their_own(recorded):
    recorded(2).run(messages)
    first, second = (trace["entries"] for trace in traces_in(recorded.folder).of_rank.values())
    numbers = [(e["profiling_name"], e["p2p_seq_id"], e["is_p2p"]) for e in first]
    assert numbers == [("tutti:send 0->1", 1, True), ("tutti:send 0->1", 2, True), ("tutti:send 0->1", 3, True),
                       ("tutti:recv 0<-1", 3, True), ("tutti:coalesced", 3, True), ("tutti:all_reduce", 3, False)]
    # The receive from any rank is recorded with its sender.
    assert [e["profiling_name"] for e in second][:2] == ["tutti:recv 1<-0"] * 2
    assert [e["collective_seq_id"] for e in first] == [0, 0, 0, 0, 0, 1]
    assert all(e["state"] == "completed" and e["duration_ms"] >= 0 for e in first + second)
    # Traces for torch's reader have no messages.
    assert [verdict_of(one) for one in judged_by_torch(recorded.folder, "gloo")] == ["fine"]


def many_small(world):
    for _ in range(10):
        dist.all_reduce(torch.ones(2))
    tutti.dump_trace()


def test_only_the_last_operations_are_kept(recorded):
    recorded(2, capacity=4, environment={"TORCH_INCLUDE_STACK_TRACE": "0"}).run(many_small)
    for trace in traces_in(recorded.folder).of_rank.values():
        assert [entry["collective_seq_id"] for entry in trace["entries"]] == [7, 8, 9, 10]
        # TORCH_INCLUDE_STACK_TRACE=0 leaves frames out.
        assert [entry["frames"] for entry in trace["entries"]] == [[]] * 4
    assert _trace.describe(traces_in(recorded.folder)).endswith("all have completed 10 operations")


def many_groups(world):
    """Makes and destroys 20 groups, makes 3 that live, and fills the record. Returns how many groups the recorder
    remembers."""
    for _ in range(20):
        group = dist.new_group()
        dist.all_reduce(torch.ones(2), group=group)
        dist.destroy_process_group(group)
        del group
    groups = [dist.new_group() for _ in range(3)]
    # These operations push those of other groups out of the record.
    for _ in range(6):
        dist.all_reduce(torch.ones(2), group=groups[0])
    dump = _recorder.recorded(9)
    names = {entry["process_group"][0] for entry in dump["entries"]}
    assert names == {groups[0].group_name} and names < dump["pg_config"].keys()
    assert {str(group["pg_id"]) for group in dump["pg_config"].values()} == dump["pg_status"].keys()
    return len(dump["pg_config"])


def test_destroyed_groups_are_forgotten(recorded):
    """The recorder remembers at most as many destroyed groups as operations, here 5, besides the 3 that live and
    the default one."""
    assert recorded(2, capacity=5).run(many_groups) == [5 + 3 + 1] * 2


def groups_come_and_go(world):
    for turn in range(2):
        dist.init_process_group("tutti", store=dist.PrefixStore(str(turn), world.store), rank=world.rank,
                                world_size=world.size)
        dist.new_group([0, 2], group_desc="the ends")
        if not turn:
            dist.group.WORLD.split_group([1, 2], timedelta(seconds=20), None, "part", "the last")
        for _ in range(turn + 1):
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
    tutti.dump_trace()


def test_a_group_of_the_same_name_is_another_group(recorded):
    recorded(3, join=False).run(groups_come_and_go)
    traces = traces_in(recorded.folder)
    groups = _trace.groups_of(traces)
    assert len({group.name for group in groups}) == len(groups) == 5
    assert sorted((group.description, group.members) for group in groups) == [
        *[("default_pg", (0, 1, 2))] * 2, *[("the ends", (0, 2))] * 2, ("the last", (1, 2))]
    assert [verdict_of(one) for one in judged_by_torch(recorded.folder, "gloo")] == ["fine"] * 3


# ---- groups that fail ----
def one_does_not_come(world):
    dist.all_reduce(torch.ones(2))
    if world.rank == 1:
        tutti.dump_trace()
        return
    # So large that the root waits for all ranks.
    dist.broadcast(torch.ones(5000), 0)


def test_rank_that_did_not_call_is_named(recorded):
    outcomes = recorded(3, timeout_s=1).outcomes(one_does_not_come)
    assert [outcome.error for outcome in outcomes] == ["TimeoutError", "", "TimeoutError"]
    report = _trace.describe(traces_in(recorded.folder))
    assert "group 0 (default_pg), ranks 0-2: all have completed 1 operation\n" in report
    assert "  rank 0 failed in operation 2: broadcast [5000] float (one_does_not_come, " in report
    assert "  rank 1 has called nothing after operation 1: all_reduce [2] float (one_does_not_come, " in report
    assert report.endswith("  => operation 2 was not called by rank 1")
    assert outcomes[0].text in report
    *good, bad = judged_by_torch(recorded.folder, "nccl")
    assert [verdict_of(one) for one in good] == ["fine"]
    assert bad.collective_name == "nccl:broadcast" and verdict_of(bad) == "missing {1}"


def all_disagree(world):
    # So large that the root waits for all ranks.
    x = torch.ones(5000)
    if world.rank == 0:
        # Fails on the thread that completes futures.
        dist.all_reduce(x, async_op=True).get_future().wait()
    dist.broadcast(x, 1)
    # A root that waits for no other host gets the error from its next call.
    if world.hosts > 1:
        dist.barrier()


def test_operation_that_differs_is_named(recorded):
    ranks = recorded(2)
    outcomes = ranks.outcomes(all_disagree)
    assert [outcome.error for outcome in outcomes] == ["MismatchError"] * 2
    report = _trace.describe(traces_in(recorded.folder)).splitlines()
    assert report[-1].startswith("  => operation 1 differs: all_reduce [5000] float (all_disagree, ")
    assert " on rank 0; broadcast [5000] float (all_disagree, " in report[-1] and report[-1].endswith(" on rank 1")
    bad, *barrier = judged_by_torch(recorded.folder, "gloo")
    assert not barrier or len(set(ranks.hosts)) > 1
    assert verdict_of(bad) == "COLLECTIVE_TYPE_MISMATCH"


def waits_for_a_message(world):
    ends = dist.new_group([0, 2])
    if world.rank == 0:
        work = dist.irecv(torch.ones(3), 2, group=ends)
    dist.barrier()
    if world.rank != 1:
        tutti.dump_trace()
    del work


def test_message_that_does_not_arrive_is_named(recorded):
    recorded(3).outcomes(waits_for_a_message)
    report = _trace.describe(traces_in(recorded.folder)).splitlines()
    assert report[:2] == ["traces of ranks 0, 2",
                          "no trace of rank 1: ended, or still busy elsewhere and unaware that the others failed"]
    assert report[3] == "group 0 (default_pg), ranks 0-2: the ranks with a trace have all completed 1 operation"
    assert report[6].startswith("  rank 0 is in a message: recv [3] float (waits_for_a_message, ")
    assert report[6].endswith(" from rank 2") and report[7].startswith("  rank 2 has called nothing")
    with pytest.raises(AssertionError, match="Missing dump files from ranks {1}"):
        judged_by_torch(recorded.folder, "gloo")


def dies(world):
    dist.all_reduce(torch.ones(2))
    if world.rank == 1:
        os._exit(0)
    dist.all_reduce(torch.ones(2))


def test_verdict_on_a_dead_rank_is_the_error(recorded):
    outcomes = recorded(3).outcomes(dies)
    assert [outcome.error for outcome in outcomes] == ["PeerError", "", "PeerError"]
    verdict = _trace.describe(traces_in(recorded.folder)).splitlines()[-1]
    assert verdict.startswith("  => operation 2 failed: rank 1 of group 0 (process ") and " died, seen by " in verdict


def uneven(world):
    counts = [1, 2] if world.rank == 0 else [3, 4]
    dist.all_to_all_single(torch.ones(sum(counts)), torch.ones(sum(counts)), counts, counts)


def test_verdict_on_splits_that_do_not_match_is_the_error(recorded):
    ranks = recorded(2)
    outcomes = ranks.outcomes(uneven)
    assert [outcome.error for outcome in outcomes] == ["MismatchError"] * 2
    verdict = _trace.describe(traces_in(recorded.folder)).splitlines()[-1]
    if len(set(ranks.hosts)) == 1:
        cause = "all_to_all with uneven counts, operation 1 of group 0: rank "
    else:
        # Between hosts, a receiver finds the first message that is too long.
        cause = "rank 0 of group 0 runs all_to_all(uneven counts, float32), operation 1 of group 0 and expects 8 bytes "
    assert verdict.startswith(f"  => operation 1 failed: {cause}")


def comes_late(world):
    if world.rank == 1:
        world.store.wait(["failed"])
    try:
        dist.all_reduce(torch.ones(2))
    finally:
        world.store.set("failed", "")
        if world.rank == 1:
            tutti.dump_trace()


def test_verdict_on_a_late_rank(recorded):
    assert recorded(2, timeout_s=1).outcomes(comes_late)[0].error == "TimeoutError"
    verdict = _trace.describe(traces_in(recorded.folder)).splitlines()[-1]
    assert re.fullmatch(r"  => operation 1 was called too late by rank 1: \S+ s after the first, whose timeout is 1 s",
                        verdict)


def message_is_late(world):
    if world.rank == 0:
        dist.recv(torch.ones(3), 1)


def test_verdict_on_a_message_is_the_error(recorded):
    assert recorded(2, timeout_s=1).outcomes(message_is_late)[0].error == "TimeoutError"
    report = _trace.describe(traces_in(recorded.folder)).splitlines()
    cause = "rank 0 of group 0: receive from rank 1 with tag 0 reached the timeout of 1000 ms"
    assert report[-2].startswith(f"      {cause}") and report[-1].startswith(f"  => a message failed: {cause}")


def fails(world):
    sys.stderr = io.StringIO()
    with pytest.raises(tutti.MismatchError):
        dist.all_reduce(torch.ones(world.rank + 1))
    with pytest.raises(tutti.MismatchError):
        # The trace of a group is written once.
        dist.all_reduce(torch.ones(2))
    return sys.stderr.getvalue()


def test_standard_error_names_the_trace(recorded):
    ranks = recorded(2)
    for rank, printed in enumerate(ranks.run(fails)):
        why, where = printed.splitlines()
        # Between hosts, the text first names the rank that found it.
        first = f"{rank} calls allreduce(" if len(set(ranks.hosts)) == 1 else ""
        assert f"] error: rank {rank}: ranks disagree about operation 1 of group 0: rank {first}" in why
        assert f"rank {rank} calls allreduce({rank + 1} x" in why
        assert f"] warn: rank {rank}: the last operations are in {recorded.folder}/trace_{rank}. " in where
        assert where.endswith(f"tutti trace {recorded.folder}")


def fails_late(world, folder, when):
    """Fails in operation 301. when: the rank is killed "before" or "after" it writes its first trace, or "never".
    torchrun kills the other ranks in this way when one has died."""
    sys.stderr = open(folder / f"stderr_{world.rank}", "w")
    write = _recorder._write
    for _ in range(300):
        dist.all_reduce(torch.ones(2))

    def killed(*arguments):
        if when == "after":
            write(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    if when != "never":
        _recorder._write = killed
    with pytest.raises(tutti.MismatchError):
        dist.all_reduce(torch.ones(world.rank + 1))
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()


@pytest.mark.parametrize("when, first", [("before", None), ("after", 102), ("never", 1)])
def test_failure_is_reported_then_the_newest_operations_are_written_then_all(recorded, tmp_path, when, first):
    outcomes = recorded(2).outcomes(fails_late, tmp_path, when)
    assert [outcome.died for outcome in outcomes] == [None if when == "never" else -signal.SIGKILL] * 2
    for rank in range(2):
        assert f"] error: rank {rank}: ranks disagree about operation 301" in (tmp_path / f"stderr_{rank}").read_text()
    for trace in traces_in(recorded.folder).of_rank.values() if first else []:
        assert [entry["collective_seq_id"] for entry in trace["entries"]] == list(range(first, 302))
        assert trace["entries"][-1]["failure"]


def writes_quickly(world):
    for name in [name for name in sys.modules if name.startswith("torch._inductor")]:
        # Ranks are forked from a process that has loaded it.
        del sys.modules[name]
    vars(torch).pop("_inductor", None)
    dist.all_reduce(torch.ones(1))
    tutti.dump_trace()
    return "torch._inductor" in sys.modules or "_inductor" in vars(torch)


def test_trace_is_written_without_slow_imports(recorded):
    assert recorded(2).run(writes_quickly) == [False] * 2
    (entry,) = traces_in(recorded.folder).of_rank[0]["entries"]
    assert "writes_quickly" in [frame["name"] for frame in entry["frames"]]


def runs_out_of_addresses(world):
    """Rank 0 cannot map the tensor of its peer. The error is a MemoryError, which refused calls raise, too."""
    sys.stderr = io.StringIO()
    x = tutti.empty(1 << 24)
    dist.barrier()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if world.rank == 0:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (16 << 20), limits[1]))
    with pytest.raises(MemoryError):
        dist.all_reduce(x)
    resource.setrlimit(resource.RLIMIT_AS, limits)
    entries = _recorder.recorded(100)["entries"]
    return [(e["profiling_name"], e["collective_seq_id"]) for e in entries], entries[-1]["failure"]


@pytest.mark.one_host("tensors of other hosts are not mapped")
def test_group_that_runs_out_of_memory_is_recorded(recorded):
    for rank, (entries, failure) in enumerate(recorded(2).run(runs_out_of_addresses)):
        assert entries == [("tutti:barrier", 1), ("tutti:all_reduce", 2)] and "memory" in failure
        assert (recorded.folder / f"trace_{rank}").exists()


def refuses_the_first(world):
    """Makes two coalesced calls with an operation that rank 0 refuses: the first of two, and the only one. Returns the
    names and numbers of the recorded operations."""
    x, wrong, cpu = torch.ones(1), dist.AllreduceOptions(), torch.device("cpu")
    wrong.reduceOp = dist.ReduceOp.BAND
    backend = dist.group.WORLD._get_backend(cpu)
    for rest in (backend.allreduce, lambda tensors: None):
        dist.group.WORLD._start_coalescing(cpu)
        if world.rank == 0:
            with pytest.raises(ValueError, match="float32"):
                backend.allreduce([x], wrong)
        rest([x])
        dist.group.WORLD._end_coalescing(cpu).wait()
    dist.all_reduce(x)
    return [(e["profiling_name"], e["collective_seq_id"]) for e in _recorder.recorded(100)["entries"]]


def test_refused_operation_has_no_number(recorded):
    assert recorded(2).run(refuses_the_first) == [[("tutti:all_reduce", 1), ("tutti:coalesced", 1),
                                                   ("tutti:all_reduce", 2)]] * 2


def is_aborted(world):
    sys.stderr = io.StringIO()
    work = dist.irecv(torch.ones(3), 1 - world.rank)
    dist.group.WORLD._get_backend(torch.device("cpu")).abort()
    with pytest.raises(tutti.AbortedError):
        work.wait()
    return sys.stderr.getvalue()


def test_no_trace_of_a_group_that_the_program_aborts(recorded):
    assert recorded(2).run(is_aborted) == ["", ""]
    assert not recorded.folder.exists()


def test_no_trace_after_a_failure_if_switched_off(recorded):
    assert recorded(2, environment={"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}).run(fails) == ["", ""]
    assert not recorded.folder.exists()


def fails_without_stderr(world, broken):
    sys.stderr = None if broken == "absent" else open(os.devnull, "w")
    if broken == "closed":
        sys.stderr.close()
    with pytest.raises(tutti.MismatchError):
        dist.all_reduce(torch.ones(world.rank + 1))


@pytest.mark.parametrize("broken", ["absent", "closed"])
def test_trace_is_written_without_standard_error(recorded, broken):
    recorded(2).run(fails_without_stderr, broken)
    assert len(traces_in(recorded.folder).of_rank) == 2


def dump_over_links(world, folder):
    """Another user has put links to a file of this user in the places of the trace and of its temporary file."""
    os.umask(0)
    victim, path = folder / f"victim_{world.rank}", folder / "traces" / f"trace_{world.rank}"
    victim.write_text("untouched")
    path.parent.mkdir(exist_ok=True)
    for name in path.name, f".{path.name}.{os.getpid()}.incoming":
        path.with_name(name).symlink_to(victim)
    dist.all_reduce(torch.ones(2))
    tutti.dump_trace()
    return victim.read_text(), path.is_symlink(), oct(path.stat().st_mode & 0o777), len(_trace.load(path)["entries"])


def test_a_trace_is_not_written_through_a_link(recorded, tmp_path):
    assert recorded(2).run(dump_over_links, tmp_path) == [("untouched", False, "0o600", 1)] * 2
    assert not [path for path in recorded.folder.iterdir() if path.suffix == ".incoming" and not path.is_symlink()]


def test_trace_that_cannot_be_written_hides_no_error(recorded):
    texts = recorded(2, environment={"TORCH_FR_DUMP_TEMP_FILE": "/dev/null/trace_"}).run(fails)
    assert all("the flight recorder could not write its trace: " in text and "/dev/null" in text for text in texts)

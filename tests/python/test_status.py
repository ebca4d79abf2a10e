"""Tests of `tutti status`: what it says of ranks that wait, while they wait; and of snapshots that the tests write."""
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import torch
import torch.distributed as dist
from ranks import LIMIT_S

from torch_tutti import _snapshots, _status_command, cli


def job_of(ranks):
    """Returns the job of these ranks. Other tests may run beside this one."""
    pids = {process.pid for process in ranks.processes}
    return [job for job in _snapshots.jobs(_snapshots.processes(0.2))
            if pids & {process.pid for process in job.processes}]


def awaited(ranks, *patterns):
    """Returns the job and its report, once the report has lines with these patterns."""
    until = time.monotonic() + LIMIT_S
    while True:
        jobs = job_of(ranks)
        report = _status_command.report(jobs)
        if all(re.search(pattern, report) for pattern in patterns):
            assert len(jobs) == 1
            return jobs[0], report
        assert time.monotonic() < until, report


def start(ranks, function, *arguments):
    for pipe in ranks.pipes:
        pipe.send((function, arguments))


def await_file(path):
    while not os.path.exists(path):
        time.sleep(0.01)


# ---- ranks that wait ----
def reduce_late(world, late, path):
    if world.rank == late:
        await_file(path)
    dist.all_reduce(torch.ones(1000))


def test_rank_that_has_not_called_is_named(fresh, tmp_path, capsys):
    ranks = fresh(3)
    go = str(tmp_path / "go")
    start(ranks, reduce_late, 2, go)
    waits = r"in call 1: allreduce\(1000 x float32, sum, algorithm \w+\) for \d+\.\d s"
    job, report = awaited(ranks, f"rank 0 .*{waits}", f"rank 1 .*{waits}", "=> the others wait for rank 2")
    lines = report.splitlines()
    assert lines[0].startswith("job of 3 processes here, ")
    assert lines[1].startswith("group 0: 3 ranks on 1 host, timeout ")
    for rank in (0, 1):
        assert f"  rank {rank}    process {ranks.processes[rank].pid}" in lines[2 + rank]
    assert "no collective yet" in lines[4]
    rows = _status_command.as_json([job])["jobs"][0]["groups"][0]["ranks"]
    assert [row["is_late"] for row in rows] == [False, False, True] and [row["calls"] for row in rows] == [1, 1, 0]
    assert rows[0]["open"]["kind"] == "collective" and rows[0]["open"]["age_s"] > 0 and rows[2]["open"] is None
    metrics = _status_command.as_metrics([job]).splitlines()
    for name, values in (("tutti_late", "001"), ("tutti_failed", "000"), ("tutti_calls_total", "110")):
        assert [line.split()[-1] for line in metrics if line.startswith(name + "{")] == list(values)
    assert cli.main(["status", str(ranks.processes[0].pid), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["groups"][0]["id"] == job.groups[0].id
    open(go, "w").close()
    assert not any(outcome.failed for outcome in ranks.collect(LIMIT_S))
    _, report = awaited(ranks, "last was call 1: allreduce")
    assert "=>" not in report


def test_stopped_process_is_named(fresh, tmp_path):
    ranks = fresh(2)
    go = str(tmp_path / "go")
    start(ranks, reduce_late, 1, go)
    awaited(ranks, "=> the others wait for rank 1")
    stopped = ranks.processes[1].pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        _, report = awaited(ranks, f"process {stopped} does not answer, it is stopped")
        assert re.search("rank 1 .*no collective yet.*, process stopped", report)
        assert "=> the others wait for rank 1" in report
    finally:
        os.kill(stopped, signal.SIGCONT)
    open(go, "w").close()
    assert not any(outcome.failed for outcome in ranks.collect(LIMIT_S))


def chain(world, path):
    """Rank 0 waits for rank 1, which waits for rank 2, which waits for a file."""
    x = torch.ones(2)
    if world.rank == 1:
        dist.recv(x, 2, tag=5)
    if world.rank == 2:
        await_file(path)
        dist.send(x, 1, tag=5)
    dist.all_reduce(x)


def test_end_of_a_chain_is_named(fresh, tmp_path):
    ranks = fresh(3)
    go = str(tmp_path / "go")
    start(ranks, chain, go)
    _, report = awaited(ranks, "in a receive from rank 2 for", "in call 1: ", "=> the others wait for rank 2")
    assert "(8 bytes, tag 5)" in report
    open(go, "w").close()
    assert not any(outcome.failed for outcome in ranks.collect(LIMIT_S))


def receive_from_each_other(world):
    dist.recv(torch.ones(2), 1 - world.rank)


def test_ranks_that_wait_for_each_other_are_named(fresh):
    ranks = fresh(2, timeout_s=LIMIT_S)
    start(ranks, receive_from_each_other)
    awaited(ranks, r"=> ranks 0-1 wait, and are awaited: do the ranks make the same calls\?")
    ranks.kill()


def fail(world):
    if world.rank == 0:
        dist.all_reduce(torch.ones(2))
    else:
        dist.all_reduce(torch.ones(3))


def test_failure_is_shown(fresh):
    ranks = fresh(2)
    assert all(outcome.error == "MismatchError" for outcome in ranks.outcomes(fail))
    awaited(ranks, "has failed: ", "2 x float32", "3 x float32")


# ---- the line of the program ----
def wait_elsewhere(world, path):
    await_file(path)                                    # WAITS_HERE
    dist.all_reduce(torch.ones(2))


LINE = 1 + next(n for n, line in enumerate(open(__file__)) if line.endswith("# WAITS_HERE\n"))


def reduce_or_wait(world, path):
    if world.rank:
        wait_elsewhere(world, path)
    else:
        dist.all_reduce(torch.ones(2))


def test_late_rank_tells_its_line(fresh, tmp_path):
    ranks = fresh(2)
    go = str(tmp_path / "go")
    start(ranks, reduce_or_wait, go)
    job, report = awaited(ranks, r"rank 0 .* at .*test_status.py:\d+ \(reduce_or_wait\)",
                          r"rank 1 .*no collective yet, at .*test_status.py:\d+ \(await_file\)", "wait for rank 1")
    stacks = _status_command.stacks([job])
    assert f'test_status.py", line {LINE}, in wait_elsewhere' in stacks and "thread MainThread:" in stacks
    assert f"process {ranks.processes[1].pid}:" in stacks and f"process {ranks.processes[0].pid}:" not in stacks
    ranks.kill()


def test_timeout_names_the_line_of_the_late_rank(fresh, tmp_path):
    ranks = fresh(2, timeout_s=2)
    go = str(tmp_path / "go")
    start(ranks, reduce_or_wait, go)
    assert ranks.pipes[0].poll(LIMIT_S)
    open(go, "w").close()
    outcomes = ranks.collect(LIMIT_S)
    place = r"this call has not been made by rank 1; rank 1 is at .*test_status.py:\d+ \(await_file\)"
    assert [outcome.error for outcome in outcomes] == ["TimeoutError"] * 2
    assert all(re.search(place, outcome.text) for outcome in outcomes), outcomes


# ---- who may ask ----
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_other_users_get_nothing(shared):
    ranks = shared(2)
    mine = {process.pid for process in ranks.processes}
    assert mine <= {process.pid for process in _snapshots.processes()}
    program = ("import os, socket, sys\nos.setuid(65534)\nanswers = 0\n"
               "for name in sys.argv[1:]:\n"
               "    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:\n"
               "        s.connect('\\0' + name[1:])\n"
               "        try:\n            answers += len(s.recv(100)) > 0\n"
               "        except ConnectionResetError:\n            pass\n"
               "print(answers)")
    names = _snapshots.socket_names()
    assert names
    asked = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "0"


def test_names_of_other_sockets_do_not_disturb(shared):
    ranks = shared(2)
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as false:
        other.bind(b"\0foreign-\xff\xfe")
        false.bind("\0tutti-snapshot-" + "f" * 32)
        false.listen(0)
        assert {process.pid for process in ranks.processes} <= {process.pid for process in _snapshots.processes(0.1)}


def await_in_named_folder(world, program, path):
    runpy.run_path(program)["wait"](world.rank, path)


def test_place_with_letters_of_any_language_fits_into_the_error(fresh, tmp_path):
    folder = tmp_path / ("é" * 100)
    folder.mkdir()
    (folder / "ü.py").write_text("import os, time, torch\n"
                                 "import torch.distributed as dist\n"
                                 "def wait(rank, path):\n"
                                 "    while rank and not os.path.exists(path):\n"
                                 "        time.sleep(0.01)\n"
                                 "    dist.all_reduce(torch.ones(2))\n")
    ranks = fresh(2, timeout_s=2)
    go = str(tmp_path / "go")
    start(ranks, await_in_named_folder, str(folder / "ü.py"), go)
    assert ranks.pipes[0].poll(LIMIT_S)
    open(go, "w").close()
    outcomes = ranks.collect(LIMIT_S)
    assert [outcome.error for outcome in outcomes] == ["TimeoutError"] * 2
    assert all(re.search(r"rank 1 is at é+/ü.py:[45] \(wait\)", outcome.text) for outcome in outcomes), outcomes
    awaited(ranks, "has failed: .*é+/ü.py:[45]")


def test_errors_of_the_command(capsys):
    assert cli.main(["status", "1"]) == 1
    assert "process 1 is no process of this user on this host that uses tutti" in capsys.readouterr().err
    assert cli.main(["status", "--serve", "9400"]) == 1
    assert "--serve 9400 is no HOST:PORT, such as 127.0.0.1:9400" in capsys.readouterr().err
    assert cli.main(["status", "--serve", "127.0.0.1:99999"]) == 1
    assert "--serve 127.0.0.1:99999 is no HOST:PORT" in capsys.readouterr().err


def test_metrics_are_served(shared):
    ranks = shared(2)
    command = [sys.executable, "-m", "torch_tutti", "status", "--serve", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        url = server.stdout.readline().split()[-1]
        silent = socket.create_connection(("127.0.0.1", int(url.split(":")[-1].split("/")[0])))
        with urllib.request.urlopen(url) as answer:
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(url.replace("/metrics", "/"))
        silent.close()
        server.send_signal(signal.SIGINT)
        assert server.wait(LIMIT_S) == 0
    assert "# TYPE tutti_calls_total counter" in text
    assert all(f'pid="{process.pid}"' in text for process in ranks.processes)


# ---- snapshots that are written here ----
def snapshot(pid, *groups):
    told = {"format": 2, "pid": pid, "host_name": "node", "groups": list(groups)}
    return _snapshots.Process(f"{pid:032x}", pid, told, stacks="", state="", resident_bytes=1 << 20)


def group(rank, *called, state="joined", opened=None, hosts=(0, 0), name="group 0", identity="a1", elsewhere=()):
    """The part of a snapshot for a group of two ranks. called: number of the last call of each rank of host 0.
    elsewhere: what ranks of other hosts have told."""
    here = [{"rank": r, "calls": n, "has_left": False, "call": "barrier", "late_calls": 0, "late_s": 0.0}
            for r, n in enumerate(called)]
    members = [{"rank": r, "pid": 2**22 + r, "process": f"{2**22 + r:032x}", "host": host, "host_name": f"node{host}"}
               for r, host in enumerate(hosts)]
    return {"name": name, "id": identity, "state": state, "rank": rank, "ranks": 2, "exists_s": 7.25, "host": 0,
            "timeout_s": 30.0, "calls": called[rank] if called else 0, "on_streams": False, "members": members,
            "here": here, "elsewhere": list(elsewhere), "open": opened, "failure": None}


def report_of(*processes):
    return _status_command.report(_snapshots.jobs(list(processes)))


WAITS = {"kind": "collective", "age_s": 3.0}


def test_rank_whose_process_has_ended_is_named():
    report = report_of(snapshot(2**22, group(0, 3, 2, opened=WAITS)))
    assert "  rank 1    process 4194305  last was call 2: barrier, process ended" in report
    assert report.endswith("=> the others wait for rank 1")


def elsewhere(told_s=0.1, calls=0, **fields):
    """The answer of rank 1 on another host."""
    return {"rank": 1, "has_left": False, "told_s": told_s, "calls": calls, "call": "barrier", "place": "",
            "waits_in": "", "open": None, "failure": None, **fields}


@pytest.mark.parametrize("told", [{"rank": 1, "has_left": False, "told_s": None}, elsewhere(told_s=9.0)])
def test_ranks_of_other_hosts_that_do_not_answer_are_named(told):
    report = report_of(snapshot(2**22, group(0, 3, opened=WAITS, hosts=(0, 1), elsewhere=[told])))
    assert "2 ranks on 2 hosts" in report and "rank 1    process 4194305  on node1 has not answered" in report
    assert report.endswith("=> no rank that answers is late; rank 1 of other hosts did not answer")


def test_late_rank_of_another_host_is_named_with_its_line():
    told = elsewhere(calls=2, place="train.py:7 (load)")
    report = report_of(snapshot(2**22, group(0, 3, opened=WAITS, hosts=(0, 1), elsewhere=[told])))
    assert "rank 1    process 4194305  on node1 last was call 2: barrier, at train.py:7 (load)" in report
    assert report.endswith("=> the others wait for rank 1")


def test_operation_that_all_have_called_is_running():
    processes = [snapshot(2**22 + r, group(r, 3, 3, opened=WAITS)) for r in range(2)]
    assert report_of(*processes).endswith("=> all have made the call, and work on it")
    processes[1].state = "stopped"
    assert report_of(*processes).endswith("=> all have made the call, and wait for rank 1")


def message(kind, peer, tag=0, age_s=3.0):
    return {"kind": kind, "peer": peer, "tag": tag, "bytes": 8, "age_s": age_s}


def report_of_messages(*opened):
    processes = [snapshot(2**22 + r, group(r, 0, 0, opened=one)) for r, one in enumerate(opened)]
    return report_of(*processes).splitlines()[-1]


def test_messages_that_do_not_meet_are_told_from_those_that_do():
    assert report_of_messages(message("send", 1), message("receive", 0)).endswith("and work on it")
    assert report_of_messages(message("send", 1), message("receive", None)).endswith("and work on it")
    both = "  => ranks 0-1 wait, and are awaited: do the ranks make the same calls?"
    assert report_of_messages(message("send", 1, tag=1), message("receive", 0, tag=2)) == both
    assert report_of_messages(message("send", 1), message("send", 0)) == both
    assert report_of_messages(None, message("receive", 0)) == "  => the others wait for rank 0"
    assert report_of_messages(None, message("receive", None)) == (
        "  => rank 1 waits for a message that no rank sends now")
    assert report_of_messages(message("receive", 1, age_s=None), WAITS).endswith("and work on it")


def test_sender_on_another_host_is_awaited_once_it_has_answered():
    def report(told):
        return report_of(snapshot(2**22, group(0, 0, opened=message("receive", 1), hosts=(0, 1), elsewhere=[told])))

    assert report(elsewhere(told_s=None)).endswith("rank 1 of other hosts did not answer")
    assert report(elsewhere()).endswith("=> the others wait for rank 1")
    assert report(elsewhere(open=message("send", 0))).endswith("=> all have made the call, and work on it")


def test_ranks_that_wait_in_different_groups_name_them():
    first = snapshot(2**22, group(0, 1, 0, opened=WAITS), group(0, 0, 1, name="group 1", identity="b2"))
    second = snapshot(2**22 + 1, group(1, 1, 0), group(1, 0, 1, name="group 1", identity="b2", opened=WAITS))
    lines = report_of(first, second).splitlines()
    assert lines[4] == "  => the others wait for rank 1, which waits in group 1"
    assert lines[8] == "  => the others wait for rank 0, which waits in group 0"


def test_asynchronous_operation_waits_for_no_rank():
    report = report_of(snapshot(2**22, group(0, 3, 2, opened={"kind": "collective", "age_s": None})))
    assert "in call 3: barrier\n" in report and "=>" not in report


def test_labels_of_metrics_are_escaped():
    jobs = _snapshots.jobs([snapshot(2**22, group(0, 1, 1, name='a"b\\c\nd'))])
    assert r'tutti_late{group="a\"b\\c\nd",id="a1",rank="0"' in _status_command.as_metrics(jobs)


def test_rank_that_is_joining_is_shown():
    part = {key: group(1)[key] for key in ("name", "rank", "ranks", "exists_s")}
    report = report_of(snapshot(50, {**part, "state": "joining"}))
    assert report.splitlines()[1] == "process 50: rank 1 of 2 has been joining group 0 for 7.2 s"


def test_jobs_are_told_apart():
    apart = [snapshot(2**22, group(0, 1, 1)), snapshot(70), snapshot(2**22 + 1, group(1, 1, 1))]
    assert [len(job.processes) for job in _snapshots.jobs(apart)] == [1, 2]
    assert report_of() == "no process of this user on this host uses tutti"

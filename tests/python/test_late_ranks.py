"""Tests of the warning about a collective that is slow. A late rank waits until the warning has been written, so no
test depends on how long it takes."""
import os
import re
import time

import torch
import torch.distributed as dist

from torch_tutti import _snapshots, _status_command

CALLS = 20                      # more than the first calls of a group, which are never slow


def log_to(path):
    """Sends this process's standard error to the file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 2)
    os.close(file)


def warnings_in(path):
    """Returns the warnings about slow collectives in the file."""
    with open(path, encoding="utf-8") as log:
        return [line for line in log if "has waited" in line]


def sleep_until_warned(path):
    """Keeps this rank away until the other one has warned."""
    until = time.monotonic() + 60
    while not warnings_in(path):
        assert time.monotonic() < until, "the other rank has not warned"
        time.sleep(0.02)


def be_late(world, folder):
    """Rank 1 is late twice. Returns the warnings of rank 0."""
    paths = [f"{folder}/log_{rank}" for rank in range(world.size)]
    log_to(paths[world.rank])
    x = torch.ones(4)
    for _ in range(CALLS):
        dist.all_reduce(x)
    if world.rank == 1:
        sleep_until_warned(paths[0])
    dist.all_reduce(x)
    if world.rank == 1:
        time.sleep(1)
    dist.all_reduce(x)
    return warnings_in(paths[world.rank])


def test_a_slow_collective_is_a_warning_once(fresh, tmp_path):
    ranks = fresh(2, environment={"TUTTI_SLOW_MS": "300", "TUTTI_HOSTS": ""})
    (warning,), nothing = ranks.run(be_late, str(tmp_path))
    assert not nothing and " warn: rank 0 has waited " in warning and "TUTTI_SLOW_MS" in warning
    assert f"in allreduce(4 x float32, sum, algorithm one_shot), operation {CALLS + 1} of group 0; earlier" in warning
    assert "this call has not been made by rank 1; rank 1 is at " in warning
    assert "test_late_ranks.py:" in warning and "(sleep_until_warned)" in warning


def job_of(pid):
    """Returns the job of a process of this host, as tutti status sees it."""
    return next(job for job in _snapshots.jobs(_snapshots.processes()) if pid in {p.pid for p in job.processes})


def be_late_often(world, folder):
    """Rank 1 is late in 8 calls, each until rank 0 has waited for it. Returns the line of rank 1 in tutti status, and
    what rank 0 logs when it leaves the group. Rank 1 may be late in the barrier, too."""
    path = f"{folder}/log"
    if world.rank == 0:
        log_to(path)
    x = torch.ones(4)
    for late in range(1, _status_command.LATE_OFTEN + 1):
        until = time.monotonic() + 60
        while world.rank == 1 and job_of(os.getpid()).groups[0].ranks[1].late_calls < late:
            assert time.monotonic() < until, f"rank 0 has not waited in call {late}"
        dist.all_reduce(x)
    report = _status_command.report([job_of(os.getpid())])
    dist.barrier()
    dist.destroy_process_group()
    if world.rank == 1:
        return next(line for line in report.splitlines() if line.startswith("  rank 1 "))
    with open(path, encoding="utf-8") as log:
        return [line for line in log if "has waited" in line]


def test_a_straggler_is_named(fresh, tmp_path):
    logged, line = fresh(2, environment={"TUTTI_LOG": "info"}).run(be_late_often, str(tmp_path))
    assert re.search(r", late in [89] calls for \d+\.\d s", line)
    assert re.search(r"group 0: rank 0 has waited \d+ ms for rank 1, which was late in [89] of 9 calls", logged[-1])


def load_slowly(world, folder):
    path = f"{folder}/log"
    if world.rank == 0:
        log_to(path)
    else:
        time.sleep(1)
    dist.barrier()
    return warnings_in(path) if world.rank == 0 else []


def test_the_first_calls_of_a_group_are_not_slow(fresh, tmp_path):
    assert fresh(2, environment={"TUTTI_SLOW_MS": "300"}).run(load_slowly, str(tmp_path)) == [[], []]

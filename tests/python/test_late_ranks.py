"""Tests of the warning about a collective that is slow. A late rank waits until the warning has been written, so no
test depends on how long it takes."""
import os
import time

import torch
import torch.distributed as dist

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

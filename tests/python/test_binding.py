"""Binding the ranks of a host to cores, on machines that the tests describe, and on this one."""
import os
import subprocess
import sys

import pytest

from torch_tutti import _binding


def machine(folder, nodes, threads=1, hidden=()):
    """Describes a machine as Linux does. nodes: its number of cores on each NUMA node, which is a socket. As on x86, a
    second hardware thread has a higher number than all first ones. Returns the folder and the numbers."""
    count = sum(nodes)
    first = 0
    for node, on_node in enumerate(nodes):
        there = [thread * count + core for thread in range(threads) for core in range(first, first + on_node)]
        (folder / f"node/node{node}").mkdir(parents=True)
        (folder / f"node/node{node}/cpulist").write_text(",".join(map(str, there)) + "\n")
        for cpu in set(there) - set(hidden):
            topology = folder / f"cpu/cpu{cpu}/topology"
            topology.mkdir(parents=True)
            (topology / "physical_package_id").write_text(f"{node}\n")
            (topology / "core_id").write_text(f"{cpu % count - first}\n")
        first += on_node
    (folder / "node/node_list").write_text("no node\n")
    return folder, set(range(count * threads))


def test_cores_have_their_threads_and_lie_node_by_node(tmp_path):
    folder, allowed = machine(tmp_path, [2, 2], threads=2)
    assert _binding.cores(allowed, folder) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert _binding.cores({1, 4, 6}, folder) == [[4], [1], [6]]


def test_machine_that_hides_its_cores_has_one_thread_on_each(tmp_path):
    folder, allowed = machine(tmp_path, [3], hidden={0, 1, 2})
    assert _binding.cores(allowed, folder) == [[0], [1], [2]]
    assert _binding.cores({5}, tmp_path / "nothing") == [[5]]


def test_lists_of_linux(tmp_path):
    (tmp_path / "node/node0").mkdir(parents=True)
    (tmp_path / "node/node0/cpulist").write_text("0-2,8,10-11\n")
    (tmp_path / "node/node1").mkdir()
    (tmp_path / "node/node1/cpulist").write_text("3-7,9\n")
    order = [cpu for core in _binding.cores(set(range(12)), tmp_path) for cpu in core]
    assert order == [0, 1, 2, 8, 10, 11, 3, 4, 5, 6, 7, 9]


@pytest.mark.parametrize("cores, ranks, shares", [
    ([[0, 4], [1, 5], [2, 6], [3, 7]], 2, [[0, 4, 1, 5], [2, 6, 3, 7]]),
    ([[0], [1], [2], [3], [4]], 2, [[0, 1], [2, 3, 4]]),
    ([[0], [1], [2]], 3, [[0], [1], [2]]),
    ([[0], [1]], 4, [[0], [0], [1], [1]]),
    ([[7, 9]], 2, [[7, 9], [7, 9]]),
])
def test_ranks_get_whole_neighbouring_cores(cores, ranks, shares):
    assert _binding.plan(cores, ranks) == shares


# ---- processes of this machine ----
PROGRAM = ("import os, torch, torch.distributed as dist\n"
           "print(sorted(os.sched_getaffinity(0)), torch.get_num_threads(), repr(os.environ.get('TUTTI_BIND')))\n")


def started(program=PROGRAM, command=(sys.executable, "-c"), **environment):
    done = subprocess.run([*command, program], env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def test_process_runs_on_its_cores(tmp_path):
    allowed = os.sched_getaffinity(0)
    every_core = _binding.cores(allowed)
    ranks = len(every_core)
    last = started(TUTTI_BIND="cores", LOCAL_RANK=str(ranks - 1), LOCAL_WORLD_SIZE=str(ranks), OMP_NUM_THREADS="7")
    assert last.stdout == f"{sorted(every_core[-1])} 1 ''\n" and last.stderr == ""
    first = started(TUTTI_BIND="cores", LOCAL_RANK="0", LOCAL_WORLD_SIZE=str(ranks + 1))
    assert first.stdout == f"{sorted(every_core[0])} 1 ''\n"
    assert "info: TUTTI_BIND binds the local ranks to cores, 0: 0" in first.stderr
    assert f"warn: {ranks + 1} ranks share {ranks} cores: they will wait for one another" in first.stderr


def test_other_processes_are_not_bound():
    allowed = sorted(os.sched_getaffinity(0))
    assert started(TUTTI_BIND="cores").stdout.startswith(f"{allowed} ")
    assert started(TUTTI_BIND="", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2").stdout.startswith(f"{allowed} ")


@pytest.mark.parametrize("rank, ranks", [("5", "2"), ("0", "0"), ("one", "2")])
def test_wrong_variables_of_a_launcher_are_a_warning_and_leave_the_take_over(rank, ranks):
    program = "import torch_tutti._takeover as t, torch; print(sorted(t._taken_over_names()))"
    done = started(program, TUTTI_BIND="cores", LOCAL_RANK=rank, LOCAL_WORLD_SIZE=ranks, TUTTI_TAKE_OVER="gloo")
    assert done.stdout == "['gloo']\n"
    assert "warn: TUTTI_BIND has bound nothing, because of " in done.stderr
    assert f"LOCAL_RANK={rank} and LOCAL_WORLD_SIZE={ranks}" in done.stderr


def test_command_binds():
    run = [sys.executable, "-m", "torch_tutti", "run", "--bind", sys.executable, "-c"]
    bound = started(command=run, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    assert "TUTTI_BIND binds the local ranks to cores, 0: " in bound.stderr


GROUP = "import torch.distributed as dist\nfor i in 0, 1: dist.init_process_group('tutti', store=dist.HashStore(), " \
        "rank=0, world_size=1, group_name=str(i)); dist.destroy_process_group()\n"


def test_process_without_a_launcher_is_told_that_it_is_not_bound():
    done = started(GROUP, TUTTI_BIND="cores")
    assert done.stderr.count("warn: TUTTI_BIND binds only ranks that torchrun or another launcher starts") == 1


def test_more_threads_than_cores_are_a_warning():
    core = min(os.sched_getaffinity(0))
    command = ["taskset", "-c", str(core), sys.executable, "-c"]
    text = "warn: torch computes with 3 threads, but this process may run on 1 cores only"
    assert started("import torch; torch.set_num_threads(3)\n" + GROUP, command).stderr.count(text) == 1
    assert started(GROUP, command, OMP_NUM_THREADS="1").stderr == ""


def test_unknown_value_is_an_error_when_a_group_is_made(tmp_path):
    program = ("import torch.distributed as dist\n"
               f"try: dist.init_process_group('tutti', init_method='file://{tmp_path}/store', rank=0, world_size=1)\n"
               "except ValueError as error: print(error)\n")
    done = started(program, TUTTI_BIND="numa", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    assert done.stdout == "TUTTI_BIND=numa is unknown; the only value is cores\n"

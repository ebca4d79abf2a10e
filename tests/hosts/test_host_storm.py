"""Tests of ranks that are killed on several hosts: some cycles of host_storm.py, and that its judge finds bad ends."""
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from across import BACKEND
from ranks import Outcome

FAULTS = Path(__file__).resolve().parents[1] / "faults"
sys.path.insert(0, str(FAULTS))
import host_storm  # noqa: E402

CYCLES = int(os.environ.get("STORM_CYCLES", "6"))
PLAN = host_storm.Plan(0, [0, 0, 1, 1], [3], -1, 0, "all_reduce")
WELL = ("PeerError", "rank 3 of group 0 (process 7 on h1) died, seen by rank 0", 1.0)


def judge(value, plan=PLAN, rank=0):
    return host_storm.judge_one(plan, rank, Outcome(value=value), 0.0)


def test_judge_accepts_survivors_that_blame_a_lost_rank():
    assert judge(WELL) == ""
    assert judge(WELL, replace(PLAN, victims=[], silent=1)) == ""


@pytest.mark.parametrize("value", [("TimeoutError", *WELL[1:]), ("PeerError", "rank 13 died", 1.0), ("wrong", "", 1.0),
                                   ("PeerError", "rank 1 died, seen by rank 0", 1.0), (*WELL[:2], 31.0)])
def test_judge_finds_a_bad_end(value):
    assert judge(value).startswith("rank 0 ")


def test_ranks_of_a_cut_off_host_may_blame_all_others():
    silent = replace(PLAN, victims=[], silent=1)
    assert host_storm.unreachable(silent, 2) == [0, 1] and host_storm.unreachable(silent, 0) == [2, 3]


def test_judge_finds_a_survivor_that_dies():
    assert "ended without an answer" in host_storm.judge_one(PLAN, 0, Outcome(died=-1), 0.0)


def test_plan_of_a_cycle_depends_on_seed_and_number_only():
    plans = [host_storm.draw(7, number, 2, 2, number > 40) for number in range(50)]
    assert plans == [host_storm.draw(7, number, 2, 2, number > 40) for number in range(50)]
    assert all((plan.silent >= 0) == (plan.number > 40) != bool(plan.victims) for plan in plans)


@pytest.mark.skipif(BACKEND != "tutti", reason="only tutti promises this")
def test_survivors_on_several_hosts_end_well(namespaces_work):
    pytest.importorskip("torch_tutti", reason="torch_tutti is not installed")
    command = [sys.executable, FAULTS / "host_storm.py", "--cycles", str(CYCLES), "--partitions", "1"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=180 + 10 * CYCLES)
    assert run.returncode == 0, run.stdout + run.stderr
    print(run.stdout)

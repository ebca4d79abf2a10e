"""Tests of ranks that are killed: some cycles of kill_storm.py, and that its judge finds each kind of bad end."""
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import kill_storm  # noqa: E402
import rank  # noqa: E402
import traces  # noqa: E402

CYCLES = int(os.environ.get("STORM_CYCLES", "12"))
PLAN = kill_storm.Plan(number=0, phase="collective", size=4, victims=[1], delay_s=0, verb="broadcast", count=1)
WELL = kill_storm.Outcome(rank=0, status=rank.PEER_LOST, text="rank 1 of the group died, seen by rank 0")
OTHERS = [replace(WELL, rank=2), replace(WELL, rank=3)]


def judge(plan, *outcomes, left=(), reached=None):
    return kill_storm.judge(plan, outcomes, left, plan.size if reached is None else reached)


def test_judge_accepts_survivors_that_blame_a_killed_rank():
    assert judge(PLAN, WELL, *OTHERS) == ""
    assert judge(replace(PLAN, phase="init"), kill_storm.Outcome(rank=0, finished=True)) == ""
    assert judge(replace(PLAN, victims=[0, 1])) == ""
    assert judge(replace(PLAN, victims=[1, 3]), WELL, replace(WELL, rank=2)) == ""


BAD = [{"hung": True}, {"died": "ended with -11"}, {"wrong": "a wrong result"}, {"finished": True}, {"text": "gone"},
       {"status": rank.TIMEOUT}, {"text": "rank 0 died, seen by rank 1"}, {"text": "rank 2 died, seen by rank 0"}]


@pytest.mark.parametrize("change", BAD)
def test_judge_finds_one_survivor_with_a_bad_end(change):
    problem = judge(PLAN, OTHERS[0], replace(WELL, **change), OTHERS[1])
    assert problem.startswith("rank 0 ") and ";" not in problem


def test_judge_reports_traces_that_are_left():
    assert judge(PLAN, WELL, *OTHERS, left=["socket 12345"]) == "left behind: socket 12345"


def test_judge_finds_ranks_that_did_not_reach_the_phase():
    assert judge(PLAN, WELL, *OTHERS, reached=3).startswith("only 3 of 4 ranks reached the phase collective within")
    assert judge(replace(PLAN, phase="init"), WELL, *OTHERS, reached=0) == ""


@pytest.mark.parametrize("closes", [False, True])
def test_await_all_counts_the_ranks_that_have_reported(monkeypatch, closes):
    monkeypatch.setattr(kill_storm, "LIMIT_S", 0.01)
    ready, tell_ready = os.pipe()
    with os.fdopen(ready, "rb"), os.fdopen(tell_ready, "wb", buffering=0) as pipe:
        pipe.write(b"xx")
        if closes:
            pipe.close()
        assert kill_storm.await_all(ready, 3) == 2


def test_judge_finds_survivors_that_blame_different_ranks():
    two, other = replace(PLAN, victims=[1, 3]), replace(WELL, rank=2, text="rank 3 died")
    assert "not the same one" in judge(two, WELL, other)
    assert judge(replace(two, phase="init"), WELL, other) == ""


def test_judge_tells_the_dead_rank_from_the_one_that_reports_it():
    assert judge(PLAN, replace(WELL, text="rank 3 failed the group: " + WELL.text)) == ""
    assert judge(PLAN, replace(WELL, text="rank 1 failed the group: rank 3 of the group died, seen by rank 1"))


def test_judge_takes_an_unreachable_rank_for_the_dead_one():
    joining = replace(PLAN, phase="init")
    outcome = kill_storm.Outcome(rank=0, status=rank.SYSTEM, text="rank 0 of the group cannot reach rank 1: it hung up")
    assert judge(joining, outcome) == ""
    assert judge(replace(joining, victims=[0]), outcome)
    gave_up = replace(outcome, rank=2, text="rank 2 of the group cannot reach rank 0: it hung up")
    assert judge(joining, outcome, gave_up) == "" and judge(PLAN, WELL, replace(gave_up, status=rank.PEER_LOST))


def test_traces_finds_files_descriptors_and_processes(tmp_path):
    before = traces.Traces(tmp_path)
    assert before.left_now() == []
    (tmp_path / "core").touch()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        # The read returns when the parent closes its end.
        os.read(read, 1)
        os._exit(0)
    assert before.left_now() == ["file core", "a descriptor of the parent", "a process"]
    os.close(read)
    os.close(write)
    os.waitpid(child, 0)
    (tmp_path / "core").unlink()
    assert before.left() == []


def test_traces_finds_a_socket_until_it_is_closed(tmp_path):
    import socket
    before = traces.Traces(tmp_path)
    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind("\0tutti-test")
        assert any(found.startswith("socket ") for found in before.left_now())
    assert before.left() == []


def test_plan_of_a_cycle_depends_on_seed_and_number_only():
    plans = [kill_storm.draw(7, number, ["init", "collective"]) for number in range(50)]
    assert plans == [kill_storm.draw(7, number, ["init", "collective"]) for number in range(50)]
    assert len({(plan.delay_s, plan.count) for plan in plans}) == 50
    assert {plan.victims[0] for plan in plans} == {0, 1} and {len(plan.victims) for plan in plans} == {1, 2}


def test_numbers_are_those_of_the_header():
    header = (ROOT / "include/tutti.h").read_text()
    statuses = dict(re.findall(r"X\((\w+), (-?\d+), \"", header))
    assert all(getattr(rank, name) == int(statuses[name]) for name in ("OK", "SYSTEM", "TIMEOUT", "PEER_LOST"))
    dtypes = re.findall(r"X\((\w+), \d+, \"", header[header.index("TUTTI_DTYPE_MAP"):])
    assert dtypes.index("FLOAT32") == rank.FLOAT32
    ops = re.findall(r"X\((\w+), \"", header[header.index("TUTTI_OP_MAP"):])
    assert ops.index("SUM") == rank.SUM
    assert re.search(r"TUTTI_UNIQUE_ID_BYTES = (\d+)", header)[1] == str(rank.UNIQUE_ID_BYTES)


@pytest.mark.parametrize("job", ["", "--ranks 4", "--ranks 4 --hosts 2", "--ranks 4 --hosts 0,1,0,1"])
def test_survivors_of_killed_ranks_end_well(job):
    try:
        kill_storm.find_library(ROOT)
    except SystemExit as absent:
        pytest.skip(str(absent))
    phases = ["--phases", "init,idle,collective"] if importlib.util.find_spec("torch_tutti") is None else []
    cycles = max(1, CYCLES // (2 if job else 1))
    command = [sys.executable, str(HERE / "kill_storm.py"), "--cycles", str(cycles), *job.split(), *phases]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60 + 5 * cycles)
    assert run.returncode == 0, run.stdout + run.stderr
    print(run.stdout)

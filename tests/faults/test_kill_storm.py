"""A small storm on every run of the tests, and tests that its judge would notice what it is there to notice."""
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


def judge(plan, *outcomes, left=()):
    return kill_storm.judge(plan, outcomes, left)


def test_a_good_end_is_well():
    assert judge(PLAN, WELL, *OTHERS) == ""
    assert judge(replace(PLAN, phase="init"), kill_storm.Outcome(rank=0, finished=True)) == ""
    assert judge(replace(PLAN, victims=[0, 1])) == ""
    assert judge(replace(PLAN, victims=[1, 3]), WELL, replace(WELL, rank=2)) == ""


BAD = [{"hung": True}, {"died": "ended with -11"}, {"wrong": "a wrong result"}, {"finished": True}, {"text": "gone"},
       {"status": rank.TIMEOUT}, {"text": "rank 0 died, seen by rank 1"}, {"text": "rank 2 died, seen by rank 0"}]


@pytest.mark.parametrize("change", BAD)
def test_a_bad_end_of_one_is_noticed(change):
    told = judge(PLAN, OTHERS[0], replace(WELL, **change), OTHERS[1])
    assert told.startswith("rank 0 ") and ";" not in told


def test_what_is_left_is_noticed():
    assert judge(PLAN, WELL, *OTHERS, left=["socket 12345"]) == "left behind: socket 12345"


def test_survivors_that_blame_different_ranks_are_noticed():
    two, other = replace(PLAN, victims=[1, 3]), replace(WELL, rank=2, text="rank 3 died")
    assert "not the same one" in judge(two, WELL, other)
    assert judge(replace(two, phase="init"), WELL, other) == ""


def test_who_is_dead_is_blamed_and_not_who_tells_of_it():
    assert judge(PLAN, replace(WELL, text="rank 3 failed the group: " + WELL.text)) == ""
    assert judge(PLAN, replace(WELL, text="rank 1 failed the group: rank 3 of the group died, seen by rank 1"))


def test_who_could_not_be_reached_is_blamed():
    joining = replace(PLAN, phase="init")
    told = kill_storm.Outcome(rank=0, status=rank.SYSTEM, text="rank 0 of the group cannot reach rank 1: it hung up")
    assert judge(joining, told) == ""
    assert judge(replace(joining, victims=[0]), told)
    gave_up = replace(told, rank=2, text="rank 2 of the group cannot reach rank 0: it hung up")
    assert judge(joining, told, gave_up) == "" and judge(PLAN, WELL, replace(gave_up, status=rank.PEER_LOST))


def test_traces_are_noticed(tmp_path):
    before = traces.Traces(tmp_path)
    assert before.left_now() == []
    (tmp_path / "core").touch()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)        # until the parent closes its end
        os._exit(0)
    assert before.left_now() == ["file core", "a descriptor of the parent", "a process"]
    os.close(read)
    os.close(write)
    os.waitpid(child, 0)
    (tmp_path / "core").unlink()
    assert before.left() == []


def test_a_socket_of_ours_is_noticed_until_closed(tmp_path):
    import socket
    before = traces.Traces(tmp_path)
    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind("\0tutti-test")
        assert any(found.startswith("socket ") for found in before.left_now())
    assert before.left() == []


def test_a_cycle_depends_on_seed_and_number_only():
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
def test_storm(job):
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

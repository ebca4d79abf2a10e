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

CYCLES = int(os.environ.get("STORM_CYCLES", "25"))
PLAN = kill_storm.Plan(number=0, phase="collective", victim=1, both=False, delay_s=0, verb="broadcast", count=1)
WELL = kill_storm.Outcome(status=rank.PEER_LOST, text="rank 1 of the group died, seen by rank 0")


def test_a_good_end_is_well():
    assert kill_storm.judge(PLAN, WELL) == ""
    assert kill_storm.judge(replace(PLAN, phase="init"), kill_storm.Outcome(finished=True)) == ""
    assert kill_storm.judge(replace(PLAN, both=True), kill_storm.Outcome(died="ended with -9 and said nothing")) == ""


BAD = [{"hung": True}, {"died": "ended with -11"}, {"wrong": "a wrong result"}, {"finished": True}, {"text": "gone"},
       {"status": rank.TIMEOUT}, {"text": "rank 0 died, seen by rank 1"}, {"left": ["socket 12345"]}]


@pytest.mark.parametrize("change", BAD)
def test_a_bad_end_is_noticed(change):
    assert kill_storm.judge(PLAN, replace(WELL, **change))


def test_who_could_not_be_reached_is_blamed():
    joining = replace(PLAN, phase="init")
    told = kill_storm.Outcome(status=rank.SYSTEM, text="rank 0 of the group cannot reach rank 1: it hung up")
    assert kill_storm.judge(joining, told) == ""
    assert kill_storm.judge(replace(joining, victim=0), told)


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
    assert {plan.victim for plan in plans} == {0, 1}


def test_numbers_are_those_of_the_header():
    header = (ROOT / "c_api/tutti.h").read_text()
    statuses = dict(re.findall(r"X\((\w+), (-?\d+), \"", header))
    assert all(getattr(rank, name) == int(statuses[name]) for name in ("OK", "SYSTEM", "TIMEOUT", "PEER_LOST"))
    dtypes = re.findall(r"X\((\w+), \d+, \"", header[header.index("TUTTI_DTYPE_MAP"):])
    assert dtypes.index("FLOAT32") == rank.FLOAT32
    ops = re.findall(r"X\((\w+), \"", header[header.index("TUTTI_OP_MAP"):])
    assert ops.index("SUM") == rank.SUM
    assert re.search(r"TUTTI_UNIQUE_ID_BYTES = (\d+)", header)[1] == str(rank.UNIQUE_ID_BYTES)


def test_storm():
    try:
        kill_storm.find_library(ROOT)
    except SystemExit as absent:
        pytest.skip(str(absent))
    phases = ["--phases", "init,idle,collective"] if importlib.util.find_spec("torch_tutti") is None else []
    command = [sys.executable, str(HERE / "kill_storm.py"), "--cycles", str(CYCLES), *phases]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60 + 5 * CYCLES)
    assert run.returncode == 0, run.stdout + run.stderr
    print(run.stdout)

"""`tutti bench` as a program: with ranks of its own and under torchrun. No rank outlives the others or its parent."""
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time

from program_start import environment_of, run_python, run_torchrun, succeeded

from torch_tutti._bench import launch, report

TUTTI = [sys.executable, "-m", "torch_tutti"]


def test_bench_starts_its_own_ranks(tmp_path):
    words = ["reduce_scatter", "-b", "1K", "-e", "128K", "-f", "128", "-n", "3", "-w", "1", "--nproc", "2", "--stats"]
    saved, picture = tmp_path / "out.json", tmp_path / "out.png"
    drawing = ["--plot", str(picture)] if importable("matplotlib") else []
    printed = succeeded(run_python(*TUTTI[1:], "bench", *words, "--backend", "tutti,gloo", "-J", saved, *drawing))
    document = report.load(str(saved))
    rows = [line for line in printed.splitlines() if not line.startswith("#")]
    table = report.Table(stats=True, several=True)
    assert rows == [table.line(row) for row in document["results"]] and len(rows) == 4
    assert [(row["size"], row["count"]) for row in document["results"][::2]] == [(1024, 128), (131072, 16384)]
    assert [row["memcpy"] is not None for row in document["results"]] == [False, False, True, True]
    assert [row["in_place"]["limit"] is not None for row in document["results"]] == [False, False, True, True]
    assert document["args"][:2] == ["bench", "reduce_scatter"] and len(document["config"]["devices"]) == 2
    assert not drawing or picture.read_bytes()[1:4] == b"PNG"


def importable(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def test_bench_runs_under_torchrun_and_without_numpy(tmp_path):
    saved = tmp_path / "out.json"
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('as if it were not installed')")
    words = ["bench", "broadcast", "-b", "4K", "-e", "4K", "-n", "2", "-r", "all", "-J", saved]
    printed = succeeded(run_torchrun(2, *TUTTI[1:], *words, PYTHONPATH=str(tmp_path)))
    assert [row["root"] for row in report.load(str(saved))["results"]] == [0, 1]
    assert printed.count("Collective test starting") == 1


@contextlib.contextmanager
def running():
    """A context with a run that would take hours: (process, pids of its ranks). It begins when the run prints its
    table."""
    words = ["bench", "all_reduce", "-b", "8", "-e", "8", "-n", "100000000", "--nproc", "2"]
    process = subprocess.Popen([*TUTTI, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=environment_of({}), start_new_session=True)
    # Limits how long the loop below waits for output.
    guard = threading.Timer(100, process.kill)
    guard.start()
    pids = []
    try:
        for line in process.stdout:
            if found := re.match(r"#  Rank +\d+ Pid +(\d+)", line):
                pids.append(int(found[1]))
            if "(elements)" in line:
                break
        assert len(pids) == 2, process.stderr.read()
        yield process, pids
    finally:
        guard.cancel()
        process.kill()
        # The process that would end them has been killed.
        if not gone(pids):
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=20)


def gone(pids, limit_s=20):
    until = time.monotonic() + limit_s
    while alive := [pid for pid in pids if os.path.exists(f"/proc/{pid}")]:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return not alive


def test_a_dead_rank_ends_all_and_is_named():
    with running() as (process, pids):
        os.kill(pids[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1 and "rank 1 was killed by SIGKILL" in errors
        assert gone(pids)


def test_no_rank_outlives_its_parent():
    with running() as (process, pids):
        process.kill()
        assert gone(pids)


def test_exit_codes_are_described():
    describe = launch.describe
    assert describe([0, 0]) == "" and describe([3, 3]) == ""
    assert describe([None, -9]) == "rank 1 was killed by SIGKILL; the other ranks were stopped"
    assert describe([1, -9]) == "rank 1 was killed by SIGKILL; rank 0 ended with exit code 1"
    assert describe([0, None]) == "rank 1 did not end when the others had; it was stopped"

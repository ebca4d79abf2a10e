"""Tests of `tutti doctor FILE …` and `tutti doctor -- COMMAND`: its conclusions from traces and logs of jobs that
failed, and from files that the tests write."""
import json
import os
import pickle
import signal
import sys

import pytest
import torch
import torch.distributed as dist
from program_start import run_python
from test_trace import entry, trace

import torch_tutti as tutti
from torch_tutti import cli
from torch_tutti._doctor import findings, records
from torch_tutti._doctor.explanation import explain


def conclusions(*names):
    """Returns the problems that files tell of, as text."""
    found = explain(records.read(map(str, names)))
    return [f"{one.check} {one.found}" for one in found if one.level == findings.PROBLEM]


def explained(log):
    """Returns the findings about a log."""
    told = records.Records()
    records.read_log(log.splitlines(keepends=True), told)
    return explain(told)


# ---- jobs that failed ----
def recording(fresh, folder, size):
    return fresh(size, timeout_s=1, environment={"TORCH_FR_BUFFER_SIZE": "100",
                                                 "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/trace_"})


def skip_a_call(world):
    dist.all_reduce(torch.ones(2))
    if world.rank == 1:
        tutti.dump_trace()
        return
    # So large that the root waits for all ranks.
    dist.broadcast(torch.ones(5000), 0)


def test_skipped_call_names_rank_call_and_lines(fresh, tmp_path, capsys):
    recording(fresh, tmp_path / "traces", 3).outcomes(skip_a_call)
    here, first = os.path.basename(__file__), skip_a_call.__code__.co_firstlineno
    found, = conclusions(tmp_path / "traces")
    assert found.startswith("rank 1 did not make the call broadcast(5000 x float32, root 0"), found
    assert "operation 2 of group 0, for which rank " in found and f"{here}:{first + 6} (skip_a_call)" in found
    assert f"the last call of rank 1 was all_reduce at {__file__}:{first + 1} (skip_a_call)" in found
    assert cli.main(["doctor", str(tmp_path / "traces")]) == 1
    report = capsys.readouterr().out
    assert report.startswith("problem  rank 1 ") and report.endswith("  => operation 2 was not called by rank 1\n")
    assert cli.main(["doctor", "--json", str(tmp_path / "traces")]) == 1
    told, = json.loads(capsys.readouterr().out)["hosts"]
    assert told["name"] == "" and found == "rank 1 " + told["findings"][0]["found"]


def die(world):
    dist.all_reduce(torch.ones(2))
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(3))


def test_dead_rank_is_named(fresh, tmp_path):
    ranks = recording(fresh, tmp_path / "traces", 2)
    ranks.outcomes(die)
    found, = conclusions(tmp_path / "traces")
    assert found.startswith(f"rank 1 died (process {ranks.processes[1].pid} on "), found
    assert "rank 0 waited for it in allreduce(3 x float32, sum" in found
    assert f"called at {__file__}:{die.__code__.co_firstlineno + 4} (die)" in found


PROGRAM = """
import sys, torch, torch.distributed as dist
dist.init_process_group("tutti")
if dist.get_rank() == 1:
    raise RuntimeError("no data")
dist.all_reduce(torch.ones(2))
"""


@pytest.mark.one_host("torchrun --standalone")
def test_command_is_explained_and_keeps_its_exit_code(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    done = run_python("-m", "torch_tutti", "doctor", "--", sys.executable, "-m", "torch.distributed.run",
                      "--standalone", "--nproc-per-node", "2", script)
    assert done.exitcodes == [1] and "Traceback" in done.stderr
    last = done.stderr[done.stderr.rindex("tutti doctor: "):]
    assert last.startswith("tutti doctor: the command has ended with 1\nproblem  rank 1          raised RuntimeError: "
                           f"no data, at {script}:5 (<module>)\n"), last


# ---- commands ----
@pytest.mark.parametrize("code, status, text", [
    ("print('out')", 0, "no failure was found"), ("import sys; sys.exit(7)", 7, "with 7; its output and traces do not"),
    ("import os; os.kill(os.getpid(), 9)", 137, "has ended with 137"),
    ("raise KeyError('x')", 1, "raised KeyError: 'x', at "),
])
def test_exit_code_and_output_are_those_of_the_command(tmp_path, capfd, code, status, text):
    script = tmp_path / "main.py"
    script.write_text(code)
    assert cli.main(["doctor", "--", str(script)]) == status
    told = capfd.readouterr()
    assert text in told.err and told.out == ("out\n" if status == 0 else "")


def test_command_gets_the_log_and_the_recorder(tmp_path, capfd, monkeypatch):
    script = tmp_path / "main.py"
    script.write_text("import os; print(*(os.environ[name] for name in ('TUTTI_LOG', 'TORCH_FR_BUFFER_SIZE', "
                      "'TORCH_FR_DUMP_TEMP_FILE')))")
    monkeypatch.delenv("TUTTI_LOG", raising=False)
    assert cli.main(["doctor", "--", str(script)]) == 0
    level, size, prefix = capfd.readouterr().out.split()
    assert (level, size) == ("info", "2000") and not os.path.exists(os.path.dirname(prefix))
    monkeypatch.setenv("TUTTI_LOG", "debug")
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", f"{tmp_path}/mine_")
    # A trace of an earlier job with the same prefix.
    (tmp_path / "mine_0").write_bytes(pickle.dumps(trace(entry(1))))
    os.utime(tmp_path / "mine_0", (1, 1))
    assert cli.main(["doctor", "--", str(script)]) == 0
    assert capfd.readouterr().out.split() == ["debug", "2000", f"{tmp_path}/mine_"]


# ---- logs ----
DIED = "rank 1 of group 0 (process 12 on node1) died, seen by rank 0 in barrier, operation 2 of group 0; make another"
EXITED = "Failures:\n  rank      : 0 (local_rank: 0)\n  exitcode  : -15 (pid: 11)  (SIGTERM)\nRoot Cause:\n" \
         "  rank      : 1 (local_rank: 1)\n  exitcode  : {} (pid: 12)\n"
LATE = "rank 0 reached the timeout of 3000 ms in barrier, operation 2 of group 0: this call has not been made by " \
       "rank 1, 2; rank 1 is at a/train.py:12 (load)"
LEFT = "rank 1 of group 0 has ended or destroyed its group, and rank 0 waits for it in barrier; see its output"
TRACEBACK = '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "/b/t.py", line 9, in step\n' \
            '[rank{0}]:     x\n[rank{0}]: {1}\n'


@pytest.mark.parametrize("log, found", [
    (f"tutti[11] error: rank 0: {DIED}\n{EXITED.format(-9)}",
     ["rank 1 died (process 12 on node1, by signal 9 (SIGKILL)); rank 0 waited for it in barrier, operation 2 of "
      "group 0"]),
    (EXITED.format(-11), ["rank 1 died, by signal 11 (SIGSEGV)"]),
    (EXITED.format(3), ["rank 1 ended, exit code 3"]),
    (f"h0 | tutti[11] error: rank 0: rank 2 failed the group: {LATE}\n",
     ["ranks 1, 2 did not make the call barrier, operation 2 of group 0, for which rank 0 waited 3 s; rank 1 is at "
      "a/train.py:12 (load)"]),
    (TRACEBACK.format(0, f"torch_tutti.exceptions.PeerError: {LEFT}"),
     ["rank 1 has ended or destroyed its group, while rank 0 waited for it in barrier, called at /b/t.py:9 (step)"]),
    (TRACEBACK.format(1, "KeyError: 'w'") + TRACEBACK.format(0, f"torch_tutti.exceptions.PeerError: {LEFT}"),
     ["rank 1 raised KeyError: 'w', at /b/t.py:9 (step)"]),
    # The second exception of rank 0 follows from the first one.
    (TRACEBACK.format(0, f"torch_tutti.exceptions.PeerError: {LEFT}") + TRACEBACK.format(0, "OSError: lost"),
     ["rank 1 has ended or destroyed its group, while rank 0 waited for it in barrier, called at /b/t.py:9 (step)"]),
    (TRACEBACK.format(0, "torch_tutti.exceptions.SystemError: no shared memory"),
     ["rank 0 no shared memory, at /b/t.py:9 (step)"]),
    ("Traceback (most recent call last):\ntorch.distributed.elastic.ChildFailedError: \n", []),
    ("", []), ("Traceback (most recent call last):\n  File", []),
])
def test_log_is_explained(log, found):
    assert [f"{one.check} {one.found}" for one in explained(log)] == found


def test_warnings_of_a_log_are_shown_once():
    lines = "tutti[1] warn: TUTTI_X is unknown\n" * 3 + "tutti[1] warn: rank 0: the last operations are in /t\n"
    assert explained(lines) == [findings.Finding(findings.WARNING, "log", "TUTTI_X is unknown")]


# ---- files ----
def test_traces_without_an_error_are_explained(tmp_path):
    for rank, content in enumerate([trace(entry(1), entry(2, state="started")), trace(entry(1))]):
        (tmp_path / f"t_{rank}").write_bytes(pickle.dumps(content))
    assert conclusions(tmp_path) == ["traces operation 2 was not called by rank 1"]


def test_rank_of_a_log_is_in_its_path(tmp_path):
    path = tmp_path / "attempt_0/3/stderr.log"
    path.parent.mkdir(parents=True)
    path.write_text('Traceback (most recent call last):\n  File "/b/t.py", line 9, in step\nKeyError\n')
    assert conclusions(tmp_path) == ["rank 3 raised KeyError, at /b/t.py:9 (step)"]


@pytest.mark.parametrize("files, text", [
    ({}, "has no files"), ({"t_0": b"\x80broken"}, "t_0 is not a trace of the flight recorder"),
    ({"t_0": pickle.dumps(trace(entry(1))), "u_0": pickle.dumps(trace(entry(1)))}, "are both traces of rank 0"),
    ({"t": pickle.dumps(trace(entry(1)))}, "t does not tell its rank"),
])
def test_wrong_files_are_refused(tmp_path, capsys, files, text):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    refused(capsys, text, str(tmp_path))


def refused(capsys, text, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", *arguments])
    assert ended.value.code == 2 and text in capsys.readouterr().err


@pytest.mark.parametrize("arguments, text", [
    (["/no/such/file"], "/no/such/file does not exist"), (["--"], "no command after --"),
    (["x", "--", "true"], "not both"), (["--json", "--", "true"], "options are for checks"),
    (["--", "no-such-command"], "command not found: no-such-command"),
])
def test_wrong_usage_is_refused(capsys, arguments, text):
    refused(capsys, text, *arguments)


def test_log_without_a_failure_is_no_problem(tmp_path, capsys):
    (tmp_path / "log").write_text("all is well\n")
    assert cli.main(["doctor", str(tmp_path / "log")]) == 0
    assert capsys.readouterr().out == "no failure was found\n"

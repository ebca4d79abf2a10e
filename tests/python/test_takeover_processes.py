"""Tests of take-overs in the processes that a program starts: by `tutti run`, by the environment, and in spawned
ranks."""
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from program_start import Ended, environment_of, run_interpreter, run_python, run_ranks, run_torchrun, succeeded

from torch_tutti import _takeover, cli

PROGRAM = Path(__file__).parents[1] / "programs" / "nccl_by_name.py"
SCRIPTS = Path(sysconfig.get_path("scripts"))
QUIET = {_takeover.VARIABLE: None, "OMP_NUM_THREADS": "1"}
TUTTI_RUN = [SCRIPTS / "tutti", "run"]


def start(*command, check=True, **variables):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=150,
                          env=environment_of({**QUIET, **variables}))
    assert not check or done.returncode == 0, done.stderr
    return done


def trains_on_tutti(ended):
    printed = succeeded(ended)
    assert printed.startswith("loss ") and printed.endswith(" on nccl\n")
    assert ended.stderr.count('asked for backend "nccl" and gets "tutti"') == 2


def test_tutti_run_starts_torchrun():
    """`tutti run torchrun` trains on tutti, also with a DataLoader whose workers are spawned."""
    done = start(*TUTTI_RUN, "torchrun", "--standalone", "--nproc-per-node", "2", PROGRAM, TUTTI_LOG="info")
    trains_on_tutti(Ended([done.returncode], done.stdout, done.stderr))


def test_torchrun_starts_tutti_run():
    trains_on_tutti(run_torchrun(2, "--no-python", *TUTTI_RUN, "--backends", "gloo,nccl", PROGRAM, "--no-workers",
                                 TUTTI_LOG="info", **QUIET))


def test_spawned_ranks_are_taken_over():
    printed = succeeded(run_interpreter(PROGRAM, "--spawn", **{**QUIET, _takeover.VARIABLE: "nccl"}))
    assert sorted(printed.splitlines()) == ["rank 0 has 2.0 on nccl", "rank 1 has 2.0 on nccl"]


def test_program_needs_the_take_over():
    """Without a take-over the program fails, so the tests above prove that tutti runs it."""
    if dist.distributed_c10d.is_nccl_available():
        pytest.skip("this torch has NCCL, so the program may run without tutti")
    done = run_ranks(1, PROGRAM, **QUIET)
    assert done.exitcodes != [0] and "doesn't have NCCL built in" in done.stderr


def test_unknown_name_in_the_environment_is_an_error():
    """The error comes with the first group, and not at `import torch`, which must not fail."""
    code = """
import torch, torch.distributed as dist
print("imported", flush=True)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
    done = run_interpreter("-c", code, **{**QUIET, _takeover.VARIABLE: "ncll,gloo"})
    assert done.stdout == "imported\n" and done.exitcodes != [0]
    assert 'ValueError: TUTTI_TAKE_OVER=gloo,ncll: tutti cannot take over "ncll": torch knows no backend' in done.stderr


@pytest.mark.one_host("a job of one rank")
def test_take_over_works_without_standard_error():
    code = """
import sys, torch.distributed as dist
sys.stderr = None
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(dist.get_backend_config())
"""
    assert "tutti" in succeeded(run_interpreter("-c", code, **{**QUIET, _takeover.VARIABLE: "gloo"}))


def test_torch_without_the_expected_function_is_reported():
    code = """
import torch, torch.distributed as dist
from torch_tutti import _takeover, cli
dist.distributed_c10d._new_process_group_helper = lambda store, rank: None
_takeover.from_environment()
"""
    done = run_python("-c", code, **{**QUIET, _takeover.VARIABLE: "gloo"})
    assert done.exitcodes == [0]
    assert "error: TUTTI_TAKE_OVER has no effect: torch" in done.stderr and "Write 'tutti' where" in done.stderr


@pytest.mark.one_host("a job of one rank")
def test_functions_of_torch_that_take_other_arguments_stay():
    code = """
import torch, torch.distributed as dist
def other(group=None, *, devices=()): pass
dist.distributed_c10d._coalescing_manager = dist._coalescing_manager = other
dist.init_process_group("tutti", store=dist.HashStore(), rank=0, world_size=1)
print(dist._coalescing_manager is other, dist.monitored_barrier.__wrapped__ is not None)
dist.monitored_barrier()
"""
    done = run_python("-c", code, **QUIET)
    assert done.exitcodes == [0]
    assert done.stdout == "True True\n" and f"warn: _coalescing_manager of torch {torch.__version__} takes group, " \
        "devices, but tutti expects group, device, async_ops: torch's own function stays in place" in done.stderr


@pytest.mark.parametrize("arguments, text", [
    ([], "nothing to run; it is used as: tutti run"),
    (["-m"], "nothing to run"),
    (["no-such-command"], "command not found: no-such-command; a script's name ends in .py"),
    (["--backends", "ncll", "train.py"], 'cannot take over "ncll"'),
    (["--backends", "", "train.py"], "take_over needs names"),
])
def test_tutti_run_refuses_wrong_arguments(capsys, arguments, text):
    assert cli.main(["run", *arguments]) == 1
    assert text in capsys.readouterr().err


def test_tutti_run_passes_on_options_and_exit_status(tmp_path):
    """Options of the program may have the names of options of `tutti run`."""
    script = tmp_path / "script.py"
    script.write_text("import os, sys; print(sys.argv[1:], os.environ['TUTTI_TAKE_OVER']); sys.exit(7)")
    done = start(*TUTTI_RUN, "--backends=gloo", script, "--backends", "-m", "x", check=False)
    assert (done.returncode, done.stdout) == (7, "['--backends', '-m', 'x'] gloo\n")
    module = start(*TUTTI_RUN, "-m", "platform", "--terse")
    assert module.stdout == subprocess.run([sys.executable, "-m", "platform", "--terse"], capture_output=True,
                                           text=True).stdout


def test_tutti_run_without_autoload_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert cli.main(["run", "train.py"]) == 1
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD is set, so torch would not load tutti" in capsys.readouterr().err

"""Starts the programs of these tests on two ranks with torchrun, in the environment that tests/frameworks/setup makes.

    .venv/bin/python -m pytest tests/frameworks                         both ranks on this host
    FRAMEWORKS_HOSTS=2 .venv/bin/python -m pytest tests/frameworks      each rank on its own host, by script/hosts

A program that has not ended after LIMIT_S seconds is ended, with all processes that it has started.
"""
import os
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENVIRONMENT = ROOT / "build" / "frameworks"
LIMIT_S = 300
HOSTS = int(os.environ.get("FRAMEWORKS_HOSTS") or 1)
# A shell on each host replaces the words of a launcher that begin with $.
TORCHRUN = ("-m", "torch.distributed.run", *{
    1: ("--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
    2: ("--nproc-per-node", "1", "--nnodes", "2", "--node-rank", "$NODE_RANK",
        "--master-addr", "$MASTER_ADDR", "--master-port", "$MASTER_PORT")}[HOSTS])

needs_frameworks = pytest.mark.skipif(not (ENVIRONMENT / "requirements.installed").exists(),
                                      reason="the frameworks are not installed; tests/frameworks/setup does it")


def launch(program, *arguments, **variables):
    """Runs the program on two ranks, and returns its output. The program must succeed; attempt() is for programs that
    may fail."""
    code, text = attempt(program, *arguments, **variables)
    assert code == 0, f"{program} {' '.join(map(str, arguments))}:\n{text}"
    return text


def attempt(program, *arguments, launcher=TORCHRUN, **variables):
    """Runs a file of programs/ or a module, and returns its exit status and its output. launcher: () runs it in one
    process. variables: added to its environment."""
    target = [HERE / "programs" / program] if program.endswith(".py") else ["-m", program]
    command = on_hosts([str(word) for word in (ENVIRONMENT / "bin" / "python", *launcher, *target, *arguments)])
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'shim'}:{ROOT / 'tests/python'}", "CUDA_VISIBLE_DEVICES": "",
                   "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu",
                   "TORCH_EXTENSIONS_DIR": str(ENVIRONMENT / "extensions"), **variables}
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        text, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{program} did not end in {LIMIT_S} s\n{end(process)}") from None
    finally:
        end(process)
    return process.returncode, text


def on_hosts(command):
    """Returns the command that starts `command` on every host."""
    if HOSTS == 1:
        return command
    line = " ".join(word if word.startswith("$") else shlex.quote(word) for word in command)
    return [str(ROOT / "script/hosts"), str(HOSTS), "--", "sh", "-c", f"exec {line}"]


def end(process):
    """Ends torchrun, which ends its ranks, which are in sessions of their own. Returns the output that was not read
    yet."""
    if process.poll() is not None:
        return ""
    process.terminate()
    try:
        return process.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return "torchrun did not end when it was asked to; look for ranks that are left"


def outcomes(program, backend, folder, **variables):
    """Runs the program on this backend. Returns the results that it has saved, by rank."""
    place = folder / backend
    place.mkdir()
    launch(program, backend, place, **variables)
    results = [torch.load(place / f"rank{rank}.pt") for rank in range(2)]
    assert len({result.pop("host") for result in results}) == HOSTS
    return results


def on_both(program, folder, **variables):
    """Runs the program on tutti and on gloo. Returns the results of each rank on either, without those that name the
    host and the backend."""
    both = [outcomes(program, backend, folder, **variables) for backend in ("tutti", "gloo")]
    used = [[result.pop("groups") for result in results] for results in both]
    assert used == [[["ProcessGroupTutti"]] * 2, [["ProcessGroupGloo"]] * 2]
    return both


def same(mine, judge):
    """Asserts that two results are equal to the last bit; they may be nested."""
    if isinstance(mine, torch.Tensor):
        assert torch.equal(mine, judge), f"{mine} is not {judge}"
    elif isinstance(mine, (dict, list, tuple)):
        assert len(mine) == len(judge)
        for key in mine if isinstance(mine, dict) else range(len(mine)):
            same(mine[key], judge[key])
    else:
        assert mine == judge


def same_on_both(both, case):
    """Asserts that the results of a case are equal on tutti and on gloo, on each rank. Returns the result of rank 0."""
    for tutti, gloo in zip(*both, strict=True):
        same(tutti[case], gloo[case])
    return both[0][0][case]

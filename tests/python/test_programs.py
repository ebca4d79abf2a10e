"""Programs of tests/programs, written as users write them: on tutti they must print what they print on gloo. With two
ranks sums have one order, so every digit must be the same. torchrun starts each on tutti the first time; all other
starts are forked where torch is loaded already, which takes a third of the time."""
import os
import re
import runpy
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import context

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 150


@dataclass
class Program:
    script: str
    runs: list                          # the arguments of one start after the other, all in one folder
    shows: str                          # a pattern that the last run's text must have
    ranks: int = 2


PROGRAMS = {
    "ddp": Program("ddp.py", [["--snapshot", "at"], ["--snapshot", "at", "--epochs", "5"]],
                   r"goes on after 3 epochs\n(epoch \d loss 0\.\d+\n){2}right 1[12]\d of 128"),
    "fsdp": Program("fsdp.py", [["--checkpoint", "at"], ["--checkpoint", "at", "--first", "6", "--mixed-precision"]],
                    r"goes on from the checkpoint\n(step \d+ loss \d\.\d+ norm \d+\.\d+\n){6}"),
    "tensor parallel": Program("tensor_parallel.py", [["--tensor", "2"]], r"^(step \d loss \d\.\d+\n){6}$", ranks=4),
    "pipelining": Program("pipelining.py", [["--schedule", "1F1B"], ["--schedule", "ZBVZeroBubble"]],
                          r"^(step \d loss \d\.\d+\n){5}$"),
    "checkpoint": Program("checkpoint.py", [["--folder", "at", "--how", how] for how in ("once", "thread", "process")],
                          r"^goes on after 12 steps\n(step \d+ loss \d\.\d+\n){7}$"),
}


def start_by_torchrun(program, arguments, folder):
    """What it prints on standard output; also of start_forked."""
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
               str(program.ranks), str(ROOT / "tests/programs" / program.script), *arguments]
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as started:
        try:
            out, error = started.communicate(timeout=LIMIT_S)
        except BaseException:
            started.terminate()                         # torchrun ends its ranks, which kill would leave behind
            raise
    assert started.returncode == 0, f"{program.script} {arguments}: {out}\n{error[-6000:]}"
    return out


def leave_at_once():
    """In place of destroy_process_group, on gloo: with a Python object that holds the group, the last Work may be
    destroyed by a thread that waits for the GIL while whoever destroys the group holds it and waits for that thread."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def run_as_main(script, arguments, folder, environment):
    os.chdir(folder)
    for number, name in (1, "out"), (2, "error"):
        os.dup2(os.open(f"{name}{environment['RANK']}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.update(environment)
    torch.set_num_threads(1)                            # torch was loaded before OMP_NUM_THREADS could say so
    if "gloo" in arguments:
        dist.destroy_process_group = leave_at_once
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def start_forked(program, arguments, folder):
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)       # as torchrun's agent has it
    every = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
             "TORCHELASTIC_RESTART_COUNT": "0", "WORLD_SIZE": str(program.ranks), "CUDA_VISIBLE_DEVICES": "",
             "OMP_NUM_THREADS": "1", "TUTTI_HOSTS": os.environ.get("TUTTI_HOSTS", "")}
    script, ranks = str(ROOT / "tests/programs" / program.script), range(program.ranks)
    processes = [context.Process(target=run_as_main, args=(
        script, arguments, folder, {**every, "RANK": str(rank), "LOCAL_RANK": str(rank)})) for rank in ranks]
    for process in processes:
        process.start()
    until = time.monotonic() + LIMIT_S
    try:
        for process in processes:
            process.join(max(0, until - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.join()
    out, error = ("".join((folder / f"{name}{rank}").read_text() for rank in ranks) for name in ("out", "error"))
    assert all(process.exitcode == 0 for process in processes), f"{program.script} {arguments}: {out}\n{error[-6000:]}"
    return out


def run(program, backend, folder):
    """What each start of it prints."""
    folder.mkdir()
    starts = [["--backend", backend, *arguments] for arguments in program.runs]
    first = start_by_torchrun if backend == "tutti" else start_forked
    return [first(program, starts[0], folder), *[start_forked(program, start, folder) for start in starts[1:]]]


@pytest.mark.parametrize("name", PROGRAMS)
def test_prints_what_it_prints_on_gloo(name, tmp_path):
    program = PROGRAMS[name]
    printed = run(program, "tutti", tmp_path / "tutti")
    assert re.search(program.shows, printed[-1]), printed
    assert printed == run(program, "gloo", tmp_path / "gloo")

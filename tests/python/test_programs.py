"""Tests of the programs of tests/programs, written as users write them: on tutti they must print what they print on
gloo. With two ranks sums have one order, so every digit must be the same. torchrun starts one of them on tutti; all
other starts are forked where torch is loaded already (program_start.py)."""
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch.distributed as dist
from program_start import run_ranks, run_torchrun, succeeded

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 150


@dataclass
class Program:
    """A program of tests/programs. runs: the arguments of its starts, one after the other in one folder. shows: a
    pattern that the output of the last start must have. by_torchrun: torchrun makes the first start on tutti."""
    script: str
    runs: list
    shows: str
    ranks: int = 2
    by_torchrun: bool = False


PROGRAMS = {
    "ddp": Program("ddp.py", [["--snapshot", "at"], ["--snapshot", "at", "--epochs", "5"]],
                   r"goes on after 3 epochs\n(epoch \d loss 0\.\d+\n){2}right 1[12]\d of 128", by_torchrun=True),
    "fsdp": Program("fsdp.py", [["--checkpoint", "at"], ["--checkpoint", "at", "--first", "6", "--mixed-precision"]],
                    r"goes on from the checkpoint\n(step \d+ loss \d\.\d+ norm \d+\.\d+\n){6}"),
    "tensor parallel": Program("tensor_parallel.py", [["--tensor", "2"]], r"^(step \d loss \d\.\d+\n){6}$", ranks=4),
    "pipelining": Program("pipelining.py", [["--schedule", "1F1B"], ["--schedule", "ZBVZeroBubble"]],
                          r"^(step \d loss \d\.\d+\n){5}$"),
    "checkpoint": Program("checkpoint.py", [["--folder", "at", "--how", how] for how in ("once", "thread", "process")],
                          r"^goes on after 12 steps\n(step \d+ loss \d\.\d+\n){7}$"),
}


def leave_gloo_at_once():
    dist.destroy_process_group = leave_at_once


def leave_at_once():
    """Ends the process on gloo, in place of destroy_process_group: with a Python object that holds the group, the last
    Work may be destroyed by a thread that waits for the GIL, while the thread that destroys the group holds the GIL and
    waits for that thread."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def start(program, backend, arguments, folder, how=run_ranks):
    """Returns the standard output of one start."""
    words = [ROOT / "tests/programs" / program.script, "--backend", backend, *arguments]
    options = {"prepare": leave_gloo_at_once} if backend == "gloo" else {}
    return succeeded(how(program.ranks, *words, folder=folder, **options))


def without_processes(program):
    """Returns the runs of a program, which save in a thread instead of a process: a process takes long to start, and
    the output is the same."""
    return [["thread" if word == "process" else word for word in words] for words in program.runs]


def run_on_tutti(program, folder):
    """Starts the program on tutti once for each of its runs. Returns the outputs."""
    folder.mkdir()
    first, *others = program.runs
    return [start(program, "tutti", first, folder, run_torchrun if program.by_torchrun else run_ranks),
            *[start(program, "tutti", words, folder) for words in others]]


def run_on_gloo(program, folder):
    folder.mkdir()
    return [start(program, "gloo", words, folder) for words in without_processes(program)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_prints_what_it_prints_on_gloo(name, tmp_path):
    program = PROGRAMS[name]
    printed = run_on_tutti(program, tmp_path / "tutti")
    assert re.search(program.shows, printed[-1]), printed
    assert printed == run_on_gloo(program, tmp_path / "gloo")

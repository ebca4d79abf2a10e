"""The command `tutti run`: starts a program with the take-over of `_takeover` in its environment, in this process, so
that whoever watches it (torchrun, a shell) sees no other. All processes that it starts inherit the take-over.
"""
from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from torch_tutti import _takeover

DEFAULT = "nccl,gloo"
CERTAIN = {"nccl", "gloo"}          # names that need no look into torch, whose import takes a second
USAGE = "tutti run [--backends NAMES] SCRIPT.py | -m MODULE | COMMAND ..."


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our own options, and the program with its: it begins at the first word that is no option of ours."""
    first = 0
    while first < len(arguments) and arguments[first].startswith("-") and arguments[first] != "-m":
        first += 2 if arguments[first] == "--backends" else 1
    return arguments[:first], arguments[first:]


def command_of(program: list[str]) -> list[str]:
    """What to start: a script (its name ends in .py) and a module run in this Python, anything else is a command,
    looked for beside this Python first. Raises ValueError when there is none."""
    if not program or program == ["-m"]:
        raise ValueError(f"nothing to run; it is used as: {USAGE}")
    if program[0] == "-m" or program[0].endswith(".py"):
        return [sys.executable, *program]
    beside = str(Path(sys.executable).parent)
    found = shutil.which(program[0], path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise ValueError(f"command not found: {program[0]}; a script's name ends in .py, and a module is run with -m")
    return [found, *program[1:]]


def run(backends: str, program: list[str]) -> None:
    """Becomes the program. Raises ValueError or OSError when it cannot be started."""
    names = _takeover.parse(backends)
    if not names or not CERTAIN.issuperset(names):
        _takeover.check(names)
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        raise ValueError("TORCH_DEVICE_BACKEND_AUTOLOAD is set, so torch would not load tutti: unset it")
    command = command_of(program)
    os.environ[_takeover.VARIABLE] = ",".join(names)
    sys.stdout.flush()
    os.execv(command[0], command)

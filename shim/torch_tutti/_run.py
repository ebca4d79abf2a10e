"""The command `tutti run`: becomes the program (exec), with the take-over of `_takeover` in its environment. So a
parent (torchrun, a shell) sees the same process. All child processes inherit the take-over.
"""
from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from torch_tutti import _binding, _takeover

DEFAULT = "nccl,gloo"
# Backends that torch always knows. Checking others imports torch, which takes a second.
CERTAIN = {"nccl", "gloo"}
USAGE = "tutti run [--backends NAMES] [--bind] SCRIPT.py | -m MODULE | COMMAND ..."


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Divides the arguments of `tutti run` into its own options, and the program with its arguments. The program begins
    at the first word that is not an option of tutti."""
    index = 0
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "-m":
        index += 2 if arguments[index] == "--backends" else 1
    return arguments[:index], arguments[index:]


def command_of(program: list[str]) -> list[str]:
    """Returns the command for exec: a script (its name ends in .py) and a module (-m) run in this Python; any other
    program is looked for beside this Python, then in PATH. Raises ValueError when there is none."""
    if not program or program == ["-m"]:
        raise ValueError(f"nothing to run; it is used as: {USAGE}")
    if program[0] == "-m" or program[0].endswith(".py"):
        return [sys.executable, *program]
    folder_of_python = str(Path(sys.executable).parent)
    path = shutil.which(program[0], path=os.pathsep.join([folder_of_python, os.environ.get("PATH", os.defpath)]))
    if path is None:
        raise ValueError(f"command not found: {program[0]}; a script's name ends in .py, and a module is run with -m")
    return [path, *program[1:]]


def run(backends: str, program: list[str], binds: bool = False) -> None:
    """Replaces this process by the program, with the take-over of these backends (a comma-separated list). binds: the
    ranks that it starts are bound to cores (`_binding`). Raises ValueError or OSError when the program cannot be
    started."""
    names = _takeover.parse(backends)
    if not names or not CERTAIN.issuperset(names):
        _takeover.check(names)
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        raise ValueError("TORCH_DEVICE_BACKEND_AUTOLOAD is set, so torch would not load tutti: unset it")
    command = command_of(program)
    os.environ[_takeover.VARIABLE] = ",".join(names)
    if binds:
        os.environ[_binding.VARIABLE] = "cores"
    sys.stdout.flush()
    os.execv(command[0], command)

"""Tells where the Python threads of this process are: to `tutti status`, and to a rank that reaches its timeout because
this one has not made the call. A thread of this process waits in the C library until one asks."""
from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType

from torch_tutti import _library, _program_line

# The bytes of an answer, and the characters of a path and of a function's name in the first line.
MOST_BYTES, MOST_PATH, MOST_NAME = 60_000, 60, 40
_process = 0


def start() -> None:
    """Starts the thread that answers, once in each process. Where no thread can start, the process does not tell."""
    global _process
    if _process != os.getpid():
        _process = os.getpid()
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=_answer, name="tutti-stacks", daemon=True).start()


def _answer() -> None:
    connection = ctypes.c_int()
    while _library.await_status_caller(connection):
        with socket.socket(fileno=connection.value) as caller, contextlib.suppress(Exception):
            caller.send(describe().encode(errors="replace")[:MOST_BYTES])


def describe() -> str:
    """Returns a line with the place of the main thread in the program, and then the stacks of all threads, the main
    one first."""
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    shown = [ident for ident in frames if ident != threading.get_ident()]
    parts = [_place(frames.get(main))]
    for ident in sorted(shown, key=lambda ident: ident != main):
        parts += ["", f"thread {names.get(ident, ident)}:", "".join(traceback.format_stack(frames[ident])).rstrip()]
    return "\n".join(parts)


def _place(frame: FrameType | None) -> str:
    """Returns the line of the program that a thread runs, as "code/train.py:19 (step)", or "" if there is none."""
    found = []
    while frame:
        found.append(_program_line.Frame(frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    line = _program_line.find(found)
    if not line:
        return ""
    # error texts have room for the end of a path only
    file = "/".join(Path(line.filename).parts[-2:])
    return f"{file[-MOST_PATH:]}:{line.line} ({line.name[:MOST_NAME]})"

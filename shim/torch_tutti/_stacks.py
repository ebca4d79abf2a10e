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
from types import FrameType
from typing import Any

from torch_tutti import _library, _program_line, _tags

# The bytes of an answer, and of its first line.
MOST_BYTES, MOST_LINE_BYTES = 60_000, 127
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
    """Returns a line with the place of the main thread in the program and its tag, and then the stacks of all threads
    but this one, the main one first."""
    frames = sys._current_frames()
    shown = {ident: frame for ident, frame in frames.items() if ident != threading.get_ident()}
    place = _program_line.describe(_walk(frames.get(threading.main_thread().ident)))
    parts = [_with_tag(place, _tags.innermost())]
    for name, frame in _by_name(shown):
        parts += ["", f"thread {name}:", "".join(traceback.format_stack(frame)).rstrip()]
    return "\n".join(parts)


def _with_tag(place: str, tag: str) -> str:
    """Returns the place with the tag, or without it if error texts have no room for both."""
    both = f'{place}, tag "{tag}"' if tag and place else place
    return both if len(both.encode()) <= MOST_LINE_BYTES else place


def threads() -> list[dict[str, Any]]:
    """Returns the name and the frames of each thread, the main one first, for a file of the flight recorder. Reads no
    source files, because a rank that has failed may be killed at any moment."""
    return [{"name": name, "frames": _walk(frame)} for name, frame in _by_name(sys._current_frames())]


def _by_name(frames: dict[int, FrameType]) -> list[tuple[str, FrameType]]:
    """Returns (name, innermost frame) of threads, the main one first. frames: by the threads' identifiers."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    return [(names.get(ident, str(ident)), frames[ident]) for ident in sorted(frames, key=lambda ident: ident != main)]


def _walk(frame: FrameType | None) -> list[dict[str, Any]]:
    """Returns the frames of a stack, innermost first, with the keys of _program_line.Frame."""
    found = []
    while frame:
        found.append({"name": frame.f_code.co_name, "filename": frame.f_code.co_filename, "line": frame.f_lineno or 0})
        frame = frame.f_back
    return found

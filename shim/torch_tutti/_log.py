"""Lines on standard error, as the library writes its log."""
from __future__ import annotations

import contextlib
import os
import sys


def write(level: str, text: str) -> None:
    """In one write, because ranks share their standard error. Where nobody can read it, it is not said: a program that
    was started without standard error, or has closed it, goes on."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"tutti[{os.getpid()}] {level}: {text}\n")
        sys.stderr.flush()

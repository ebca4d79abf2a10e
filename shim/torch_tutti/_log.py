"""Writes lines of the log to standard error, in the format of the C library."""
from __future__ import annotations

import contextlib
import os
import sys


def write(level: str, text: str) -> None:
    """Writes a line of the log in one call, because ranks share their standard error. level: "error", "warn", "info" or
    "debug". Does nothing if the program has no standard error, or has closed it."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"tutti[{os.getpid()}] {level}: {text}\n")
        sys.stderr.flush()

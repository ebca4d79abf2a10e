"""Runs a command for `tutti doctor -- COMMAND`: passes its output on, and keeps what explains a failure."""
from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import BinaryIO

from torch_tutti import _debug, _recorder, _run
from torch_tutti._doctor import records
from torch_tutti._doctor.records import Records

_PIECE_BYTES = 1 << 16
# Processes that outlive the command may keep its standard error open; they are waited for so long.
_LAST_LINES_S = 2.0
_SIGNALED = 128
# The times of files may be so much older than the clock.
_CLOCK_STEP_S = 1.0


def run(command: list[str]) -> tuple[int, Records]:
    """Runs a command with the flight recorder and the log at level info, unless the environment has other values.
    Returns its exit code, as a shell has it, and what it has left. Raises ValueError or OSError if it cannot start."""
    words = _run.command_of(command)
    with tempfile.TemporaryDirectory(prefix="tutti-doctor-") as folder:
        log, begin = Path(folder) / "log", time.time()
        prefix = next((os.environ[name] for name in _recorder.FILE if os.environ.get(name)), f"{folder}/trace_")
        environment = {"TUTTI_LOG": "info", _recorder.SIZE[0]: str(_debug.OPERATIONS), **os.environ,
                       _recorder.FILE[0]: prefix}
        code = _run_recorded(words, environment, log)
        try:
            return code, records.read([str(log), *_traces(prefix, begin)])
        except ValueError as error:
            told = records.read([str(log)])
            told.warnings.append(f"the traces were not read: {error}")
            return code, told


def _traces(prefix: str, begin: float) -> list[str]:
    """Returns the traces that were written after `begin`."""
    folder, name = os.path.split(prefix)
    found = [path for path in Path(folder or ".").glob("*") if path.name.startswith(name)
             and path.name.removeprefix(name).isdecimal()]
    return [str(path) for path in found if path.stat().st_mtime >= begin - _CLOCK_STEP_S]


def _run_recorded(words: list[str], environment: dict[str, str], log: Path) -> int:
    """Runs a command, and copies its standard error into a file. Ctrl-C goes to the command, which decides."""
    with log.open("wb") as copy:
        process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE)
        # Ctrl-C reaches the command by itself, and SIGTERM does not.
        before = {number: signal.signal(number, action) for number, action in (
            (signal.SIGINT, lambda *_: None), (signal.SIGTERM, lambda number, _: process.send_signal(number)))}
        copier = threading.Thread(target=_copy, args=[process, copy], daemon=True)
        copier.start()
        try:
            code = process.wait()
        finally:
            for number, action in before.items():
                signal.signal(number, action)
        copier.join(_LAST_LINES_S)
    return code if code >= 0 else _SIGNALED - code


def _copy(process: subprocess.Popen[bytes], copy: BinaryIO) -> None:
    """Writes the standard error of a process to this one's and to a file, as it comes."""
    while piece := os.read(process.stderr.fileno(), _PIECE_BYTES):
        try:
            os.write(2, piece)
            copy.write(piece)
            copy.flush()
        except (OSError, ValueError):                   # nobody reads it, or the file is closed
            pass

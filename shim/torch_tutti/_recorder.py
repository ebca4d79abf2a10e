"""The Python part of the flight recorder (shim/recorder.hpp): switches it on by the environment, and writes its records
to a file, in the format of torch's flight recorder (`torch.distributed.flight_recorder`).

It uses torch's variables, read when the first group is created: TORCH_FR_BUFFER_SIZE operations are kept (0: off), with
their Python stacks unless TORCH_INCLUDE_STACK_TRACE is 0. A file's name is TORCH_FR_DUMP_TEMP_FILE followed by the
rank. Files contain plain data only, no objects, so reading one runs no code. A file is complete or absent, readable
only by its owner, and replaces a file or link of its name."""
from __future__ import annotations

import os
import pickle
import sys
import tempfile
import threading
from collections import Counter
from types import ModuleType
from typing import Any

from torch_tutti import _debug, _log, _stacks

# Newer and older name of each variable; the newer one takes precedence.
SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
STACKS = ("TORCH_INCLUDE_STACK_TRACE",)
ON_FAILURE = ("TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT")
# Numbers of operations that a file gets; the newest 200 are written within milliseconds.
_NEWEST, _ALL = 200, sys.maxsize
# Seconds until a file gets all operations; torchrun checks ten times a second whether a rank has died.
_LATER_S = 0.1
# The environment has been read.
_started = False
# The recorder is on.
_on = False
# Held while a file is written: groups may fail in several threads.
_writing = threading.Lock()


def start(extension: ModuleType, options: Any) -> None:
    """Reads the environment before the first group is made, and switches the recorder on if TORCH_FR_BUFFER_SIZE is
    above 0. Stores this process's rank whenever a default group is made. options: torch's
    `_DistributedBackendOptions`."""
    global _started, _on
    if not options.global_ranks_in_group:               # torch names no ranks for the group of all
        extension._set_own_rank(options.group_rank)
    if _started:
        return
    capacity = _capacity()
    if capacity > 0:
        extension._record(capacity, _flag(STACKS, True))
        _on = True
    _started = True


def dump_trace(path: str | None = None) -> str:
    """Writes the flight recorder's records: the last operations of all groups of this process. Returns the path. The
    command `tutti trace` reads a folder of such files, one for each rank.

    path: the file; None: TORCH_FR_DUMP_TEMP_FILE, or ~/.cache/torch/comm_lib_trace_rank_, followed by the rank. Raises
    RuntimeError when the recorder is off, which it is unless TORCH_FR_BUFFER_SIZE was set before the first group was
    made, and OSError when the file cannot be written.
    """
    if not _on:
        raise RuntimeError("dump_trace: the flight recorder is off; set TORCH_FR_BUFFER_SIZE to the number of "
                           "operations that it keeps (2000, say) before the first group is made, on all ranks")
    path = _default_path() if path is None else os.fspath(path)
    _write(path, _ALL)
    return path


def dump_after_failure(text: str) -> None:
    """Logs the error text of a failed group, then writes the newest operations, and all of them a little later: a
    launcher that has seen one rank die soon kills the others. The extension calls it in the thread that then raises the
    error. Does nothing if TORCH_FR_DUMP_ON_TIMEOUT is off."""
    if not _flag(ON_FAILURE, True):
        return
    _log.write("error", f"rank {rank()}: {text}")
    try:
        path = _default_path()
        written = _write(path, _NEWEST)
    except Exception as error:
        _log.write("warn", f"the flight recorder could not write its trace: {error}")
        return
    _log.write("warn", f"rank {rank()}: the last operations are in {path}. When all ranks have written theirs, this "
                       f"shows which rank waits for which: tutti trace {os.path.dirname(path) or '.'}")
    if written == _NEWEST:
        _complete_later(path)


def _complete_later(path: str) -> None:
    """Writes all operations after _LATER_S, in a thread that a program waits for at its end."""
    try:
        threading.Timer(_LATER_S, _write, [path, _ALL]).start()
    except RuntimeError:                                # the interpreter is ending already
        _write(path, _ALL)


def recording() -> tuple[str, str] | None:
    """Returns (variable that switches the recorder on, folder of the traces) by this environment; None if the recorder
    is off. Raises ValueError if the variable is no number."""
    if _capacity() == 0:
        return None
    return _variable(SIZE)[0] or "TUTTI_DEBUG", os.path.dirname(_default_path()) or "."


def _capacity() -> int:
    """Returns how many operations are kept, by this environment. 0: the recorder is off. TUTTI_DEBUG needs it. Raises
    ValueError if the variable is no number."""
    capacity = _number(SIZE, 0)
    return _debug.OPERATIONS if capacity == 0 and _debug.is_on() else capacity


def rank() -> int:
    """Returns this process's rank in its newest default group, which may be gone; a reconfigure changes it. Without a
    group: the variable RANK, else 0."""
    recorded_rank = -1
    if _started:
        from torch_tutti._extension import load
        recorded_rank = load()._own_rank()
    return recorded_rank if recorded_rank >= 0 else int(os.environ.get("RANK", "0"))


def _write(path: str, max_operations: int) -> int:
    """Writes the last operations, at most `max_operations`, to the file. Returns how many were written."""
    with _writing:
        trace = read(max_operations)
        write_trace(trace, path)
    return len(trace["entries"])


def read(max_operations: int = _ALL) -> dict[str, Any]:
    """Returns what a file of this rank has: at most `max_operations` of the last operations, and the stacks of all
    threads."""
    return {"rank": rank(), **recorded(max_operations), "threads": _stacks.threads()}


def recorded(max_operations: int) -> dict[str, Any]:
    """Returns at most `max_operations` of the last operations, and all known groups, in torch's format. A later group
    of the same name gets a suffix such as "#2"."""
    from torch_tutti._extension import load
    from torch_tutti._library import _library
    groups, operations = load()._recorded(max_operations)
    counts: Counter[str] = Counter()
    config, status = {}, {}
    for index, group in enumerate(groups):
        counts[group["name"]] += 1
        if counts[group["name"]] > 1:
            group["name"] += f"#{counts[group['name']]}"
        config[group["name"]] = {"name": group["name"], "desc": group["desc"], "ranks": str(group["ranks"]),
                                 "pg_id": index}
        status[str(index)] = {"last_enqueued_collective": group["collectives"],
                              "last_started_collective": group["collectives"],
                              "last_completed_collective": group["completed"]}
    version = _library().tutti_get_version().decode()
    return {"version": "2.10", "comm_lib_version": f"tutti {version}", "pg_config": config, "pg_status": status,
            "entries": [_entry(operation, groups[operation["pg_id"]]) for operation in operations]}


def _entry(operation: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    """Returns one operation of the extension in torch's format, extended by `failure`, `failure_class` and `tag`. It
    removes two keys of `operation`. The core does not report when an operation starts to run, so every operation that
    has not succeeded is "started"."""
    from torch_tutti.exceptions import _BY_STATUS
    status, end_ns = operation.pop("status"), operation.pop("ended_ns")
    begin_ns, has_succeeded = operation["time_created_ns"], status == 0
    entry = {**operation, "process_group": (group["name"], group["desc"]),
             "state": "completed" if has_succeeded else "started",
             "retired": end_ns != 0, "failure_class": _BY_STATUS[status].__name__ if status < 0 else "",
             "time_discovered_started_ns": begin_ns, "time_discovered_completed_ns": end_ns if has_succeeded else None}
    if has_succeeded:
        entry["duration_ms"] = (end_ns - begin_ns) / 1e6
    return entry


def write_trace(trace: dict[str, Any], path: str) -> None:
    """Writes a trace to a new file, and gives it the name `path` when it is complete."""
    folder, name = os.path.split(path)
    os.makedirs(folder or ".", exist_ok=True)
    # No other process can have prepared a file or link of this random name.
    descriptor, incoming = tempfile.mkstemp(".incoming", f".{name}.", folder or ".")
    try:
        with open(descriptor, "wb") as file:
            pickle.dump(trace, file)
        os.replace(incoming, path)
    except BaseException:
        os.unlink(incoming)
        raise


def _default_path() -> str:
    """Returns the path of this rank's trace by the environment."""
    prefix = _variable(FILE)[1]
    if not prefix:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        prefix = os.path.join(cache, "torch", "comm_lib_trace_rank_")
    return f"{prefix}{rank()}"


# ---- the environment ----
def _variable(names: tuple[str, ...]) -> tuple[str, str]:
    """Returns (name, value) of the first of these variables that is set and not empty, or ("", "")."""
    return next(((name, os.environ[name]) for name in names if os.environ.get(name)), ("", ""))


def _number(names: tuple[str, ...], default: int) -> int:
    """Returns the number in the first of these variables that is set, or the default. Raises ValueError for other
    text."""
    name, text = _variable(names)
    if text and not text.isdecimal():
        raise ValueError(f"{name} must be a number of operations, 0 or more, not {text!r}")
    return int(text) if text else default


def _flag(names: tuple[str, ...], default: bool) -> bool:
    """Returns False if the first of these variables that is set is 0, n, no or false, True for other text, or the
    default."""
    text = _variable(names)[1].lower()
    return default if not text else text not in ("0", "n", "no", "false")

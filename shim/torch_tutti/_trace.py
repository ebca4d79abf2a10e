"""The command `tutti trace`: reads the traces of the ranks' flight recorders (`_recorder`), and reports for each group
which operations all ranks have completed and what each rank was doing.

Needs no torch. A trace is plain data; one that refers to classes is refused, because unpickling runs code. The report
states only what the traces show; ranks without a trace are named.
"""
from __future__ import annotations

import os
import pickle
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from torch_tutti import _program_line, _recorder
from torch_tutti._program_line import Frame
from torch_tutti._ranges import format_ranks

Entry = dict[str, Any]
# Calls for which all ranks must give tensors of the same size; others may differ, as all_to_all with split sizes.
SAME_SIZES = {"all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"}
# The prefix of an error that this rank got from another rank.
_PASSED_ON = re.compile(r"(?:rank \d+ failed the group: )+")


class Traces(NamedTuple):
    """The traces of a folder. prefix: of the file names, which end in the rank. of_rank: contents by rank."""
    prefix: str
    of_rank: dict[int, dict[str, Any]]


class Group(NamedTuple):
    """One group as a rank knows it. members: its ranks, as ranks of the default group."""
    name: str
    description: str
    members: tuple[int, ...]


class Progress(NamedTuple):
    """A rank's progress in a group. called, completed: the number of its last collective that was called, and of the
    last that has completed. collectives: by number; for a coalesced call the first incomplete part. messages:
    incomplete sends and receives."""
    called: int
    completed: int
    collectives: dict[int, Entry]
    messages: list[Entry]


# ---- reading ----
class _PlainData(pickle.Unpickler):
    """Reads pickled plain data only. Raises UnpicklingError for data that refer to a class, because loading it would
    run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Raises UnpicklingError: plain data refer to no class."""
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, but a trace holds only plain data")


def read(folder: str, prefix: str | None = None) -> Traces:
    """Reads all traces of a folder. prefix: of their file names; None: any prefix that all files share. Raises
    ValueError with the problem if there are none or they do not belong together."""
    directory = Path(folder)
    if not directory.is_dir():
        raise ValueError(f"{folder} is not a folder; traces are files in a folder, one for each rank. "
                         f"{_where_traces_are(folder)}")
    pattern = r"(?:.*\D)?" if prefix is None else re.escape(prefix)
    files = [(path, match[1]) for path in sorted(directory.iterdir())
             if path.is_file() and (match := re.fullmatch(rf"(?!\.)({pattern})[0-9]+", path.name))]
    if not files:
        condition = "" if prefix is None else f" that begin with {prefix!r} and end in a rank"
        raise ValueError(f"there are no traces{condition} in {folder}. {_where_traces_are(folder)}")
    _check_one_kind(folder, {file_prefix for _, file_prefix in files})
    traces = {path: load(path) for path, _ in files}
    if prefix is None:                                  # a prefix may end in a digit; the trace has the rank
        files = [(path, _prefix_of(path, file_prefix, traces[path])) for path, file_prefix in files]
        _check_one_kind(folder, {file_prefix for _, file_prefix in files})
    common_prefix = files[0][1]
    return Traces(common_prefix, dict(sorted((int(path.name[len(common_prefix):]), trace)
                                             for path, trace in traces.items())))


def _check_one_kind(folder: str, prefixes: set[str]) -> None:
    """Raises ValueError if there are several prefixes of file names."""
    if len(prefixes) > 1:
        raise ValueError(f"{folder} has files of several kinds: {', '.join(sorted(prefixes))}. Select the traces with "
                         "--prefix")


def _prefix_of(path: Path, file_prefix: str, trace: dict[str, Any]) -> str:
    """Returns the part of a file name before the rank. A prefix may end in a digit, so the rank in the trace decides
    where it ends, if the file name ends in that rank. file_prefix: the name without all digits at its end."""
    rank = str(trace.get("rank", ""))
    ends_in_rank = rank and path.name[len(file_prefix):].endswith(rank)
    return path.name.removesuffix(rank) if ends_in_rank else file_prefix


def _where_traces_are(folder: str) -> str:
    """Returns a hint for an error text: where traces are written, by the environment of this command."""
    if _recorder.recording() is None:
        return (f"They are written when a group fails, if TORCH_FR_BUFFER_SIZE=2000 and TORCH_FR_DUMP_TEMP_FILE="
                f"{os.path.join(folder, 'trace_')} were set for the program, on all ranks")
    name, trace_folder = _recorder.recording()
    if os.path.realpath(trace_folder) != os.path.realpath(folder):
        return f"With the environment of this command they are written into {trace_folder}: look there"
    return (f"{name} is set here; if it was set for the program, too, no rank has seen a group fail, or each was "
            "killed before it had written its trace. A rank that writes a trace prints a line about it on standard "
            "error, after the error itself")


def load(path: Path) -> dict[str, Any]:
    """Returns the trace in a file. Raises ValueError with the problem if the file is not a valid trace, OSError if it
    cannot be read."""
    try:
        with path.open("rb") as file:
            trace = _PlainData(file).load()
    except OSError:
        raise
    except Exception as error:                          # invalid pickles may raise any exception
        raise ValueError(f"{path} is not a trace of the flight recorder: {error or 'it is cut short'}") from None
    if isinstance(trace, dict) and str(trace.get("version", "2")).split(".")[0] != "2":
        raise ValueError(f"{path} is of version {trace['version']}; this command reads versions 2.x")
    if problem := _type_problem(trace, _TRACE, "trace") or _contradiction(trace):
        raise ValueError(f"{path} is not a trace of the flight recorder: {problem}")
    return trace


# The parts of a trace that are read here. "*" describes the values of a dictionary with any keys; "?" marks an
# optional key.
_SIZES, _WORDS = [[int]], [str]
_FRAME = {"name": str, "filename": str, "line": int}
_TRACE: Any = {
    "version": (str, int, float), "rank?": int,
    "pg_config": {"*": {"desc": str, "ranks": str, "pg_id": (int, str)}},
    "pg_status": {"*": {"last_enqueued_collective": int, "last_completed_collective": int}},
    "entries": [{"process_group": _WORDS, "is_p2p": bool, "profiling_name": str, "collective_seq_id": int, "state": str,
                 "retired": bool, "time_created_ns": int, "timeout_ms": int, "input_sizes": _SIZES,
                 "output_sizes": _SIZES, "input_dtypes": _WORDS, "output_dtypes": _WORDS, "failure?": str,
                 "failure_class?": str, "tag?": str, "frames?": [_FRAME]}],
    "threads?": [{"name": str, "frames": [_FRAME]}],
}


def _type_problem(value: Any, shape: Any, name: str) -> str:
    """Compares the types of a value with a shape as in _TRACE. Returns a text about the first difference, or "". name:
    of the value, for the text."""
    if isinstance(shape, dict) and isinstance(value, dict):
        if other_keys := [key for key in value if not isinstance(key, str)]:
            return f"{name} has the key {other_keys[0]!r}"
        shape = dict.fromkeys(value, shape["*"]) if "*" in shape else shape
        if missing := [key for key in shape if key not in value and not key.endswith("?")]:
            return f"{name} has no {missing[0]!r}"
        members = [(value[key], member_shape, f"{name}[{key!r}]") for shape_key, member_shape in shape.items()
                   if (key := shape_key.rstrip("?")) in value]
    elif isinstance(shape, list) and isinstance(value, (list, tuple)):
        members = [(member, shape[0], f"{name}[{index}]") for index, member in enumerate(value)]
    elif isinstance(shape, (dict, list)) or not isinstance(value, shape):
        return f"{name} is of type {type(value).__name__}"
    else:
        return ""
    return next(filter(None, (_type_problem(*part) for part in members)), "")


def _contradiction(trace: dict[str, Any]) -> str:
    """Returns a text about the first contradiction between parts of a trace, or ""."""
    for name, group in trace["pg_config"].items():
        if str(group["pg_id"]) not in trace["pg_status"]:
            return f"pg_status has no entry for group {name!r}"
        if not re.fullmatch(r"[\[(]\s*\d+(\s*,\s*\d+)*\s*,?\s*[\])]", group["ranks"]):
            return f"the ranks of group {name!r} are {group['ranks']!r}"
    for number, entry in enumerate(trace["entries"]):
        if not entry["process_group"] or entry["process_group"][0] not in trace["pg_config"]:
            return f"entries[{number}] belongs to no group in pg_config"
    return ""


# ---- what happened ----
def groups_of(traces: Traces) -> list[Group]:
    """Returns the groups of all traces, in the order of their creation."""
    groups: dict[Group, None] = {}
    for trace in traces.of_rank.values():
        for name, group in trace["pg_config"].items():
            groups[Group(name, group["desc"], tuple(map(int, re.findall(r"\d+", group["ranks"]))))] = None
    return list(groups)


def progress_of(trace: dict[str, Any], group: Group) -> Progress:
    """Returns a rank's progress in a group; empty if the rank is not in it. trace: of the rank."""
    config = trace["pg_config"].get(group.name)
    if config is None:
        return Progress(0, 0, {}, [])
    status = trace["pg_status"][str(config["pg_id"])]
    collectives: dict[int, Entry] = {}
    messages: list[Entry] = []
    for entry in trace["entries"]:
        if entry["process_group"][0] != group.name:
            continue
        if entry["is_p2p"]:
            messages += [entry] if not _is_completed(entry) and "coalesced" not in entry["profiling_name"] else []
        elif _is_completed(collectives.get(entry["collective_seq_id"], {"state": "completed"})):
            collectives[entry["collective_seq_id"]] = entry
    return Progress(status["last_enqueued_collective"], status["last_completed_collective"], collectives, messages)


def _is_completed(entry: Entry) -> bool:
    return entry["state"] == "completed"


def describe(traces: Traces) -> str:
    """Returns the report as text."""
    groups = groups_of(traces)
    present = set(traces.of_rank)
    absent = sorted({rank for group in groups for rank in group.members} - present)
    lines = [f"traces of {format_ranks(present)}"]
    if absent:
        lines.append(f"no trace of {format_ranks(absent)}: ended, or still busy elsewhere and unaware that the others "
                     "failed")
    for group in groups:
        progress = {rank: progress_of(traces.of_rank[rank], group) for rank in group.members if rank in present}
        lines += ["", *_describe_group(group, progress)]
    return "\n".join(lines)


def describe_stacks(traces: Traces) -> str:
    """Returns the Python stacks of the threads of each rank when it wrote its trace, innermost frame first, as text."""
    lines = []
    for rank, trace in traces.of_rank.items():
        for thread in trace.get("threads", []):
            lines += ["", f"rank {rank}, thread {thread['name']}:"]
            lines += [f"  {frame['filename']}:{frame['line']} ({frame['name']})" for frame in thread["frames"]]
    return "\n".join(lines)


def _describe_group(group: Group, progress: dict[int, Progress]) -> list[str]:
    """Returns the lines about one group. progress: of those of its ranks that have a trace."""
    title = f"group {group.name}" + (f" ({group.description})" if group.description else "")
    if not progress:
        return [f"{title}, {format_ranks(group.members)}: there is no trace of any of them"]
    common_operations = min(of_rank.completed for of_rank in progress.values())
    most_calls = max(of_rank.called for of_rank in progress.values())
    subject = "all have" if len(progress) == len(group.members) else "the ranks with a trace have all"
    lines = [f"{title}, {format_ranks(group.members)}: {subject} completed {_count(common_operations)}"]
    incomplete = common_operations + 1 if most_calls > common_operations else None
    messages = {rank: entry for rank, of_rank in progress.items() for entry in of_rank.messages[:1]}
    if incomplete is None and not messages:
        return lines
    for rank, of_rank in progress.items():
        lines += [f"  rank {rank} {line}" for line in _describe_rank(of_rank, group)]
    if incomplete is not None:
        absent = set(group.members) - set(progress)
        lines += [f"  => {line}" for line in _explain_operation(incomplete, progress, absent)]
    elif error := _first_error(messages):
        lines.append(f"  => a message failed: {error[1]}")
    return lines


def _describe_rank(progress: Progress, group: Group) -> list[str]:
    """Returns the lines about one rank: its first incomplete operation and its incomplete messages, or that it has
    called no later operation."""
    incomplete = [(number, entry) for number, entry in sorted(progress.collectives.items()) if not _is_completed(entry)]
    lines = []
    if incomplete:
        number, entry = incomplete[0]
        lines.append(f"{'failed' if entry['retired'] else 'is'} in operation {number}: {_call_text(entry)}")
        lines[-1] += _failure_text(entry)
    elif not progress.messages:
        last = progress.collectives.get(progress.completed)
        lines.append(f"has called nothing after operation {progress.called}"
                     + (f": {_call_text(last)}" if last else ""))
    for entry in progress.messages:
        lines.append(f"{'failed' if entry['retired'] else 'is'} in a message: {_message_text(entry, group)}"
                     + _failure_text(entry))
    return lines


def _failure_text(entry: Entry) -> str:
    """Returns the error text of an operation on a line of its own, or ""."""
    return f"\n      {entry['failure']}" if entry.get("failure") else ""


def _explain_operation(number: int, progress: dict[int, Progress], absent: set[int]) -> list[str]:
    """Returns lines that explain the first operation that not all ranks have completed. The core's error, which names
    dead ranks and compares more than sizes, comes first, unless it is a timeout or a mismatch that other lines explain.
    number: of the operation. absent: ranks without a trace."""
    missing = [rank for rank, of_rank in progress.items() if of_rank.called < number]
    calls = {rank: of_rank.collectives[number] for rank, of_rank in progress.items() if number in of_rank.collectives}
    kind, text = _first_error(calls) or ("", "")
    lines = [f"operation {number} was not called by {format_ranks(missing)}"] if missing else []
    if kind in ("", "MismatchError"):
        lines += _differences(number, calls)
    elif kind == "TimeoutError":
        lines += _late_calls(number, calls)
    if text and (not lines or kind not in ("TimeoutError", "MismatchError")):
        lines.insert(0, f"operation {number} failed: {text}")
    if not calls and not lines:
        lines.append(f"operation {number} is no longer in the traces: keep more with TORCH_FR_BUFFER_SIZE")
    also_awaited = f", or waits for {format_ranks(absent)}, which left no trace" if absent else ""
    return lines or [f"operation {number} was called identically by {format_ranks(calls)} and is not finished: it is "
                     f"slow{also_awaited}"]


def _first_error(calls: dict[int, Entry]) -> tuple[str, str] | None:
    """Returns the class of the error that came first, and its text without the prefix _PASSED_ON; or None. Prefers the
    errors of a rank itself to those that it got from another rank. calls: one operation, by rank."""
    failed = [entry for entry in calls.values() if entry.get("failure")]
    if not failed:
        return None
    own_errors = [entry for entry in failed if not _PASSED_ON.match(entry["failure"])]
    first = min(own_errors or failed, key=lambda entry: entry.get("time_created_ns", 0))
    return first.get("failure_class", ""), _PASSED_ON.sub("", first["failure"])


def _differences(number: int, calls: dict[int, Entry]) -> list[str]:
    """Returns a line if ranks have made different calls of the operation with this number."""
    ranks_of: dict[Any, list[int]] = defaultdict(list)
    for rank, entry in calls.items():
        ranks_of[_signature(entry)].append(rank)
    if len(ranks_of) < 2:
        return []
    return [f"operation {number} differs: " + "; ".join(f"{_call_text(calls[ranks[0]])} on {format_ranks(ranks)}"
                                                       for ranks in ranks_of.values())]


def _late_calls(number: int, calls: dict[int, Entry]) -> list[str]:
    """Returns a line for each rank that called after the timeout of the first call."""
    first = min(calls.values(), key=lambda entry: entry["time_created_ns"])
    delays_ms = {rank: (entry["time_created_ns"] - first["time_created_ns"]) / 1e6 for rank, entry in calls.items()}
    return [f"operation {number} was called too late by rank {rank}: {delay_ms / 1e3:.1f} s after the first, whose "
            f"timeout is {first['timeout_ms'] / 1e3:g} s"
            for rank, delay_ms in delays_ms.items() if delay_ms > first["timeout_ms"]]


def _signature(entry: Entry) -> tuple[Any, ...]:
    """Returns the parts of a call that must be equal on all ranks: kind, sizes (of kinds that need equal ones),
    types."""
    name = kind_of(entry)
    sizes = str((entry["input_sizes"], entry["output_sizes"])) if name in SAME_SIZES else ""
    return name, sizes, str(sorted(set(entry["input_dtypes"] + entry["output_dtypes"])))


# ---- words ----
def kind_of(entry: Entry) -> str:
    """Returns the kind of a call: "all_reduce" for "tutti:all_reduce", "send" for "tutti:send 0->1"."""
    return entry["profiling_name"].partition(":")[2].partition(" ")[0]


def _call_text(entry: Entry) -> str:
    """Returns a call as text: kind, sizes, types, tag, line of the program."""
    tensors = " ".join([*map(str, entry["input_sizes"][:3]), *(["…"] if len(entry["input_sizes"]) > 3 else []),
                        *sorted({dtype.lower() for dtype in entry["input_dtypes"]})])
    tag = f'"{entry["tag"]}"' if entry.get("tag") else ""
    return " ".join(filter(None, [kind_of(entry), tensors, tag, _site(entry)]))


def _message_text(entry: Entry, group: Group) -> str:
    """Returns a message as text, with its peer as a rank of the default group."""
    peer = re.split("->|<-", entry["profiling_name"])[-1]
    preposition = "to" if kind_of(entry) == "send" else "from"
    peer_text = "any rank" if peer == "any" else "a rank that the trace does not name"
    if re.fullmatch("[0-9]{1,9}", peer) and int(peer) < len(group.members):
        peer_text = f"rank {group.members[int(peer)]}"
    return f"{_call_text(entry)} {preposition} {peer_text}"


def frame_of(entry: Entry) -> Frame | None:
    """Returns the frame of the program that made the call, or None: the innermost one outside of installed packages,
    else the innermost one outside of torch and tutti."""
    return _program_line.find(Frame(frame["name"], frame["filename"], frame["line"])
                              for frame in entry.get("frames", []))


def _site(entry: Entry) -> str:
    """Returns the line of the program that made the call, or ""."""
    frame = frame_of(entry)
    return f"({frame.name}, {frame.filename}:{frame.line})" if frame else ""


def _count(operations: int) -> str:
    """Returns a number of operations as text."""
    return "no operation" if operations == 0 else f"{operations} operation{'s' if operations > 1 else ''}"

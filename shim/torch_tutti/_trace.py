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

from torch_tutti import _recorder

Entry = dict[str, Any]
_PACKAGES = {"site-packages", "dist-packages"}
# Calls for which all ranks must give tensors of the same size; others may differ, as all_to_all with split sizes.
SAME_SIZES = {"all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"}
_TOLD = re.compile(r"(?:rank \d+ failed the group: )+")     # the prefix of an error that another rank had


class Traces(NamedTuple):
    """The traces of a folder. prefix: of the file names, which end in the rank. of_rank: contents by rank."""
    prefix: str
    of_rank: dict[int, dict[str, Any]]


class Group(NamedTuple):
    """One group as a rank knows it. members: ranks in the whole program."""
    name: str
    description: str
    members: tuple[int, ...]


class Progress(NamedTuple):
    """A rank's progress in a group: how many collectives it has called, and how many have completed."""
    called: int
    completed: int
    collectives: dict[int, Entry]       # by number; for a coalesced call the first incomplete one
    messages: list[Entry]               # incomplete sends and receives


# ---- reading ----
class _PlainData(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, but a trace holds only plain data")


def read(folder: str, prefix: str | None = None) -> Traces:
    """Reads all traces of a folder. Raises ValueError with the problem if there are none or they do not belong
    together."""
    place = Path(folder)
    if not place.is_dir():
        raise ValueError(f"{folder} is not a folder; traces are files in a folder, one for each rank. "
                         f"{_where(folder)}")
    begin = r"(?:.*\D)?" if prefix is None else re.escape(prefix)
    named = [(path, found[1]) for path in sorted(place.iterdir())
             if path.is_file() and (found := re.fullmatch(rf"(?!\.)({begin})[0-9]+", path.name))]
    if not named:
        given = "" if prefix is None else f" that begin with {prefix!r} and end in a rank"
        raise ValueError(f"there are no traces{given} in {folder}. {_where(folder)}")
    _check_one_kind(folder, {begins for _, begins in named})
    traces = {path: _load(path) for path, _ in named}
    if prefix is None:                                  # a prefix may end in a digit; the trace has the rank
        named = [(path, _begin_of(path, begins, traces[path])) for path, begins in named]
        _check_one_kind(folder, {begins for _, begins in named})
    chosen = named[0][1]
    return Traces(chosen, dict(sorted((int(path.name[len(chosen):]), trace) for path, trace in traces.items())))


def _check_one_kind(folder: str, kinds: set[str]) -> None:
    if len(kinds) > 1:
        raise ValueError(f"{folder} has files of several kinds: {', '.join(sorted(kinds))}. Select the traces with "
                         "--prefix")


def _begin_of(path: Path, begins: str, trace: dict[str, Any]) -> str:
    """The part of a file name before the rank."""
    rank = str(trace.get("rank", ""))
    known = rank and path.name[len(begins):].endswith(rank)
    return path.name.removesuffix(rank) if known else begins


def _where(folder: str) -> str:
    """A hint for an error: where traces are written, by the environment of this command."""
    if _recorder.recording() is None:
        return (f"They are written when a group fails, if TORCH_FR_BUFFER_SIZE=2000 and TORCH_FR_DUMP_TEMP_FILE="
                f"{os.path.join(folder, 'trace_')} were set for the program, on all ranks")
    name, written = _recorder.recording()
    if os.path.realpath(written) != os.path.realpath(folder):
        return f"With the environment of this command they are written into {written}: look there"
    return (f"{name} is set here; if it was set for the program, too, no rank has seen a group fail, or each was "
            "killed before it had written its trace. A rank that writes a trace prints a line about it on standard "
            "error, after the error itself")


def _load(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            trace = _PlainData(file).load()
    except OSError:
        raise
    except Exception as error:                          # invalid pickles may raise any exception
        raise ValueError(f"{path} is not a trace of the flight recorder: {error or 'it is cut short'}") from None
    if isinstance(trace, dict) and str(trace.get("version", "2")).split(".")[0] != "2":
        raise ValueError(f"{path} is of version {trace['version']}; this command reads versions 2.x")
    if problem := _problem(trace, _TRACE, "trace") or _inner_problem(trace):
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
                 "failure_class?": str, "frames?": [_FRAME]}],
}


def _problem(value: Any, shape: Any, name: str) -> str:
    """Compares a value with a shape as in _TRACE. Returns the first difference, with its name, or ""."""
    if isinstance(shape, dict) and isinstance(value, dict):
        if strange := [key for key in value if not isinstance(key, str)]:
            return f"{name} has the key {strange[0]!r}"
        shape = dict.fromkeys(value, shape["*"]) if "*" in shape else shape
        if missing := [key for key in shape if key not in value and not key.endswith("?")]:
            return f"{name} has no {missing[0]!r}"
        parts = [(value[key], of, f"{name}[{key!r}]") for end, of in shape.items() if (key := end.rstrip("?")) in value]
    elif isinstance(shape, list) and isinstance(value, (list, tuple)):
        parts = [(one, shape[0], f"{name}[{i}]") for i, one in enumerate(value)]
    elif isinstance(shape, (dict, list)) or not isinstance(value, shape):
        return f"{name} is of type {type(value).__name__}"
    else:
        return ""
    return next(filter(None, (_problem(*part) for part in parts)), "")


def _inner_problem(trace: dict[str, Any]) -> str:
    """Returns the first contradiction between parts of a trace, or ""."""
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
    """The groups in all traces, in the order of their creation."""
    known: dict[Group, None] = {}
    for trace in traces.of_rank.values():
        for name, group in trace["pg_config"].items():
            known[Group(name, group["desc"], tuple(map(int, re.findall(r"\d+", group["ranks"]))))] = None
    return list(known)


def progress_of(trace: dict[str, Any], group: Group) -> Progress:
    """A rank's progress in a group; empty if the rank is not in it."""
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
            messages += [entry] if not _over(entry) and "coalesced" not in entry["profiling_name"] else []
        elif _over(collectives.get(entry["collective_seq_id"], {"state": "completed"})):
            collectives[entry["collective_seq_id"]] = entry
    return Progress(status["last_enqueued_collective"], status["last_completed_collective"], collectives, messages)


def _over(entry: Entry) -> bool:
    return entry["state"] == "completed"


def describe(traces: Traces) -> str:
    """The report, as text."""
    groups = groups_of(traces)
    present = set(traces.of_rank)
    absent = sorted({rank for group in groups for rank in group.members} - present)
    lines = [f"traces of {_ranks(present)}"]
    if absent:
        lines.append(f"no trace of {_ranks(absent)}: ended, or still busy elsewhere and unaware that the others "
                     "failed")
    for group in groups:
        lines += ["", *_lines_of(group, {r: progress_of(traces.of_rank[r], group) for r in group.members if r in
                                         present})]
    return "\n".join(lines)


def _lines_of(group: Group, progress: dict[int, Progress]) -> list[str]:
    """The lines about one group. progress: of its ranks that have a trace."""
    title = f"group {group.name}" + (f" ({group.description})" if group.description else "")
    if not progress:
        return [f"{title}, {_ranks(group.members)}: there is no trace of any of them"]
    common = min(of.completed for of in progress.values())
    called = max(of.called for of in progress.values())
    who = "all have" if len(progress) == len(group.members) else "the ranks with a trace have all"
    lines = [f"{title}, {_ranks(group.members)}: {who} completed {_count(common)}"]
    stuck = next((n for n in range(common + 1, called + 1) if any(of.called >= n for of in progress.values())), None)
    messages = {rank: entry for rank, of in progress.items() for entry in of.messages[:1]}
    if stuck is None and not messages:
        return lines
    for rank, of in progress.items():
        lines += [f"  rank {rank} {line}" for line in _doing(of, common, group)]
    if stuck is not None:
        lines += [f"  => {line}" for line in _explain(stuck, progress, set(group.members) - set(progress))]
    elif error := _error(messages):
        lines.append(f"  => a message failed: {error[1]}")
    return lines


def _doing(of: Progress, common: int, group: Group) -> list[str]:
    """The lines about one rank: its incomplete operation and messages. common: operations that all have completed."""
    open_ones = [(n, entry) for n, entry in sorted(of.collectives.items()) if not _over(entry)]
    lines = []
    if open_ones:
        number, entry = open_ones[0]
        lines.append(f"{'failed' if entry['retired'] else 'is'} in operation {number}: {_call(entry)}")
        lines[-1] += _failure(entry)
    elif not of.messages:
        last = of.collectives.get(of.completed)
        lines.append(f"has called nothing after operation {of.called}" + (f": {_call(last)}" if last else ""))
    for entry in of.messages:
        lines.append(f"{'failed' if entry['retired'] else 'is'} in a message: {_message(entry, group)}"
                     + _failure(entry))
    return lines


def _failure(entry: Entry) -> str:
    return f"\n      {entry['failure']}" if entry.get("failure") else ""


def _explain(number: int, progress: dict[int, Progress], absent: set[int]) -> list[str]:
    """Explains the first operation that not all ranks have completed. The core's error comes first: it names dead
    ranks, and compares more than sizes. absent: ranks without a trace."""
    missing = [rank for rank, of in progress.items() if of.called < number]
    calls = {rank: of.collectives[number] for rank, of in progress.items() if number in of.collectives}
    kind, text = _error(calls) or ("", "")
    lines = [f"operation {number} was not called by {_ranks(missing)}"] if missing else []
    if kind in ("", "MismatchError"):
        lines += _differences(number, calls)
    elif kind == "TimeoutError":
        lines += _late(number, calls)
    if text and (not lines or kind not in ("TimeoutError", "MismatchError")):
        lines.insert(0, f"operation {number} failed: {text}")
    if not calls and not lines:
        lines.append(f"operation {number} is no longer in the traces: keep more with TORCH_FR_BUFFER_SIZE")
    others = f", or waits for {_ranks(absent)}, which left no trace" if absent else ""
    return lines or [f"operation {number} was called identically by {_ranks(calls)} and is not finished: it is "
                     f"slow{others}"]


def _error(calls: dict[int, Entry]) -> tuple[str, str] | None:
    """The class and text of the first error, without the prefix of ranks that got it from another."""
    failed = [entry for entry in calls.values() if entry.get("failure")]
    if not failed:
        return None
    own = [entry for entry in failed if not _TOLD.match(entry["failure"])]
    first = min(own or failed, key=lambda entry: entry.get("time_created_ns", 0))
    return first.get("failure_class", ""), _TOLD.sub("", first["failure"])


def _differences(number: int, calls: dict[int, Entry]) -> list[str]:
    """A line if ranks have made different calls."""
    versions: dict[Any, list[int]] = defaultdict(list)
    for rank, entry in calls.items():
        versions[_signature(entry)].append(rank)
    if len(versions) < 2:
        return []
    return [f"operation {number} differs: " + "; ".join(f"{_call(calls[ranks[0]])} on {_ranks(ranks)}"
                                                       for ranks in versions.values())]


def _late(number: int, calls: dict[int, Entry]) -> list[str]:
    """A line for each rank that called after the timeout of the first call."""
    first = min(calls.values(), key=lambda entry: entry["time_created_ns"])
    came_ms = {rank: (entry["time_created_ns"] - first["time_created_ns"]) / 1e6 for rank, entry in calls.items()}
    return [f"operation {number} was called too late by rank {rank}: {ms / 1e3:.1f} s after the first, whose timeout "
            f"is {first['timeout_ms'] / 1e3:g} s" for rank, ms in came_ms.items() if ms > first["timeout_ms"]]


def _signature(entry: Entry) -> tuple[Any, ...]:
    """The parts of a call that must be equal on all ranks."""
    name = kind_of(entry)
    sizes = str((entry["input_sizes"], entry["output_sizes"])) if name in SAME_SIZES else ""
    return name, sizes, str(sorted(set(entry["input_dtypes"] + entry["output_dtypes"])))


# ---- words ----
def kind_of(entry: Entry) -> str:
    """The kind of a call: "all_reduce" for "tutti:all_reduce", "send" for "tutti:send 0->1"."""
    return entry["profiling_name"].partition(":")[2].partition(" ")[0]


def _call(entry: Entry) -> str:
    """A call as text: kind, sizes, types, line of the program."""
    tensors = " ".join([*map(str, entry["input_sizes"][:3]), *(["…"] if len(entry["input_sizes"]) > 3 else []),
                        *sorted({t.lower() for t in entry["input_dtypes"]})])
    return " ".join(filter(None, [kind_of(entry), tensors, _site(entry)]))


def _message(entry: Entry, group: Group) -> str:
    """A message with its peer, as a rank of the program."""
    peer = re.split("->|<-", entry["profiling_name"])[-1]
    to = "to" if kind_of(entry) == "send" else "from"
    whom = "any rank" if peer == "any" else "a rank that the trace does not name"
    if re.fullmatch("[0-9]{1,9}", peer) and int(peer) < len(group.members):
        whom = f"rank {group.members[int(peer)]}"
    return f"{_call(entry)} {to} {whom}"


def _site(entry: Entry) -> str:
    """The line of the program that made the call: the innermost stack frame outside of installed packages, else the
    innermost one outside of torch and tutti."""
    frames = [frame for frame in entry.get("frames", []) if not _is_library(Path(frame["filename"]))]
    for frame in [frame for frame in frames if not _PACKAGES & set(Path(frame["filename"]).parts)] or frames:
        return f"({frame['name']}, {frame['filename']}:{frame['line']})"
    return ""


def _is_library(path: Path) -> bool:
    """True for files of torch, tutti, typing_extensions and Python's library."""
    library = re.search(r"/python3\.\d+/(?!(?:site|dist)-packages/)", str(path))
    return bool(library or {"torch", "torch_tutti", "typing_extensions.py"} & set(path.parts)
                or str(path).startswith("<"))


def _ranks(ranks: Any) -> str:
    """Ranks as text: "rank 1", "ranks 0, 2-5"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank])
    text = ", ".join("-".join(map(str, run)) for run in runs)
    return ("rank " if len(list(ranks)) == 1 else "ranks ") + text


def _count(operations: int) -> str:
    return "no operation" if operations == 0 else f"{operations} operation{'s' if operations > 1 else ''}"

"""Reads what a job has left: traces of the flight recorder, and logs (standard error of its ranks and launcher)."""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterable, NamedTuple

from torch_tutti import _program_line, _trace
from torch_tutti._program_line import Frame

# The first byte of a pickle.
_PICKLE = b"\x80"
_MOST_LINE = 4000                                       # characters
# Prefixes of lines: of script/hosts, and of torch and torchrun, which name the rank.
_HOST = re.compile(r"^[\w.-]+ \| ")
_RANK = re.compile(r"^\[(?:rank|default)(\d+)\]: ?")
_TUTTI = re.compile(r"^tutti\[\d+\] (error|warn): (?:rank (\d+): )?(.*)")
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)')
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
# The lines of torchrun's report about a rank.
_REPORTED_RANK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank")
_REPORTED_EXIT = re.compile(r"^\s*exitcode\s*: (-?\d+) \(pid")
# A rank in the path of a log: torchrun's --log-dir has ATTEMPT/RANK/stderr.log.
_RANK_OF_PATH = re.compile(r"(?:/|^)(\d+)/std(?:err|out)\.log$|rank_?(\d+)\b")
_OURS = "tutti."
# Exceptions of torchrun, which follow from the end of a rank.
_OF_LAUNCHER = ("ChildFailedError", "SignalException", "ProcessRaisedException", "ProcessExitedException")
_PASSED_ON = re.compile(r"(?:rank \d+ failed the group: )+")


class Error(NamedTuple):
    """An error of a rank. rank: None if unknown. kind: the class; those of tutti begin with _OURS. place: the line of
    the program, or ""."""
    rank: int | None
    kind: str
    text: str
    place: str

    @property
    def is_of_tutti(self) -> bool:
        """Returns whether tutti has raised it."""
        return self.kind.startswith(_OURS)


@dataclass
class Records:
    """Everything that was read. exits: exit codes by rank, as a launcher reports them."""
    traces: dict[int, dict[str, Any]] = field(default_factory=dict)
    errors: list[Error] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    exits: dict[int, int] = field(default_factory=dict)


def read(names: Iterable[str]) -> Records:
    """Reads files, and the files of folders. Raises ValueError for a file that is damaged or does not belong to the
    others, OSError for one that cannot be read."""
    records, source_of = Records(), {}
    for path in _files(names):
        with path.open("rb") as file:
            is_trace = file.read(1) == _PICKLE
        if not is_trace:
            with path.open(encoding="utf-8", errors="replace") as file:
                read_log(file, records, _rank_of_path(path))
            continue
        trace = _trace.load(path)
        digits = re.search(r"\d+$", path.name)
        rank = trace.get("rank", int(digits[0]) if digits else None)
        if rank is None:
            raise ValueError(f"{path} does not tell its rank: the name of a trace ends in the rank")
        if rank in source_of:
            raise ValueError(f"{source_of[rank]} and {path} are both traces of rank {rank}: give those of one run")
        source_of[rank], records.traces[rank] = path, trace
    records.traces = dict(sorted(records.traces.items()))
    records.errors += _errors_of_traces(records.traces)
    return records


def _files(names: Iterable[str]) -> list[Path]:
    found: list[Path] = []
    for name in names:
        path = Path(name)
        if not path.exists():
            raise ValueError(f"{name} does not exist")
        inside = sorted(one for one in path.rglob("*") if one.is_file() and not one.name.startswith("."))
        if path.is_dir() and not inside:
            raise ValueError(f"{name} has no files")
        found += inside if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def _rank_of_path(path: Path) -> int | None:
    match = _RANK_OF_PATH.search(str(path))
    return int(match[1] or match[2]) if match else None


def _errors_of_traces(traces: dict[int, dict[str, Any]]) -> list[Error]:
    return [Error(rank, _OURS + entry.get("failure_class", ""), _own_text(entry["failure"]),
                  place_text(_trace.frame_of(entry)))
            for rank, trace in traces.items() for entry in trace["entries"] if entry.get("failure")]


def place_text(frame: Frame | None) -> str:
    """Returns a line of the program as text, such as "train.py:9 (step)", or ""."""
    return f"{frame.filename}:{frame.line} ({frame.name})" if frame else ""


def _own_text(text: str) -> str:
    """Returns the text of an error as the rank gave it that failed first."""
    return _PASSED_ON.sub("", text)


# ---- logs ----
def read_log(lines: Iterable[str], records: Records, rank_of_file: int | None = None) -> None:
    """Adds to the records what the lines of a log tell. rank_of_file: the rank that wrote it, None: unknown."""
    # The frames of the tracebacks that are open, by rank.
    open_tracebacks: dict[int | None, list[Frame]] = {}
    reported = None
    for line in lines:
        line = _HOST.sub("", line[:_MOST_LINE].rstrip("\n"))
        of_rank = _RANK.match(line)
        rank = int(of_rank[1]) if of_rank else rank_of_file
        line = line[of_rank.end():] if of_rank else line
        if told := _TUTTI.match(line):
            _add_told(records, told, rank)
        elif match := _REPORTED_RANK.match(line):
            reported = int(match[1])
        elif (match := _REPORTED_EXIT.match(line)) and reported is not None:
            records.exits[reported] = int(match[1])
        elif line.startswith("Traceback (most recent call last)"):
            open_tracebacks[rank] = []
        elif rank in open_tracebacks:
            _follow(records, open_tracebacks, rank, line)


def _add_told(records: Records, told: re.Match[str], rank: int | None) -> None:
    """Adds an error or a warning of tutti's log."""
    if told[1] == "error":
        records.errors.append(Error(int(told[2]) if told[2] else rank, _OURS, _own_text(told[3]), ""))
    elif "the last operations are in" not in told[3]:
        records.warnings.append(told[3])


def _follow(records: Records, tracebacks: dict[int | None, list[Frame]], rank: int | None, line: str) -> None:
    """Adds a line of a traceback to its frames; the line with the exception ends it."""
    if frame := _FRAME.match(line):
        tracebacks[rank].append(Frame(frame[3], frame[1], int(frame[2])))
    elif not line.startswith(" ") and (match := _EXCEPTION.match(line)):
        found = _program_line.find(reversed(tracebacks.pop(rank)))
        kind = match[1].rpartition(".")[2]
        if kind not in _OF_LAUNCHER:
            is_ours = match[1].startswith("torch_tutti.exceptions.")
            records.errors.append(Error(rank, f"{_OURS}{kind}" if is_ours else kind, _own_text(match[2] or ""),
                                        place_text(found)))
